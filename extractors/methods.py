"""THE table of methods: prompt x what is read x layers x pooling, each row with its paper.

A row says nothing about a particular model; :meth:`Method.resolve` turns it into one that does (blocks by number). The
table is data: a new method is a row here, or a YAML file with the same fields.
"""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from extractors.errors import MethodError, nearest
from extractors.prompts import METAEOL, SLOT, template_of
from extractors.validated import parse

Read = Literal["hidden", "value", "query", "key", "head-output", "attention-output", "activation"]
Pooling = Literal["mean", "mean-text", "weighted-mean", "last", "second-copy"]
Combine = Literal["mean", "concat"]
# What becomes of the query heads' outputs where several of them share one key/value head: kept apart; averaged over
# the heads of each group; or the attention weights averaged over all heads before they meet the values.
Heads = Literal["apart", "group-mean", "shared-weights"]

VA = "Value aggregation, arXiv 2602.01572"
FINAL_NORM = "the last block's hidden state is read after the model's final norm, all others before it"

_LAYER_WORDS = ("all", "half", "last", "penultimate", "paper")
_RANGE = re.compile(r"^(\d+)-(\d+)$")
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


@dataclasses.dataclass(frozen=True)
class ResolvedMethod:
    """A method on one model: everything that shapes a vector, spelled out. This is what a run's identity holds."""

    name: str
    prompts: tuple[str, ...]
    read: Read
    layers: tuple[int, ...]
    combine: Combine
    pooling: Pooling
    heads: Heads = "apart"
    sentence_normalization: bool = False

    def identity(self) -> dict[str, Any]:
        """Returns the method as plain JSON values."""
        return {
            "name": self.name,
            "prompts": list(self.prompts),
            "read": self.read,
            "layers": list(self.layers),
            "combine": self.combine,
            "pooling": self.pooling,
            "heads": self.heads,
            "sentence_normalization": self.sentence_normalization,
            "steering": [],
            "final_norm": FINAL_NORM,
        }

    @classmethod
    def from_identity(cls, identity: dict[str, Any]) -> "ResolvedMethod":
        """Rebuilds a method from :meth:`identity`."""
        return cls(
            name=identity["name"],
            prompts=tuple(identity["prompts"]),
            read=identity["read"],
            layers=tuple(identity["layers"]),
            combine=identity["combine"],
            pooling=identity["pooling"],
            heads=identity["heads"],
            sentence_normalization=identity["sentence_normalization"],
        )

    def width(self, read_width: int) -> int:
        """Returns the vector's length D, given the width of what is read in one block."""
        return read_width * (len(self.layers) if self.combine == "concat" else 1)


class Method(BaseModel):
    """One row of the table, or one method file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    prompt: str | tuple[str, ...] = "none"
    read: Read
    layers: str | tuple[int, ...]
    combine: Combine = "mean"
    pooling: Pooling
    heads: Heads = "apart"
    sentence_normalization: bool = False
    steering: tuple[dict[str, Any], ...] = ()
    paper: str = ""
    notes: str = ""

    @field_validator("steering")
    @classmethod
    def _no_steering_yet(cls, steering: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        if steering:
            raise ValueError("this version knows no kind of steering; leave the list empty")
        return steering

    @field_validator("prompt")
    @classmethod
    def _prompt_has_a_slot(cls, prompt: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for one in (prompt,) if isinstance(prompt, str) else prompt:
            template_of(one)
        if not prompt:
            raise ValueError("needs at least one prompt")
        return prompt

    @model_validator(mode="after")
    def _layers_are_spelled_right(self) -> "Method":
        if isinstance(self.layers, str):
            _check_layer_words(self.layers)
        elif not self.layers or len(set(self.layers)) < len(self.layers):
            raise ValueError(f"layers = {list(self.layers)}: needs block numbers, each once")
        return self

    @model_validator(mode="after")
    def _parts_go_together(self) -> "Method":
        if self.heads != "apart" and self.read != "head-output":
            raise ValueError(f"heads = {self.heads!r} goes with read = 'head-output', not with {self.read!r}")
        if self.heads == "shared-weights" and self.pooling != "last":
            raise ValueError("heads = 'shared-weights' goes with pooling = 'last': it is the last token's attention")
        for template in self.templates:
            if (template.count(SLOT) == 2) < (self.pooling == "second-copy"):
                raise ValueError(
                    f"pooling = 'second-copy' needs a prompt with two slots {SLOT}, and {template!r} has one"
                )
        return self

    @property
    def templates(self) -> tuple[str, ...]:
        """The prompts' templates; more than one is an ensemble whose vectors are averaged."""
        return tuple(template_of(p) for p in ((self.prompt,) if isinstance(self.prompt, str) else self.prompt))

    def resolve(self, shape: BackboneShape) -> ResolvedMethod:
        """Returns this method with its blocks numbered for a model of ``shape``.

        Raises:
            MethodError: a block that the model does not have.
        """
        layers = resolve_layers(self.layers, shape)
        outside = [layer for layer in layers if not 0 <= layer < shape.blocks]
        if outside:
            raise MethodError(
                f"method {self.name}: layers {outside} are outside the model, whose {shape.blocks} blocks are "
                f"0-{shape.blocks - 1}"
            )
        return ResolvedMethod(
            name=self.name,
            prompts=self.templates,
            read=self.read,
            layers=layers,
            combine=self.combine,
            pooling=self.pooling,
            heads=self.heads,
            sentence_normalization=self.sentence_normalization,
        )


def _check_layer_words(layers: str) -> None:
    if layers in _LAYER_WORDS or _RANGE.match(layers) or _FRACTIONS.match(layers):
        return
    raise ValueError(
        f"layers = {layers!r}{nearest(layers, _LAYER_WORDS)}: allowed are {', '.join(_LAYER_WORDS)}, "
        'a range "18-26", fractions of depth "0.6-0.9", or a list [26, 27, 29]'
    )


def resolve_layers(layers: str | tuple[int, ...], shape: BackboneShape) -> tuple[int, ...]:
    """Returns the 0-based blocks that ``layers`` means for a model of ``shape``, in ascending order.

    ``half`` is the deeper half; ``paper`` is the papers' set, or the deeper half where none is known; fractions
    "a-b" are the blocks from floor(a L) up to, not including, ceil(b L).
    """
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
    if whole := _RANGE.match(layers):
        first, last = int(whole[1]), int(whole[2])
    else:
        begin, end = (float(part) for part in layers.split("-"))
        # The small term keeps 0.9 * 30 = 27.000000000000004 from reaching one block further.
        first, last = math.floor(begin * count + 1e-9), math.ceil(end * count - 1e-9) - 1
    if first > last:
        raise MethodError(f"layers = {layers!r} is empty on a model of {count} blocks; write the lower end first")
    return tuple(range(first, last + 1))


def _table(*rows: Method) -> dict[str, Method]:
    return {row.name: row for row in rows}


_BASELINE = f"{VA}, baseline"
_DEEP_HALF = "deep half where no set is known for the backbone"
_TWO_READINGS = (
    "grouped queries: attention weights averaged over all heads, the paper's words; for the mean within each group set "
    f"heads to group-mean; {_DEEP_HALF}"
)
_WVA: dict[str, Any] = {
    "read": "head-output",
    "layers": "paper",
    "pooling": "last",
    "heads": "shared-weights",
    "paper": VA,
    "notes": _TWO_READINGS,
}
_ALIGNED: dict[str, Any] = {
    "read": "attention-output",
    "layers": "paper",
    "pooling": "last",
    "paper": VA,
    "notes": _DEEP_HALF,
}
_LAST_TOKEN: dict[str, Any] = {"read": "hidden", "pooling": "last"}
_AGGREGATED: dict[str, Any] = {"layers": "half", "pooling": "mean", "paper": f"{VA}, ablation"}
_ZHANG = "Zhang et al. 2024, arXiv 2404.03921"
_ECHO = "Springer et al. 2024, arXiv 2402.15449"

METHODS: dict[str, Method] = _table(
    Method(name="mean-last", read="hidden", layers="last", pooling="mean", paper=_BASELINE),
    Method(name="hs-full", read="hidden", layers="all", pooling="mean", paper=_BASELINE),
    Method(name="hs-half", read="hidden", layers="half", pooling="mean", paper=_BASELINE),
    Method(name="hs", read="hidden", layers="paper", pooling="mean", paper=_BASELINE, notes=_DEEP_HALF),
    Method(name="lt", layers="last", paper=_BASELINE, **_LAST_TOKEN),
    Method(
        name="wmp",
        read="hidden",
        layers="last",
        pooling="weighted-mean",
        paper="SGPT, Muennighoff 2022, arXiv 2202.08904",
    ),
    Method(name="va-full", read="value", layers="all", pooling="mean", paper=VA),
    Method(name="va-half", read="value", layers="half", pooling="mean", paper=VA),
    Method(name="va", read="value", layers="paper", pooling="mean", paper=VA, notes=_DEEP_HALF),
    Method(
        name="va-prompteol",
        prompt="prompteol",
        read="value",
        layers="paper",
        pooling="mean",
        paper=VA,
        notes=f"pools the template's tokens too; {_DEEP_HALF}",
    ),
    Method(name="wva-lt", **_WVA),
    Method(name="wva-prompteol", prompt="prompteol", **_WVA),
    Method(name="wva-futureeol", prompt="futureeol", **_WVA),
    Method(name="aligned-wva-prompteol", prompt="prompteol", **_ALIGNED),
    Method(name="aligned-wva-futureeol", prompt="futureeol", **_ALIGNED),
    Method(name="query", read="query", **_AGGREGATED),
    Method(name="key", read="key", **_AGGREGATED),
    Method(name="activation", read="activation", **_AGGREGATED),
    Method(
        name="prompteol", prompt="prompteol", layers="last", paper="Jiang et al. 2023, arXiv 2307.16645", **_LAST_TOKEN
    ),
    Method(name="futureeol", prompt="futureeol", layers="last", paper=_BASELINE, **_LAST_TOKEN),
    Method(name="pretended-cot", prompt="pretended-cot", layers="penultimate", paper=_ZHANG, **_LAST_TOKEN),
    Method(name="knowledge", prompt="knowledge", layers="penultimate", paper=_ZHANG, **_LAST_TOKEN),
    Method(name="echo", prompt="echo", read="hidden", layers="last", pooling="second-copy", paper=_ECHO),
    Method(
        name="echo-last",
        prompt="echo-last",
        layers="last",
        paper=f"{_ECHO}, in the form of arXiv 2610.23807",
        **_LAST_TOKEN,
    ),
    Method(
        name="metaeol",
        prompt=METAEOL,
        layers="last",
        paper="Lei et al. 2024, arXiv 2402.18458",
        notes="mean of the eight raw vectors",
        **_LAST_TOKEN,
    ),
)


def load_method(method: str) -> Method:
    """Returns the table's row of that name, or the method in a YAML file.

    Raises:
        MethodError: no such name (the nearest is named), no such file, or a file that is not a valid method.
    """
    if method in METHODS:
        return METHODS[method]
    if not method.endswith((".yaml", ".yml")):
        raise MethodError(
            f"method {method!r} is not known{nearest(method, METHODS)}. Known: {', '.join(METHODS)}; "
            "or give a YAML file that composes one"
        )
    path = Path(method)
    if not path.is_file():
        raise MethodError(f"method file {method} does not exist")
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise MethodError(f"method file {method} is not YAML: {problem}") from None
    if not isinstance(fields, dict):
        raise MethodError(f"method file {method} must hold a mapping with {', '.join(Method.model_fields)}")
    return parse(Method, {"name": path.stem, **fields}, f"method file {method}", MethodError)
