"""Where a transformers decoder keeps its blocks, its final norm, and the seven things that can be read in a block.

Works on a model without weights (on torch's meta device) as well as on a loaded one.
"""

import dataclasses
from typing import Any, Literal, cast

from torch import nn

from extractors.errors import MethodError, ModelError
from extractors.methods import BackboneShape, Read

Side = Literal["input", "output"]

_BLOCK_LISTS = ("layers", "h")
_FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")

# What is read -> (module within a block, its input or its output). v_proj's output is the value before it is repeated
# for grouped queries; o_proj's input is the heads' concatenated output z, its output is a, before the residual sum.
_SITES: dict[Read, tuple[str, Side]] = {
    "value": ("self_attn.v_proj", "output"),
    "query": ("self_attn.q_proj", "output"),
    "key": ("self_attn.k_proj", "output"),
    "head-output": ("self_attn.o_proj", "input"),
    "attention-output": ("self_attn.o_proj", "output"),
    "activation": ("mlp.down_proj", "input"),
}


@dataclasses.dataclass(frozen=True)
class Site:
    """A tensor [B, N, width] in a forward pass: the input or the output of a module."""

    module: nn.Module
    side: Side
    width: int


class Anatomy:
    """Names the parts of one decoder-only model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.config = cast(Any, model.config)
        blocks, norm = _first(model, _BLOCK_LISTS), _first(model, _FINAL_NORMS)
        decoder_only = not getattr(self.config, "is_encoder_decoder", False)
        if not (decoder_only and isinstance(blocks, nn.ModuleList) and norm is not None):
            raise ModelError(
                f"model type {self.config.model_type!r} is not a decoder-only language model with a list of blocks "
                "and a final norm (as Llama, Mistral, Qwen, Gemma, GPT-2 or GPT-NeoX are)"
            )
        if not _is_causal(model, self.config):
            raise ModelError(
                f"this {self.config.model_type!r} model attends in both directions; only causal models are read, in "
                "which padding cannot reach a text's own tokens"
            )
        self.blocks, self.final_norm = blocks, norm

    @property
    def shape(self) -> BackboneShape:
        """What the layer rules depend on."""
        return BackboneShape(
            model_type=self.config.model_type,
            blocks=len(self.blocks),
            hidden_size=self.config.hidden_size,
            intermediate_size=getattr(self.config, "intermediate_size", None),
        )

    @property
    def embedding_rows(self) -> int:
        """How many token ids the model has an embedding for."""
        return self.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]

    @property
    def max_positions(self) -> int | None:
        """The longest sequence the model was made for, in tokens; None when its config does not say."""
        return getattr(self.config, "max_position_embeddings", None)

    def site(self, read: Read, block: int) -> Site:
        """Returns where ``read`` is found in one block.

        Hidden states follow transformers' convention: block i's output, and for the last block the output of the
        final norm.

        Raises:
            MethodError: this family does not have it as a tensor of its own.
        """
        if read == "hidden":
            last = block == len(self.blocks) - 1
            module = self.final_norm if last else self.blocks[block]
            return Site(module, "output", self.config.hidden_size)
        path, side = _SITES[read]
        found = _descend(self.blocks[block], path)
        if not isinstance(found, nn.Linear):
            readable = ["hidden", *(name for name, (p, _) in _SITES.items() if _descend(self.blocks[block], p))]
            raise MethodError(
                f"{read} cannot be read from model type {self.config.model_type!r}: its blocks have no {path}. "
                f"What can be read there: {', '.join(readable)}"
            )
        return Site(found, side, found.in_features if side == "input" else found.out_features)


def _is_causal(model: nn.Module, config: Any) -> bool:
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False):
        return False
    return all(getattr(module, "is_causal", True) is not False for module in model.modules())


def _first(model: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((found for name in names if (found := getattr(model, name, None)) is not None), None)


def _descend(module: nn.Module, path: str) -> nn.Module | None:
    for name in path.split("."):
        module = getattr(module, name, None)  # type: ignore[assignment]
        if module is None:
            return None
    return module
