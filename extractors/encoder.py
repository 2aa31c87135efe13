"""Texts in, float32 [N, D] out, the same vector whatever the batch.

Rows run end to end, without padding, where the model's attention can be told where each ends; elsewhere side by side,
padded on the right and without a mask.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from extractors.anatomy import Site
from extractors.backbone import Attention, Dtype, choose_device, choose_dtype, load_backbone
from extractors.batch import Batch, batches, end_to_end, side_by_side
from extractors.errors import MethodError, RowTooLarge, TextError
from extractors.heads import group_mean, last_token_attention, unwatchable
from extractors.hooks import reading, writing
from extractors.inputs import TokenIds
from extractors.memory import BatchTooLarge, naming_batch
from extractors.method import Method, ResolvedMethod
from extractors.packed import Prefix, run_packed, run_prefix
from extractors.plan import Plan, plan
from extractors.pooling import Extents, flat, pool
from extractors.steer import steered
from extractors.steering import ContrastivePrompting, KeyValueSlot
from extractors.subspace import Subspace, load_subspace

# Tokens a batch, padding included: large enough to fill the device, small enough for its memory.
DEFAULT_TOKEN_BUDGET = {"cpu": 2048, "cuda": 32768}
# Tokens that a prompt must begin with for running them once to pay.
SHORTEST_PREFIX = 3
# Threads may have encoders of their own, or share one: hooks and transformers' table of attentions are for one pass.
_ONE_AT_A_TIME = threading.Lock()
# Around a forward pass, given the places of its rows and how many tokens it runs.
_Announced = Callable[[np.ndarray, int], contextlib.AbstractContextManager[None]]


class Encoder:
    """A frozen model that reads one method's vectors. Threads may share one or have their own; they take turns.

    >>> Encoder("Qwen/Qwen3-8B", "aligned-wva-futureeol").encode(["Bonjour", "Hello"]).shape
    (2, 4096)
    """

    def __init__(
        self,
        model: str,
        method: str | Method | ResolvedMethod = "va",
        *,
        revision: str | None = None,
        max_length: int | None = None,
        subspaces: Sequence[str | Subspace] = (),
        subspace_strength: float = 1.0,
        allow_subspace_mismatch: bool = False,
        dtype: Dtype = "auto",
        device: str = "auto",
        attention: Attention = "auto",
        token_budget: int | None = None,
    ) -> None:
        loaded = [load_subspace(one) if isinstance(one, str) else one for one in subspaces]
        planned = plan(model, method, revision, max_length, loaded, subspace_strength, allow_subspace_mismatch)
        self._load(planned, loaded, dtype, device, attention, token_budget)

    @classmethod
    def from_plan(
        cls,
        planned: Plan,
        subspaces: Sequence[Subspace] = (),
        *,
        dtype: Dtype = "auto",
        device: str = "auto",
        attention: Attention = "auto",
        token_budget: int | None = None,
    ) -> "Encoder":
        """Loads the weights for a plan that was made (and perhaps sent from another machine) with these subspaces."""
        encoder = cls.__new__(cls)
        encoder._load(planned, subspaces, dtype, device, attention, token_budget)
        return encoder

    def _load(
        self,
        planned: Plan,
        subspaces: Sequence[Subspace],
        dtype: Dtype,
        device: str,
        attention: Attention,
        token_budget: int | None,
    ) -> None:
        self.device = choose_device(device)
        self.method = planned.method
        number_format = choose_dtype(dtype, self.device.type)
        blocks = self.method.blocks_run
        self.backbone = load_backbone(planned.source, number_format, self.device, attention, blocks)
        self.tokenizer = planned.tokenizer
        self.width = planned.width
        self.removals = [one for one in subspaces if not one.is_in_blocks]
        self._bases = {
            one.sha256: {block: _on_device(basis, self.device) for block, basis in one.bases.items()}
            for one in subspaces
            if one.is_in_blocks
        }
        self._read_width = planned.read_width
        # Tokens of all forward passes so far, padding included, and how many of them were padding.
        self.tokens_run = self.padding_run = 0
        self.token_budget = token_budget or DEFAULT_TOKEN_BUDGET[self.device.type]
        self._packs = self._rows_can_stand_end_to_end()
        self._prefix_ids = [self._reusable_prefix(prompt) for prompt in self.method.prompts]
        self._prefixes: dict[int, Prefix] = {}
        self._last_mlp = self._mlp_for_last_tokens_alone()
        self._sites = {layer: self.backbone.site(self.method.read, layer) for layer in self.method.layers}

    def _mlp_for_last_tokens_alone(self) -> tuple[Site, Site] | None:
        """The MLP of the last block run, when nothing but the last token's state behind it is read."""
        method, backbone = self.method, self.backbone
        reads_state = method.read in ("hidden", "block-output") and method.pooling == "last"
        return backbone.mlp(method.layers[-1]) if reads_state and backbone.is_plain_stack else None

    @property
    def _shares_weights(self) -> bool:
        """Whether weights are averaged over the heads of a group; with one head in each, they are as they are."""
        backbone = self.backbone
        return self.method.heads == "shared-weights" and backbone.query_heads != backbone.value_heads

    def _rows_can_stand_end_to_end(self) -> bool:
        """Whether attention can be told where each ends, nothing else mixes tokens, and nothing needs the rows apart.

        Raises:
            MethodError: the method needs to stand in for attention in a block where that is impossible.
        """
        method, backbone = self.method, self.backbone
        slots = [block for one in method.steering if isinstance(one, KeyValueSlot) for block in one.blocks]
        needed = [*slots, *(method.layers if self._shares_weights else ())]
        takes_masks = backbone.config._attn_implementation in ("sdpa", "eager")
        if not needed and not (backbone.is_plain_stack and takes_masks):
            return False
        with _ONE_AT_A_TIME:
            reasons = unwatchable(backbone)
        for block in needed:
            if block in reasons:
                raise MethodError(
                    f"method {method.name!r} works on the attention of block {block}, and cannot with model type "
                    f"{backbone.config.model_type!r} and attention {backbone.config._attn_implementation!r}: "
                    f"{reasons[block]}. Take a method without a key-value slot and without shared weights"
                )
        return not needed and not reasons

    def _reusable_prefix(self, prompt: str) -> np.ndarray | None:
        """The ids that are run once for all texts; None where the method reads what they turn into."""
        if not self._packs or self.method.pooling not in ("last", "mean-text", "second-copy"):
            return None
        ids = self.tokenizer.prefix(prompt)
        return ids if len(ids) >= SHORTEST_PREFIX else None

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Embeds texts.

        Returns:
            float32 [N, D], row i for text i; [0, D] for no texts.

        Raises:
            TextError: the first text that cannot be embedded (blank, invalid Unicode), by its position.
            MethodError: a subspace that needs to know the texts' languages.
        """
        rows: list[list[TokenIds]] = []
        for position, row in enumerate(self.tokenizer.tokenize(texts)):
            for ids in row:
                if isinstance(ids, TextError):
                    raise TextError(ids.code, f"text {position}: {ids}")
            rows.append(row)  # type: ignore[arg-type]
        return self.encode_ids(rows)

    def encode_ids(
        self,
        rows: Sequence[Sequence[TokenIds]],
        languages: Sequence[str] | None = None,
        about_to: Callable[[list[int]], None] | None = None,
    ) -> np.ndarray:
        """Embeds tokenized texts: ``rows[i][p]`` is text i in prompt p, then in the auxiliary prompts.

        Args:
            languages: of the texts, for subspaces with a basis a language.
            about_to: called before each forward pass with the rows that are in it.

        Returns:
            float32 [N, D].

        Raises:
            MethodError: a subspace needs the languages, or does not know one of them.
            RowTooLarge: the device's memory does not suffice for a text alone.
        """
        distinct, places = _distinct(rows)
        with _ONE_AT_A_TIME:
            vectors_ND = self._read_in_memory(distinct, places, about_to)[places]
        for subspace in self.removals:
            vectors_ND = subspace.apply(vectors_ND, languages)
        return vectors_ND

    def _read_in_memory(
        self, rows: list[Sequence[TokenIds]], places: np.ndarray, about_to: Callable[[list[int]], None] | None
    ) -> np.ndarray:
        """Reads; when memory runs out, begins again with batches half as large, which are kept to from then on."""

        @contextlib.contextmanager
        def announced(batch: np.ndarray, tokens: int) -> Iterator[None]:
            if about_to is not None:
                about_to(np.flatnonzero(np.isin(places, batch)).tolist())
            with naming_batch(batch, tokens):
                yield

        while True:
            try:
                return self._read(rows, announced)
            except BatchTooLarge as problem:
                if len(problem.places) == 1:
                    raise RowTooLarge(int(np.flatnonzero(places == problem.places[0])[0]), problem.tokens) from None
                self.token_budget = problem.tokens // 2
            # Outside, where the exception no longer holds what the pass had allocated.
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def _read(self, rows: Sequence[Sequence[TokenIds]], announced: _Announced) -> np.ndarray:
        """Returns what the method reads, averaged over its prompts."""
        prompts = len(self.method.prompts)
        auxiliary = [
            self._contrast_vectors([row[prompts + place] for row in rows], one, announced)
            for place, one in enumerate(one for one in self.method.steering if isinstance(one, ContrastivePrompting))
        ]
        # On the device until all batches are under way: a copy would wait for each.
        done: list[tuple[np.ndarray, torch.Tensor]] = []
        for prompt in range(prompts):
            for prefix, chosen, column in self._by_prefix([row[prompt] for row in rows], prompt, announced):
                for inside, batch in self._batches(column, prefix):
                    places = chosen[inside]
                    aside = [vectors_ND[places].to(self.device) for vectors_ND in auxiliary]
                    with announced(places, batch.ids.numel()):
                        done.append((places, self._forward(batch, aside, prefix)))
        vectors = np.zeros((len(rows), self._read_width), dtype=np.float32)
        for places, vectors_BD in done:
            vectors[places] += vectors_BD.cpu().numpy() / prompts
        return vectors

    def _by_prefix(
        self, column: list[TokenIds], prompt: int, announced: _Announced
    ) -> Iterator[tuple[Prefix | None, np.ndarray, list[TokenIds]]]:
        """Parts the rows by whether they begin with the prompt's prefix, which those that do then lack.

        Yields the prefix or None, the rows' places in the column, and the rows.
        """
        for places in self._alike_in_positions(column):
            ids = None if self._is_long(column[places[0]]) else self._prefix_ids[prompt]
            begins = np.array([ids is not None and column[i].begins_with(ids) for i in places], dtype=bool)
            if ids is not None and begins.any() and prompt not in self._prefixes:
                # On behalf of the first row that needs it.
                with announced(places[begins][:1], len(ids)):
                    self._prefixes[prompt] = run_prefix(self.backbone, torch.from_numpy(ids).to(self.device))
            prefix = self._prefixes.get(prompt) if begins.any() else None
            if prefix is None:
                yield None, places, [column[i] for i in places]
                continue
            yield prefix, places[begins], [column[i].after(prefix.length) for i in places[begins]]
            if not begins.all():
                yield None, places[~begins], [column[i] for i in places[~begins]]

    def _alike_in_positions(self, rows: Sequence[TokenIds]) -> list[np.ndarray]:
        """Returns the places of rows that may share a batch: longrope turns the whole call to other frequencies."""
        is_long = np.array([self._is_long(row) for row in rows], dtype=bool)
        return [places for places in (np.flatnonzero(~is_long), np.flatnonzero(is_long)) if len(places)]

    def _is_long(self, row: TokenIds) -> bool:
        limit = self.backbone.longest_short
        return limit is not None and len(row.ids) > limit

    def _contrast_vectors(
        self, rows: Sequence[TokenIds], steering: ContrastivePrompting, announced: _Announced
    ) -> torch.Tensor:
        """Returns the last token's head outputs in the auxiliary prompt, float32 [N, H d_h]."""
        (block,) = steering.blocks
        vectors_ND = torch.empty((len(rows), self.backbone.site("head-output", block).width))
        for alike in self._alike_in_positions(rows):
            for inside, batch in self._batches([rows[i] for i in alike]):
                places = alike[inside]
                with announced(places, batch.ids.numel()):
                    vectors_ND[places] = self._last_head_outputs(batch, block).cpu()
        return vectors_ND

    def _batches(self, rows: list[TokenIds], prefix: Prefix | None = None) -> Iterator[tuple[np.ndarray, Batch]]:
        """Yields batches, with the places of their rows; the prefix is what the rows lack."""
        for places in batches([len(row.ids) for row in rows], self.token_budget, padded=not self._packs):
            chosen = [rows[i] for i in places]
            if self._packs:
                yield places, end_to_end(chosen, self.device, prefix.length if prefix else 0)
            else:
                yield places, side_by_side(chosen, self.device)

    @torch.inference_mode()
    def _last_head_outputs(self, batch: Batch, block: int) -> torch.Tensor:
        found: list[torch.Tensor] = []
        site = self.backbone.site("head-output", block)
        with reading({block: site}, lambda _, z: found.append(pool(z, batch.extents, "last"))):
            self._run(batch)
        return found[0]

    @torch.inference_mode()
    def _forward(self, batch: Batch, auxiliary: Sequence[torch.Tensor], prefix: Prefix | None) -> torch.Tensor:
        pooled: dict[int, torch.Tensor] = {}
        # Steering goes on first, so that a tensor that is both changed and read is read as changed.
        steering = steered(self.backbone, self.method.steering, batch.extents, auxiliary, self._bases)
        with steering, self._reading(batch.extents, pooled):
            self._run(batch, prefix)
        layers = [pooled[layer] for layer in self.method.layers]
        if self.method.combine == "concat":
            return torch.cat(layers, dim=1)
        return torch.stack(layers).mean(dim=0)

    def _run(self, batch: Batch, prefix: Prefix | None = None) -> None:
        self.tokens_run += batch.ids.numel()
        self.padding_run += batch.padding
        if batch.positions is None:
            self.backbone.model(input_ids=batch.ids, use_cache=False)
        else:
            run_packed(self.backbone, batch.ids, batch.positions, batch.lengths, prefix)

    @contextlib.contextmanager
    def _reading(self, extents: Extents, pooled: dict[int, torch.Tensor]) -> Iterator[None]:
        """Fills ``pooled`` with a vector [B, width] a block while one forward pass runs in the body."""
        method, backbone = self.method, self.backbone

        def take(layer: int, tokens: torch.Tensor) -> None:
            vectors_BD = pool(tokens, extents, method.pooling)
            if method.heads == "group-mean":
                vectors_BD = group_mean(vectors_BD, backbone.query_heads, backbone.value_heads)
            # With shared weights the vector is there already, and the site only tells that the block is done.
            pooled.setdefault(layer, vectors_BD)

        with contextlib.ExitStack() as stack:
            if self._last_mlp is not None:
                stack.enter_context(_for_last_tokens_alone(*self._last_mlp, extents))
            if self._shares_weights:
                modules = {backbone.attention(layer): layer for layer in method.layers}
                kind = backbone.config._attn_implementation
                stack.enter_context(last_token_attention(modules, kind, extents.length, pooled.__setitem__))
            stack.enter_context(reading(self._sites, take))
            yield


def _distinct(rows: Sequence[Sequence[TokenIds]]) -> tuple[list[Sequence[TokenIds]], np.ndarray]:
    """Returns the rows without repeats, and where among them each row is: equal texts are run once."""
    numbers: dict[tuple[Any, ...], int] = {}
    first: list[Sequence[TokenIds]] = []
    places = np.empty(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        key = tuple((one.ids.tobytes(), one.text_begin, one.text_end, one.placeholder) for one in row)
        places[i] = numbers.setdefault(key, len(first))
        if places[i] == len(first):
            first.append(row)
    return first, places


@contextlib.contextmanager
def _for_last_tokens_alone(before: Site, after: Site, extents: Extents) -> Iterator[None]:
    """Runs what is between two sites on each row's last token only; for the others it gives zeros."""
    shape: list[torch.Size] = []

    def last_tokens(states: torch.Tensor) -> torch.Tensor:
        shape.append(states.shape)
        return flat(states)[extents.last][None]

    def in_place(outputs_1BD: torch.Tensor) -> torch.Tensor:
        whole = outputs_1BD.new_zeros(shape[0])
        flat(whole)[extents.last] = outputs_1BD[0]
        return whole

    with writing(before, last_tokens), writing(after, in_place):
        yield


def _on_device(basis_Dq: np.ndarray, device: torch.device) -> torch.Tensor:
    """Returns a basis as a tensor; on a CPU the array itself, which may be shared memory that no one may write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(basis_Dq).to(device)
