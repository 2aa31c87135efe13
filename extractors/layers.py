"""Which blocks of a model: words, ranges, fractions of depth and the papers' sets, turned into 0-based numbers."""

import dataclasses
import math
import re
from typing import Any

from extractors.errors import MethodError, nearest

Layers = str | tuple[int, ...]

_LAYER_WORDS = ("all", "half", "last", "penultimate", "paper")
_RANGE = re.compile(r"^(\d+)-(\d+)$")
_FRACTION = re.compile(r"^0?\.\d+$")
_FRACTIONS = re.compile(r"^(\d*\.\d+|\d+\.?)-(\d*\.\d+|\d+\.?)$")


@dataclasses.dataclass(frozen=True)
class BackboneShape:
    """What the layer rules and the papers' layer sets depend on."""

    model_type: str
    blocks: int
    hidden_size: int
    intermediate_size: int | None


# The layer set S of a backbone, 0-based. Shapes, since weights are fine-tuned and renamed while the shape stays.
PAPER_LAYERS: dict[BackboneShape, tuple[tuple[int, ...], str]] = {
    BackboneShape("llama", 32, 4096, 11008): (tuple(range(20, 28)), "Llama-2-7B: 20-27 (arXiv 2602.01572)"),
    BackboneShape("qwen3", 36, 4096, 12288): ((26, 27, 29, 30, 31), "Qwen3-8B: 26,27,29-31 (arXiv 2602.01572)"),
    BackboneShape("llama", 30, 576, 1536): (tuple(range(18, 27)), "SmolLM2-135M: 18-26 (chosen on NTREX-128)"),
}


# The first block that PRSR steers (arXiv 2610.23807), 0-based; its base is not stated.
PAPER_START_LAYERS: dict[BackboneShape, int] = {
    BackboneShape("llama", 32, 4096, 11008): 17,  # Llama-2-7B
    BackboneShape("mistral", 32, 4096, 14336): 14,  # Mistral-7B
    BackboneShape("qwen3", 36, 4096, 12288): 33,  # Qwen3-8B
}

# Blocks before which token prepending copies (arXiv 2412.11556, the published configurations), 0-based.
PAPER_PREPENDING: dict[BackboneShape, tuple[int, ...]] = {
    BackboneShape("llama", 32, 4096, 11008): tuple(range(1, 7)),  # Llama-2-7B
    BackboneShape("llama", 40, 5120, 13824): tuple(range(1, 7)),  # Llama-2-13B
    BackboneShape("llama", 32, 4096, 14336): (1, 2),  # Llama-3-8B
    BackboneShape("qwen2", 28, 3584, 18944): tuple(range(1, 6)),  # Qwen2-7B
    BackboneShape("gemma2", 42, 3584, 14336): tuple(range(1, 6)),  # Gemma-2-9B
}


def checked_layers(layers: Any, none: bool = False) -> Layers:
    """Returns what stands for blocks in a method: a word or range as it is, one number as a list of one.

    Args:
        none: whether an empty list is allowed.

    Raises:
        ValueError: what no model can resolve; says what is allowed.
    """
    if isinstance(layers, int) and not isinstance(layers, bool):
        return (layers,)
    if isinstance(layers, float):
        layers = str(layers)
    if isinstance(layers, list | tuple) and all(type(number) is int for number in layers):
        if len(set(layers)) < len(layers) or not (layers or none):
            raise ValueError("needs block numbers, each once")
        return tuple(layers)
    forms = (_RANGE, _FRACTION, _FRACTIONS)
    if isinstance(layers, str) and (layers in _LAYER_WORDS or any(form.match(layers) for form in forms)):
        return layers
    hint = nearest(layers, _LAYER_WORDS) if isinstance(layers, str) else ""
    raise ValueError(
        f'not among what is allowed{hint}: {", ".join(_LAYER_WORDS)}, a range "18-26", fractions of depth '
        '"0.6-0.9", one block at a fraction "0.8", a number, or a list [26, 27, 29]'
    )


def resolve_layers(layers: Layers, shape: BackboneShape) -> tuple[int, ...]:
    """Returns the 0-based blocks that ``layers`` means for a model of ``shape``, in ascending order.

    ``half`` is the deeper half; ``paper`` is the papers' set, or the deeper half where none is known; fractions
    "a-b" are the blocks from floor(a L) up to, not including, ceil(b L); one fraction "a" is block floor(a L).

    Raises:
        MethodError: no block, or one that the model does not have.
    """
    numbers = _numbers(layers, shape)
    outside = [number for number in numbers if not 0 <= number < shape.blocks]
    if outside:
        raise MethodError(
            f"layers {outside} are outside the model, whose {shape.blocks} blocks are 0-{shape.blocks - 1}"
        )
    return numbers


def _numbers(layers: Layers, shape: BackboneShape) -> tuple[int, ...]:
    count = shape.blocks
    if not isinstance(layers, str):
        return tuple(sorted(layers))
    if layers == "all":
        return tuple(range(count))
    if layers in ("last", "penultimate"):
        return (count - 1,) if layers == "last" else (count - 2,)
    if layers == "half" or (layers == "paper" and shape not in PAPER_LAYERS):
        return tuple(range(count // 2, count))
    if layers == "paper":
        return PAPER_LAYERS[shape][0]
    if _FRACTION.match(layers):
        return (math.floor(float(layers) * count + 1e-9),)
    if whole := _RANGE.match(layers):
        first, last = int(whole[1]), int(whole[2])
    else:
        begin, end = (float(part) for part in layers.split("-"))
        # The small term keeps 0.9 * 30 = 27.000000000000004 from reaching one block further.
        first, last = math.floor(begin * count + 1e-9), math.ceil(end * count - 1e-9) - 1
    if first > last:
        raise MethodError(f"layers = {layers!r} is empty on a model of {count} blocks; write the lower end first")
    return tuple(range(first, last + 1))
