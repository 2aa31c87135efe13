"""Texts in, float32 [N, D] out, the same vector whatever the batch.

Batches are right-padded and run without an attention mask: with causal attention a real token never sees the padding
behind it, positions count from 0, and the last token is found by length.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from extractors.anatomy import Site
from extractors.backbone import Attention, Dtype, choose_device, choose_dtype, load_backbone
from extractors.errors import RowTooLarge, TextError
from extractors.heads import group_mean, last_token_attention
from extractors.hooks import reading, writing
from extractors.inputs import TokenIds, token_budget_batches
from extractors.memory import BatchTooLarge, naming_batch
from extractors.method import Method, ResolvedMethod
from extractors.plan import Plan, plan
from extractors.pooling import Extents, pool
from extractors.prefix import Prefix, after_prefix, run_prefix
from extractors.steer import steered
from extractors.steering import ContrastivePrompting, KeyValueSlot
from extractors.subspace import Subspace, load_subspace

# Tokens a batch, padding included: large enough to fill the device, small enough for its memory.
DEFAULT_TOKEN_BUDGET = {"cpu": 1024, "cuda": 32768}
# Tokens that a prompt must begin with for running them once to pay.
SHORTEST_PREFIX = 3
# Around a forward pass, given the places of its rows and their lengths.
_Announced = Callable[[np.ndarray, list[int]], contextlib.AbstractContextManager[None]]


class Encoder:
    """A frozen model that reads one method's vectors.

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
        self._prefix_ids = [self._reusable_prefix(prompt) for prompt in self.method.prompts]
        self._prefixes: dict[int, Prefix | None] = {}
        self._last_mlp = self._mlp_for_last_tokens_alone()
        self._sites = {layer: self.backbone.site(self.method.read, layer) for layer in self.method.layers}

    def _mlp_for_last_tokens_alone(self) -> Site | None:
        """The MLP of the last block run, when nothing but the last token's state behind it is read."""
        method, backbone = self.method, self.backbone
        reads_state = method.read in ("hidden", "block-output") and method.pooling == "last"
        return backbone.mlp_input(method.layers[-1]) if reads_state and backbone.is_plain_stack else None

    def _reusable_prefix(self, prompt: str) -> np.ndarray | None:
        """The ids that are run once for all texts; None where the method reads or changes what they turn into."""
        method, backbone = self.method, self.backbone
        reads_all = method.pooling not in ("last", "mean-text", "second-copy")
        changes_all = any(isinstance(one, KeyValueSlot) for one in method.steering)
        config = backbone.config
        takes_masks = config._attn_implementation in ("sdpa", "eager") and not hasattr(config, "attention_chunk_size")
        if reads_all or changes_all or method.heads == "shared-weights" or not takes_masks:
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
        vectors_ND = self._read_in_memory(distinct, places, about_to)[places]
        for subspace in self.removals:
            vectors_ND = subspace.apply(vectors_ND, languages)
        return vectors_ND

    def _read_in_memory(
        self, rows: list[Sequence[TokenIds]], places: np.ndarray, about_to: Callable[[list[int]], None] | None
    ) -> np.ndarray:
        """Reads; when memory runs out, begins again with batches half as large, which are kept to from then on."""

        @contextlib.contextmanager
        def announced(batch: np.ndarray, lengths: list[int]) -> Iterator[None]:
            if about_to is not None:
                about_to(np.flatnonzero(np.isin(places, batch)).tolist())
            with naming_batch(batch, lengths):
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
            for prefix, chosen, column in self._by_prefix([row[prompt] for row in rows], prompt):
                for batch in token_budget_batches([len(row.ids) for row in column], self.token_budget):
                    places = chosen[batch]
                    aside = [vectors_ND[places].to(self.device) for vectors_ND in auxiliary]
                    with announced(places, [len(column[i].ids) for i in batch]):
                        done.append((places, self._forward([column[i] for i in batch], aside, prefix)))
        vectors = np.zeros((len(rows), self._read_width), dtype=np.float32)
        for places, vectors_BD in done:
            vectors[places] += vectors_BD.cpu().numpy() / prompts
        return vectors

    def _by_prefix(
        self, column: list[TokenIds], prompt: int
    ) -> Iterator[tuple[Prefix | None, np.ndarray, list[TokenIds]]]:
        """Parts the rows by whether they begin with the prompt's prefix, which those that do then lack.

        Yields the prefix or None, the rows' places in the column, and the rows.
        """
        for places in self._alike_in_positions(column):
            ids = None if self._is_long(column[places[0]]) else self._prefix_ids[prompt]
            begins = np.array([ids is not None and column[i].begins_with(ids) for i in places], dtype=bool)
            if ids is not None and begins.any() and prompt not in self._prefixes:
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
            for batch in token_budget_batches([len(rows[i].ids) for i in alike], self.token_budget):
                places = alike[batch]
                with announced(places, [len(rows[i].ids) for i in places]):
                    vectors_ND[places] = self._last_head_outputs([rows[i] for i in places], block).cpu()
        return vectors_ND

    @torch.inference_mode()
    def _last_head_outputs(self, batch: Sequence[TokenIds], block: int) -> torch.Tensor:
        ids_BN, extents = self._padded(batch)
        found: list[torch.Tensor] = []
        site = self.backbone.site("head-output", block)
        with reading({block: site}, lambda _, z_BND: found.append(pool(z_BND, extents, "last"))):
            self.backbone.model(input_ids=ids_BN, use_cache=False)
        return found[0]

    @torch.inference_mode()
    def _forward(
        self, batch: Sequence[TokenIds], auxiliary: Sequence[torch.Tensor], prefix: Prefix | None
    ) -> torch.Tensor:
        ids_BN, extents = self._padded(batch)
        pooled: dict[int, torch.Tensor] = {}
        # Steering goes on first, so that a tensor that is both changed and read is read as changed.
        steering = steered(self.backbone, self.method.steering, extents, auxiliary, self._bases)
        with steering, self._reading(extents, pooled):
            if prefix is None:
                self.backbone.model(input_ids=ids_BN, use_cache=False)
            else:
                positions_1N = prefix.length + torch.arange(ids_BN.shape[1], device=self.device)[None]
                with after_prefix(self.backbone, prefix):
                    self.backbone.model(input_ids=ids_BN, position_ids=positions_1N, use_cache=False)
        layers = [pooled[layer] for layer in self.method.layers]
        if self.method.combine == "concat":
            return torch.cat(layers, dim=1)
        return torch.stack(layers).mean(dim=0)

    def _padded(self, batch: Sequence[TokenIds]) -> tuple[torch.Tensor, Extents]:
        ids_BN, extents = _right_padded(batch, self.device)
        self.tokens_run += ids_BN.numel()
        self.padding_run += ids_BN.numel() - sum(len(row.ids) for row in batch)
        return ids_BN, extents

    @contextlib.contextmanager
    def _reading(self, extents: Extents, pooled: dict[int, torch.Tensor]) -> Iterator[None]:
        """Fills ``pooled`` with a vector [B, width] a block while one forward pass runs in the body."""
        method, backbone = self.method, self.backbone
        grouped = backbone.query_heads != backbone.value_heads

        def take(layer: int, tokens_BND: torch.Tensor) -> None:
            vectors_BD = pool(tokens_BND, extents, method.pooling)
            if method.heads == "group-mean":
                vectors_BD = group_mean(vectors_BD, backbone.query_heads, backbone.value_heads)
            # With shared weights the vector is there already, and the site only tells that the block is done.
            pooled.setdefault(layer, vectors_BD)

        with contextlib.ExitStack() as stack:
            if self._last_mlp is not None:
                # Added to the whole batch as it is, it leaves only the last tokens right, and only they are read.
                stack.enter_context(writing(self._last_mlp, functools.partial(_last_tokens, extents=extents)))
            if method.heads == "shared-weights" and grouped:
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


def _last_tokens(state_BND: torch.Tensor, extents: Extents) -> torch.Tensor:
    """Returns [B, 1, D]."""
    rows = torch.arange(len(state_BND), device=state_BND.device)
    return state_BND[rows, extents.length - 1][:, None]


def _on_device(basis_Dq: np.ndarray, device: torch.device) -> torch.Tensor:
    """Returns a basis as a tensor; on a CPU the array itself, which may be shared memory that no one may write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(basis_Dq).to(device)


def _right_padded(batch: Sequence[TokenIds], device: torch.device) -> tuple[torch.Tensor, Extents]:
    """Returns ids int64 [B, N] and the extents.

    A row is padded with its own last token: attention kernels multiply what lies behind by zero instead of leaving it
    out, and so a token of whose embedding nothing is known (NaN, say) could reach the row after all.
    """
    ids_BN = torch.empty((len(batch), max(len(row.ids) for row in batch)), dtype=torch.int64)
    for row, out_N in zip(batch, ids_BN, strict=True):
        out_N[: len(row.ids)] = torch.from_numpy(row.ids)
        out_N[len(row.ids) :] = int(row.ids[-1])
    counts = torch.tensor(
        [(len(row.ids), row.text_begin, row.text_end, row.placeholder) for row in batch], dtype=torch.int64
    )
    return ids_BN.to(device), Extents(*counts.to(device).unbind(dim=1))
