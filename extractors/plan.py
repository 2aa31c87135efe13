"""A model and a method fitted to each other, before any weight is loaded."""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from extractors.anatomy import Anatomy
from extractors.backbone import Source, find_model, load_tokenizer, skeleton
from extractors.errors import MethodError, ModelError
from extractors.inputs import PromptTokenizer, build_tokenizer
from extractors.layers import BackboneShape
from extractors.method import Method, ResolvedMethod
from extractors.methods import load_method
from extractors.steering import ContrastivePrompting, KeyValueSlot, SubspaceRemoval
from extractors.subspace import Subspace

DEFAULT_MAX_LENGTH = 512


@dataclasses.dataclass(frozen=True)
class Plan:
    """A model and a method fitted to each other, without the weights: cheap, plain data, and all that a driver needs.

    Attributes:
        read_width: the length of what the method reads; the vectors' length D, but for what a subspace makes of it.
        width: the vectors' length D.
        parameters: how many weights the decoder has.
        parameters_used: how many of them are loaded, up to the last block that is read.
        removals: hashes of the subspaces that are removed from finished vectors, in order.
    """

    source: Source
    method: ResolvedMethod
    tokenizer: PromptTokenizer
    read_width: int
    width: int
    parameters: int
    parameters_used: int
    shape: BackboneShape
    removals: tuple[str, ...] = ()

    @property
    def flops_per_token(self) -> int:
        """Multiplications and additions with the weights of the blocks, of which the last may be run in part only."""
        return 2 * (self.parameters_used - self.tokenizer.vocabulary * self.shape.hidden_size)

    def identity(self) -> dict[str, Any]:
        """Returns everything that shapes a vector but its number format, as JSON values."""
        vocabulary = f"{self.tokenizer.spec}{self.tokenizer.start_ids}"
        removals = {"removals": list(self.removals)} if self.removals else {}
        return {
            **self.source.identity,
            "tokenizer": f"sha256:{hashlib.sha256(vocabulary.encode()).hexdigest()}",
            "method": self.method.identity(),
            **removals,
            "width": self.width,
            "max_length": self.tokenizer.max_length,
        }

    def with_subspace(self, subspace: Subspace, strength: float = 1.0, allow_mismatch: bool = False) -> "Plan":
        """Returns this plan with a fitted subspace removed: in the blocks, or from what would be the finished vector.

        Args:
            strength: of the removal in the blocks; 1 removes, negative values amplify.
            allow_mismatch: take a subspace that was fitted for another model or method, if only its sizes fit.

        Raises:
            MethodError: it was fitted for something else, its sizes do not fit, or it comes too late to be seen.
        """
        if not allow_mismatch:
            self._refuse_foreign(subspace)
        if subspace.is_in_blocks:
            return dataclasses.replace(self, method=self._steered(subspace, strength))
        width = next(tensor for name, tensor in subspace.tensors.items() if name.endswith((".mean", ".basis"))).shape[0]
        if width != self.width:
            raise MethodError(f"the subspace is of vectors with {width} values, and these have {self.width}")
        removals = (*self.removals, subspace.sha256)
        return dataclasses.replace(self, width=subspace.width_after(self.width), removals=removals)

    def _refuse_foreign(self, subspace: Subspace) -> None:
        here, there = _what_it_fits(self.identity()), _what_it_fits(subspace.about)
        wrong = [f"{key} {there.get(key)!r}, not {here.get(key)!r}" for key in here if here[key] != there.get(key)]
        if wrong:
            raise MethodError(
                f"the subspace was fitted for {'; '.join(wrong)}. Fit one for this, or give "
                "--allow-subspace-mismatch to use it all the same"
            )

    def _steered(self, subspace: Subspace, strength: float) -> ResolvedMethod:
        method, bases = self.method, subspace.bases
        sizes = {basis.shape[0] for basis in bases.values()}
        if sizes != {self.shape.hidden_size} or max(bases) >= self.shape.blocks:
            raise MethodError(
                f"the subspace is for {max(bases) + 1} blocks of width {sorted(sizes)}, and the model has "
                f"{self.shape.blocks} of width {self.shape.hidden_size}"
            )
        position = steered_position(method)
        kinds = (
            SubspaceRemoval(layers=(block,), position=position, strength=strength, sha256=subspace.sha256)
            for block in sorted(bases)
        )
        blocks = tuple(one.layers[0] for one in kinds if one.is_before(method.read, method.layers[-1]))
        if not blocks:
            raise MethodError(
                f"the subspace begins at block {min(bases)}, after the last thing read, {method.read} in block "
                f"{method.layers[-1]}: it would change nothing. Fit one with an earlier --start-layer"
            )
        steering = SubspaceRemoval(layers=blocks, position=position, strength=strength, sha256=subspace.sha256)
        return dataclasses.replace(method, steering=(*method.steering, steering))


def _what_it_fits(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an encoder's identity that a subspace depends on; a method is what it does, whatever its name."""
    method = {key: value for key, value in identity["method"].items() if key not in ("name", "final_norm")}
    rest = {key: identity.get(key) for key in ("model", "revision", "tokenizer", "removals")}
    return {**rest, **{f"method's {key}": value for key, value in method.items()}}


def steered_position(method: ResolvedMethod) -> Literal["last", "second-copy"]:
    """Returns which tokens a subspace is fitted on and removed from.

    Raises:
        MethodError: the method pools tokens that are not steered.
    """
    if method.pooling == "last" or method.pooling == "second-copy":
        return method.pooling
    raise MethodError(
        f"method {method.name} pools {method.pooling}; in the blocks a subspace is removed from the last token or from "
        "a text's second copy. Fit it on the finished embedding instead: --place embedding"
    )


def plan(
    model: str,
    method: str | Method | ResolvedMethod = "va",
    revision: str | None = None,
    max_length: int | None = None,
    subspaces: Sequence[Subspace] = (),
    strength: float = 1.0,
    allow_mismatch: bool = False,
) -> Plan:
    """Finds the model, numbers the method's layers for it and builds the tokenizer; loads no weights.

    Args:
        model: hub id, local folder or GGUF file.
        method: a name from the table, a YAML file, or a method, resolved or not.
        max_length: in tokens, template included; by default 512, or what the model was made for if that is less.

        subspaces: what is removed, in order; for the other two see :meth:`Plan.with_subspace`.

    Raises:
        ModelError, MethodError: see their messages.
    """
    source = find_model(model, revision)
    anatomy = skeleton(source)
    if isinstance(method, str):
        method = load_method(method)
    resolved = method.resolve(anatomy.shape) if isinstance(method, Method) else method
    width = vector_width(anatomy, resolved)
    limit = anatomy.max_positions
    if limit is not None and max_length is not None and max_length > limit:
        raise ModelError(
            f"max length {max_length} is more than the {limit} positions of {model!r}; give at most {limit}"
        )
    length = max_length or min(DEFAULT_MAX_LENGTH, limit or DEFAULT_MAX_LENGTH)
    tokenizer = build_tokenizer(
        load_tokenizer(source),
        (*resolved.prompts, *resolved.auxiliary_prompts),
        anatomy.embedding_rows,
        length,
        limit,
        resolved.sentence_normalization,
    )
    planned = Plan(
        source=source,
        method=resolved,
        tokenizer=tokenizer,
        read_width=width,
        width=width,
        parameters=anatomy.parameters(),
        parameters_used=anatomy.parameters(used=resolved.blocks_run),
        shape=anatomy.shape,
    )
    for subspace in subspaces:
        planned = planned.with_subspace(subspace, strength, allow_mismatch)
    return planned


def vector_width(anatomy: Anatomy, method: ResolvedMethod) -> int:
    """Returns the vectors' length D.

    Raises:
        MethodError: the model's family cannot give what the method reads.
    """
    for one in method.steering:
        if isinstance(one, ContrastivePrompting):
            anatomy.site("head-output", one.blocks[0])
        if isinstance(one, KeyValueSlot):
            anatomy.attention(one.blocks[0])
    first, *_ = [anatomy.site(method.read, layer).width for layer in method.layers]
    return method.width(first if method.heads == "apart" else first * anatomy.value_heads // anatomy.query_heads)
