"""Steered forward passes a second way: one text, no padding, eager attention, modules' forward functions replaced.

No hook and nothing of the attention interface is used: changed tensors are worked out from the raw weights.
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from tests.reference import _projections


class Network:
    """A model and its tokenizer; ``last_state`` runs one text and returns the states [N, d] after one block."""

    def __init__(self, folder: str) -> None:
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.blocks = self.model.layers if hasattr(self.model, "layers") else self.model.h

    def attention(self, block: int) -> Any:
        names = ("self_attn", "attn", "attention")
        return next(getattr(self.blocks[block], name) for name in names if hasattr(self.blocks[block], name))

    def output_projection(self, block: int) -> Any:
        attention = self.attention(block)
        return next(getattr(attention, n) for n in ("o_proj", "dense", "c_proj") if hasattr(attention, n))

    @torch.no_grad()
    def states(self, layer: int, **inputs: Tensor) -> Tensor:
        return self.model(**inputs, output_hidden_states=True).hidden_states[layer + 1][0]

    def ids(self, text: str) -> Tensor:
        return torch.tensor([self.tokenizer(text)["input_ids"]])


@contextlib.contextmanager
def replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """``forward(original, *args, **kwargs)`` in place of the module's own."""
    original = module.forward
    module.forward = lambda *args, **kwargs: forward(original, *args, **kwargs)
    yield
    module.forward = original


def contrastive(
    network: Network, text: str, prompt: str, auxiliary: str, block: int, layer: int, scaling: str, alpha: float
) -> np.ndarray:
    seen: list[Tensor] = []

    def note(original: Any, z: Tensor) -> Any:
        seen.append(z[0, -1].clone())
        return original(z)

    with replaced(network.output_projection(block), note):
        network.states(layer, input_ids=network.ids(auxiliary.replace("{text}", text)))

    def change(original: Any, z: Tensor) -> Any:
        old, other = z[0, -1], seen[0]
        new = torch.zeros_like(old)
        length = math.sqrt(sum(float(a - b) ** 2 for a, b in zip(old, other, strict=True)))
        size = math.sqrt(sum(float(a) ** 2 for a in old))
        for i in range(len(old)):
            new[i] = (old[i] - other[i]) * (alpha if scaling == "scaled" else size / (length + 1e-7))
        return original(torch.cat([z[:, :-1], new[None, None]], dim=1))

    with replaced(network.output_projection(block), change):
        return network.states(layer, input_ids=network.ids(prompt.replace("{text}", text)))[-1].numpy()


def prepended(
    network: Network, text: str, before: str, after: str, blocks: list[int], layer: int, scale: float
) -> np.ndarray:
    table = network.model.get_input_embeddings().weight
    left, right = (network.tokenizer(part)["input_ids"] for part in (before, after.replace("{text}", text)))
    own = torch.tensor(np.random.RandomState(0).standard_normal(table.shape[1]), dtype=torch.float32)
    rows = torch.stack([*(table[i] for i in left), own, *(table[i] for i in right)]) * scale
    place = len(left)

    def copy(original: Any, state: Tensor, *args: Any, **kwargs: Any) -> Any:
        changed = state.clone()
        changed[0, place] = state[0, -1]
        return original(changed, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(replaced(network.blocks[block], copy))
        return network.states(layer, inputs_embeds=rows.detach()[None])[-1].numpy()


def with_slot(network: Network, text: str, prompt: str, blocks: list[int], layer: int, bias: float) -> np.ndarray:
    """Returns (mean + last) / 2.

    With nothing masked, the attention weights p of a row are its exponentiated scores up to a factor, from which the
    weights over any other set of positions follow.
    """
    config = network.model.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * len(network.blocks)

    def replacement(block: int) -> Callable[..., Any]:
        attention, projection = network.attention(block), network.output_projection(block)
        window = config.sliding_window if kinds[block] == "sliding_attention" else None

        def forward(original: Any, *args: Any, **kwargs: Any) -> Any:
            x = (args[0] if args else kwargs["hidden_states"])[0]
            kwargs["attention_mask"] = torch.zeros(1, 1, len(x), len(x))
            free = original(*args[:1], **kwargs)[1][0]
            value = _projections(config, attention, x)[2]
            width = getattr(attention, "head_dim", getattr(attention, "head_size", None))
            share = len(free) // (value.shape[1] // width)
            z = torch.zeros(len(x), len(free) * width)
            for head in range(len(free)):
                values = value[:, head // share * width : (head // share + 1) * width]
                for n in range(len(x)):
                    seen = [j for j in range(n + 1) if window is None or n - j < window]
                    slot = free[head, n, -1] * math.exp(bias)
                    total = sum(free[head, n, j] for j in seen) + slot
                    mixed = sum(free[head, n, j] * values[j] for j in seen) + slot * values[-1]
                    z[n, head * width : (head + 1) * width] = mixed / total
            return projection(z[None]), None

        return forward

    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(replaced(network.attention(block), replacement(block)))
        states = network.states(layer, input_ids=network.ids(prompt.replace("{text}", text)))
    return ((sum(states) / len(states) + states[-1]) / 2).numpy()
