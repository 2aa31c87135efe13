"""One method: prompt x what is read x layers x pooling x steering, for any model and for one."""

import dataclasses
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from extractors.errors import MethodError
from extractors.layers import BackboneShape, Layers, checked_layers, resolve_layers
from extractors.prompts import PLACEHOLDER, is_twofold, template_of, with_placeholder
from extractors.steering import Steering, SubspaceRemoval, TokenPrepending, parse_steering

Read = Literal["hidden", "block-output", "value", "query", "key", "head-output", "attention-output", "activation"]
Pooling = Literal["mean", "mean-text", "weighted-mean", "last", "second-copy", "mean-and-last"]
Combine = Literal["mean", "concat"]
# What becomes of the query heads' outputs where several of them share one key/value head: kept apart; averaged over
# the heads of each group; or the attention weights averaged over all heads before they meet the values.
Heads = Literal["apart", "group-mean", "shared-weights"]

FINAL_NORM = "the last block's hidden state is read after the model's final norm, all others before it"


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
    steering: tuple[Steering, ...] = ()

    @property
    def auxiliary_prompts(self) -> tuple[str, ...]:
        """What each text is put into besides, for what steering needs of it."""
        return tuple(prompt for one in self.steering for prompt in one.auxiliary_prompts)

    @property
    def blocks_run(self) -> int:
        """How many blocks are run, from the first one to the last that is read."""
        return self.layers[-1] + 1

    def without_subspaces(self) -> "ResolvedMethod":
        """Returns the method with no subspace removed in the blocks."""
        kept = tuple(one for one in self.steering if not isinstance(one, SubspaceRemoval))
        return dataclasses.replace(self, steering=kept)

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
            "steering": [one.model_dump(mode="json") for one in self.steering],
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
            steering=tuple(parse_steering(one) for one in identity["steering"]),
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
    layers: Layers
    combine: Combine = "mean"
    pooling: Pooling
    heads: Heads = "apart"
    sentence_normalization: bool = False
    steering: tuple[Steering, ...] = ()
    paper: str = ""
    notes: str = ""

    @field_validator("prompt", mode="before")
    @classmethod
    def _prompt_has_a_slot(cls, prompt: Any) -> Any:
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if not (isinstance(prompts, list | tuple) and prompts and all(isinstance(one, str) for one in prompts)):
            raise ValueError("needs a known name, a text with {text}, or a list of these")
        for one in prompts:
            template_of(one)
        return prompt

    @field_validator("steering", mode="before")
    @classmethod
    def _steering_of_a_known_kind(cls, steering: Any) -> Any:
        if not isinstance(steering, list | tuple):
            raise ValueError("needs a list of mappings, each with kind")
        if any(isinstance(one, dict) and one.get("kind") == "subspace-removal" for one in steering):
            raise ValueError("a subspace is given as a file, with --subspace, and not in a method")
        return tuple(one if isinstance(one, BaseModel) else parse_steering(one) for one in steering)

    @field_validator("layers", mode="before")
    @classmethod
    def _layers_are_spelled_right(cls, layers: Any) -> Layers:
        return checked_layers(layers)

    @model_validator(mode="after")
    def _parts_go_together(self) -> "Method":
        if self.heads != "apart" and self.read != "head-output":
            raise ValueError(f"heads = {self.heads!r} goes with read = 'head-output', not with {self.read!r}")
        if self.heads == "shared-weights" and self.pooling != "last":
            raise ValueError("heads = 'shared-weights' goes with pooling = 'last': it is the last token's attention")
        # Refuses a prompt that has no place for what steering adds.
        for template in self.steered_templates:
            if self.pooling == "second-copy" and not is_twofold(template):
                raise ValueError(f"pooling = 'second-copy' needs a prompt with two slots, and {template!r} has one")
        return self

    @property
    def templates(self) -> tuple[str, ...]:
        """The prompts' templates; more than one is an ensemble whose vectors are averaged."""
        return tuple(template_of(p) for p in ((self.prompt,) if isinstance(self.prompt, str) else self.prompt))

    @property
    def steered_templates(self) -> tuple[str, ...]:
        """The templates with what steering adds to them."""
        return tuple(self._as_steered(template) for template in self.templates)

    def _as_steered(self, template: str) -> str:
        """Returns the template with the placeholder that token prepending writes to."""
        if any(isinstance(one, TokenPrepending) for one in self.steering):
            return with_placeholder(template)
        if PLACEHOLDER in template:
            raise ValueError(
                f"prompt {template!r} has {PLACEHOLDER}, which goes with steering of kind token-prepending"
            )
        return template

    def resolve(self, shape: BackboneShape) -> ResolvedMethod:
        """Returns this method with its blocks numbered for a model of ``shape``.

        Raises:
            MethodError: a block that the model does not have, or steering that comes too late to be seen.
        """
        try:
            layers = resolve_layers(self.layers, shape)
            steering = tuple(one.resolve(shape) for one in self.steering)
        except ValueError as problem:
            raise MethodError(f"method {self.name}: {problem}") from None
        seen_at = "shared-weights" if self.heads == "shared-weights" else self.read
        for one in steering:
            if not one.is_before(seen_at, layers[-1]):
                raise MethodError(
                    f"method {self.name}: {one.kind} in block {max(one.blocks)} comes after the last thing read, "
                    f"{self.read} in block {layers[-1]}; steer in an earlier block, or read a later one"
                )
        return ResolvedMethod(
            name=self.name,
            prompts=self.steered_templates,
            read=self.read,
            layers=layers,
            combine=self.combine,
            pooling=self.pooling,
            heads=self.heads,
            sentence_normalization=self.sentence_normalization,
            steering=steering,
        )
