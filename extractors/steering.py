"""What may be changed in a forward pass while it runs: the kinds of steering and their parameters.

The changes themselves are in the steer_* files.
"""

from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from extractors.errors import MethodError, nearest
from extractors.layers import PAPER_PREPENDING, BackboneShape, Layers, checked_layers, resolve_layers
from extractors.prompts import PLACEHOLDER, template_of
from extractors.validated import parse

# What happens in a block, in order. A change that would come after the last thing read would never be seen. Activations
# come first: in families with a parallel residual they do not depend on their block's attention.
_ORDER = (
    "block-input",
    "query",
    "key",
    "value",
    "activation",
    "shared-weights",
    "attention",
    "head-output",
    "attention-output",
    "block-output",
    "hidden",
)
Self = TypeVar("Self", bound="_Kind")


class _Kind(BaseModel):
    """The parameters of one kind of steering.

    Attributes:
        layers: the blocks it works in, as for a method.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    stage: ClassVar[str]
    takes_no_layers: ClassVar[bool] = False

    layers: Layers

    @field_validator("layers", mode="before")
    @classmethod
    def _spelled_right(cls, layers: Any) -> Layers:
        return checked_layers(layers, none=cls.takes_no_layers)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks it works in, once :meth:`resolve` has numbered them."""
        assert not isinstance(self.layers, str)
        return self.layers

    @property
    def auxiliary_prompts(self) -> tuple[str, ...]:
        """Templates that each text is put into besides the method's prompts."""
        return ()

    def resolve(self: Self, shape: BackboneShape) -> Self:
        """Returns this with its blocks numbered for a model of ``shape``.

        Raises:
            MethodError: a block that the model does not have.
        """
        return self.model_copy(update={"layers": resolve_layers(self.layers, shape) if self.layers else ()})

    def is_before(self, read: str, block: int) -> bool:
        """Whether all of it can be seen in what is read in ``block``.

        Args:
            read: as in a method, or "shared-weights" for values under shared attention weights.
        """
        last = (max(self.blocks, default=-1), _ORDER.index(self.stage))
        return last <= (block, _ORDER.index(read))


class ContrastivePrompting(_Kind):
    """CP (arXiv 2505.12831): the last token's head outputs z become their difference to an auxiliary prompt's.

    Replaced, not added: z <- alpha (z - u) for ``scaled`` (CP-NS); for ``norm-restored`` (CP-NR) the difference gets
    the length that z had. u is z in the same block at the last token of the auxiliary prompt.

    Attributes:
        auxiliary: the prompt for what is to be removed.
        layers: one block; the paper's, for Llama-2-7B and PromptEOL, is 4 of 32 (0-based).
        alpha: the paper's 2; its published code says 0.5. Of no account for ``norm-restored``.
    """

    kind: Literal["contrastive-prompting"] = "contrastive-prompting"
    stage: ClassVar[str] = "head-output"

    auxiliary: str = "irrelevant-information"
    layers: Layers = "0.14"
    scaling: Literal["scaled", "norm-restored"] = "scaled"
    alpha: float = Field(2.0, allow_inf_nan=False)

    @field_validator("auxiliary")
    @classmethod
    def _known(cls, auxiliary: str) -> str:
        if PLACEHOLDER in auxiliary:
            raise ValueError(f"{PLACEHOLDER} has no place in an auxiliary prompt: nothing is written to it there")
        return template_of(auxiliary)

    @property
    def auxiliary_prompts(self) -> tuple[str, ...]:
        """The one template."""
        return (self.auxiliary,)

    def resolve(self, shape: BackboneShape) -> "ContrastivePrompting":
        """Returns this with its block numbered.

        Raises:
            ValueError: more than one block.
        """
        resolved = super().resolve(shape)
        if len(resolved.blocks) != 1:
            raise ValueError(f"contrastive-prompting works in one block, and layers = {self.layers!r} is several")
        return resolved


class TokenPrepending(_Kind):
    """TP (arXiv 2412.11556): a token before the text's opening quote takes the last token's state, so that the text
    can attend to what stands behind it.

    Attributes:
        layers: before these blocks the last token's state is copied to the placeholder; none, and it keeps its own.
            ``paper`` means what the paper's code does for its backbones, such as blocks 1-6 of Llama-2-7B's 32
            (0-based), one less than its formula; elsewhere blocks 1 to a fifth of the depth.
        seed: of the placeholder's embedding, which is drawn from a standard normal distribution.
    """

    kind: Literal["token-prepending"] = "token-prepending"
    stage: ClassVar[str] = "block-input"
    takes_no_layers: ClassVar[bool] = True

    layers: Layers = "paper"
    seed: int = Field(0, ge=0)

    def resolve(self, shape: BackboneShape) -> "TokenPrepending":
        """Returns this with its blocks numbered."""
        if self.layers != "paper":
            return super().resolve(shape)
        fifth = range(1, max(2, shape.blocks // 5 + 1))
        return self.model_copy(update={"layers": PAPER_PREPENDING.get(shape, tuple(fifth))})


class KeyValueSlot(_Kind):
    """KV-Embedding (arXiv 2601.01046), a reading of its abstract, since no code is public: every token also attends
    to the last token's key and value, as to one more position.

    Attributes:
        layers: the blocks in which it does; the paper searches about a tenth of them, by intrinsic dimension.
        bias: added to the slot's attention score.
    """

    kind: Literal["key-value-slot"] = "key-value-slot"
    stage: ClassVar[str] = "attention"

    layers: Layers = "0.5-0.6"
    bias: float = Field(0.0, allow_inf_nan=False)


class SubspaceRemoval(_Kind):
    """PRSR (arXiv 2610.23807): h <- h - c (h B) B^T on a block's output, with the bases of a fitted subspace.

    Attributes:
        layers: the blocks with a basis, up to the last one read.
        position: the last token, or every token of the text's second copy.
        strength: c; 1 removes, negative values amplify.
        sha256: of the subspace.
    """

    kind: Literal["subspace-removal"] = "subspace-removal"
    stage: ClassVar[str] = "block-output"

    position: Literal["last", "second-copy"] = "last"
    strength: float = Field(1.0, allow_inf_nan=False)
    sha256: str


Steering = ContrastivePrompting | TokenPrepending | KeyValueSlot | SubspaceRemoval
_KINDS: dict[str, type[Steering]] = {
    kind.model_fields["kind"].default: kind
    for kind in (ContrastivePrompting, TokenPrepending, KeyValueSlot, SubspaceRemoval)
}
# A subspace comes as a file of its own.
_IN_METHODS = [name for name, kind in _KINDS.items() if kind is not SubspaceRemoval]


def parse_steering(fields: Any) -> Steering:
    """Returns the steering that a mapping with ``kind`` describes.

    Raises:
        MethodError: no such kind, or wrong parameters.
    """
    kind = fields.get("kind") if isinstance(fields, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        hint = nearest(kind, _IN_METHODS) if isinstance(kind, str) else ""
        raise MethodError(f"steering {fields!r} needs a kind{hint}: {', '.join(_IN_METHODS)}")
    return parse(_KINDS[kind], fields, f"steering {kind}", MethodError)
