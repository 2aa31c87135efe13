"""Where a transformers decoder keeps its blocks, its final norm, and the eight things that can be read in a block.

Works on a model without weights (on torch's meta device) as well as on a loaded one.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from extractors.errors import MethodError, ModelError
from extractors.layers import BackboneShape
from extractors.method import Read

Side = Literal["input", "output"]

# Names that families give to the same part.
_BLOCK_LISTS = ("layers", "h")
_FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
_ATTENTIONS = ("self_attn", "attn", "attention")
_OUTPUT_PROJECTIONS = ("o_proj", "c_proj", "dense")
_DOWN_PROJECTIONS = ("down_proj", "c_proj", "dense_4h_to_h")
# One projection for queries, keys and values, side by side (GPT-2, Phi-3) or head by head (GPT-NeoX). Other families
# have projections of these names with another order inside, so only known ones are read.
_SIDE_BY_SIDE = {"gpt2": "c_attn", "phi3": "qkv_proj"}
_HEAD_BY_HEAD = {"gpt_neox": "query_key_value"}
_PLACES = {"query": 0, "key": 1, "value": 2}

# Families known to build a block alike whatever the depth, and to add the MLP's output to the state token by token.
_PLAIN_STACKS = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"),
    *("phi3", "olmo2", "gpt_neox", "gpt2"),
)

READS: tuple[Read, ...] = (
    "hidden",
    "block-output",
    "value",
    "query",
    "key",
    "head-output",
    "attention-output",
    "activation",
)


@dataclasses.dataclass(frozen=True)
class Site:
    """A tensor [B, N, width] in a forward pass: the input or the output of a module, or a part of it."""

    module: nn.Module
    side: Side
    width: int
    part: Callable[[Tensor], Tensor] | None = None


class Anatomy:
    """Names the parts of one decoder-only model.

    Args:
        depth: how many blocks the whole model has, if only its first ones are there.
    """

    def __init__(self, model: nn.Module, depth: int | None = None) -> None:
        # A model with a vision tower beside keeps its text decoder one level down.
        self.model = cast(nn.Module, getattr(model, "language_model", model))
        self.config = cast(Any, self.model.config)
        blocks, norm = _first(self.model, _BLOCK_LISTS), _first(self.model, _FINAL_NORMS)
        decoder_only = not getattr(self.config, "is_encoder_decoder", False)
        if not (decoder_only and isinstance(blocks, nn.ModuleList) and norm is not None):
            raise ModelError(
                f"model type {self.config.model_type!r} is not a decoder-only language model with a list of blocks "
                "and a final norm (as Llama, Mistral, Qwen, Gemma, GPT-2 or GPT-NeoX are)"
            )
        if not _is_causal(self.model, self.config):
            raise ModelError(
                f"this {self.config.model_type!r} model attends in both directions; only causal models are read, in "
                "which padding cannot reach a text's own tokens"
            )
        if getattr(self.config, "altup_num_inputs", None):
            raise ModelError(f"model type {self.config.model_type!r} keeps several states a token; that is not read")
        self.blocks, self.final_norm = blocks, norm
        self.depth = depth or len(blocks)

    @property
    def shape(self) -> BackboneShape:
        """What the layer rules depend on."""
        return BackboneShape(
            model_type=self.config.model_type,
            blocks=self.depth,
            hidden_size=self.config.hidden_size,
            intermediate_size=getattr(self.config, "intermediate_size", None),
        )

    @property
    def is_plain_stack(self) -> bool:
        """Whether blocks do not depend on depth, and an MLP works on each token alone, its output only added."""
        return self.config.model_type in _PLAIN_STACKS

    def blocks_to_load(self, used: int | None) -> int:
        """Returns how many blocks must be loaded if only the first ``used`` ones are run (None: all are)."""
        return used if used is not None and self.is_plain_stack else self.depth

    def parameters(self, used: int | None = None) -> int:
        """Returns how many weights the decoder has, or what must be loaded of it has."""
        skipped = self.blocks[self.blocks_to_load(used) :]
        counts = [sum(weight.numel() for weight in part.parameters()) for part in (self.model, skipped)]
        return counts[0] - counts[1]

    @property
    def embedding_rows(self) -> int:
        """How many token ids the model has an embedding for."""
        return self.model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]

    @property
    def max_positions(self) -> int | None:
        """The longest sequence the model was made for, in tokens; None when its config does not say."""
        return getattr(self.config, "max_position_embeddings", None)

    @property
    def longest_short(self) -> int | None:
        """The longest sequence with the short factors of longrope, which turns to long ones for the whole call when any
        row of it is longer; None for models whose positions do not depend on that.
        """
        rope = getattr(self.config, "rope_parameters", None) or {}
        kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]
        limits = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
        return min(limits, default=None)

    @property
    def query_heads(self) -> int:
        """H, the number of query heads."""
        return self.config.num_attention_heads

    @property
    def value_heads(self) -> int:
        """H_kv, the number of key/value heads, each shared by H / H_kv query heads."""
        return getattr(self.config, "num_key_value_heads", None) or self.query_heads

    def attention(self, block: int) -> nn.Module:
        """Returns the attention module of a block."""
        found = _first(self.blocks[block], _ATTENTIONS)
        if found is None:
            raise self._cannot_give("attention", block, f"no {', '.join(_ATTENTIONS)}")
        return found

    @functools.cached_property
    def attentions(self) -> frozenset[nn.Module]:
        """The attention modules of all blocks."""
        return frozenset(self.attention(block) for block in range(len(self.blocks)))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    def embeddings(self) -> Site:
        """Returns where token embeddings come out."""
        table = self.model.get_input_embeddings()  # type: ignore[operator]
        return Site(table, "output", table.weight.shape[1])

    def mlp(self, block: int) -> tuple[Site, Site] | None:
        """Returns where the state goes into a block's MLP and where it comes out; None where that is no module."""
        mlp = getattr(self.blocks[block], "mlp", None)
        width = self.config.hidden_size
        return None if mlp is None else (Site(mlp, "input", width), Site(mlp, "output", width))

    def block_input(self, block: int) -> Site:
        """Returns where the state goes into a block."""
        return Site(self.blocks[block], "input", self.config.hidden_size)

    def site(self, read: Read, block: int) -> Site:
        """Returns where ``read`` is found in one block.

        Hidden states follow transformers' convention: block i's output, and for the last block the output of the
        final norm; block outputs are the same without that norm. Values are v_proj's output, before they are repeated
        for grouped queries. Head outputs z are the input of the attention's output projection, attention outputs a its
        output, before any norm and the residual sum. Activations are the input of the MLP's down projection.

        Raises:
            MethodError: this family does not have it as a tensor of its own.
        """
        if read == "block-output":
            return Site(self.blocks[block], "output", self.config.hidden_size)
        if read == "hidden":
            last = block == self.depth - 1
            module = self.final_norm if last else self.blocks[block]
            return Site(module, "output", self.config.hidden_size)
        if read == "activation":
            mlp = getattr(self.blocks[block], "mlp", None)
            found = _first(mlp, _DOWN_PROJECTIONS) if mlp is not None else None
            if found is None:
                raise self._cannot_give(read, block, f"no mlp with {', '.join(_DOWN_PROJECTIONS)}")
            return Site(found, "input", _widths(found)[0])
        attention = self.attention(block)
        if read in ("head-output", "attention-output"):
            found = _first(attention, _OUTPUT_PROJECTIONS)
            if found is None:
                raise self._cannot_give(read, block, f"no {', '.join(_OUTPUT_PROJECTIONS)}")
            side: Side = "input" if read == "head-output" else "output"
            return Site(found, side, _widths(found)[side == "output"])
        return self._projected(read, attention, block)

    def _projected(self, read: Read, attention: nn.Module, block: int) -> Site:
        """The site of a query, key or value, which may share its projection with the others."""
        own = getattr(attention, f"{read[0]}_proj", None)
        if own is not None:
            return Site(own, "output", _widths(own)[1])
        kind, place = self.config.model_type, _PLACES[read]
        if kind in _SIDE_BY_SIDE:
            fused = getattr(attention, _SIDE_BY_SIDE[kind])
            head = _widths(fused)[1] // (self.query_heads + 2 * self.value_heads)
            widths = [self.query_heads * head, self.value_heads * head, self.value_heads * head]
            begin = sum(widths[:place])
            part = functools.partial(_columns, begin=begin, end=begin + widths[place])
            return Site(fused, "output", widths[place], part)
        if kind in _HEAD_BY_HEAD:
            fused = getattr(attention, _HEAD_BY_HEAD[kind])
            part = functools.partial(_of_each_head, heads=self.query_heads, place=place)
            return Site(fused, "output", _widths(fused)[1] // 3, part)
        raise self._cannot_give(read, block, f"no {read[0]}_proj, and no fused projection whose order is known")

    def _cannot_give(self, read: str, block: int, why: str) -> MethodError:
        return MethodError(
            f"{read} cannot be read from model type {self.config.model_type!r}: its attention or MLP has {why}. "
            f"What can be read there: {', '.join(self.readable(block))}"
        )

    def readable(self, block: int) -> list[str]:
        """Returns what can be read in a block of this family."""
        attention = _first(self.blocks[block], _ATTENTIONS)
        kind = self.config.model_type
        fused = kind in _SIDE_BY_SIDE or kind in _HEAD_BY_HEAD
        output = attention is not None and _first(attention, _OUTPUT_PROJECTIONS) is not None
        mlp = getattr(self.blocks[block], "mlp", None)
        known = {
            "hidden": True,
            "block-output": True,
            **{read: fused or hasattr(attention, f"{read[0]}_proj") for read in _PLACES},
            "head-output": output,
            "attention-output": output,
            "activation": mlp is not None and _first(mlp, _DOWN_PROJECTIONS) is not None,
        }
        return [read for read in READS if known[read]]


def _is_causal(model: nn.Module, config: Any) -> bool:
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", False):
        return False
    return all(getattr(module, "is_causal", True) is not False for module in model.modules())


def _first(module: nn.Module, names: tuple[str, ...]) -> nn.Module | None:
    return next((found for name in names if (found := getattr(module, name, None)) is not None), None)


def _widths(projection: nn.Module) -> tuple[int, int]:
    """Returns the input and the output width of a linear map; GPT-2's Conv1D keeps its weight transposed."""
    rows, columns = cast(Tensor, projection.weight).shape
    return (columns, rows) if isinstance(projection, nn.Linear) else (rows, columns)


def _columns(fused_BND: Tensor, begin: int, end: int) -> Tensor:
    return fused_BND[..., begin:end]


def _of_each_head(fused_BND: Tensor, heads: int, place: int) -> Tensor:
    """Takes queries, keys or values out of [q k v] for each head in turn."""
    by_head = fused_BND.unflatten(-1, (heads, 3, -1))
    return torch.flatten(by_head[..., place, :], start_dim=-2)
