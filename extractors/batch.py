"""Tokenized rows as the input of one forward pass."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from extractors.inputs import TokenIds
from extractors.pooling import Extents

# Of a batch's tokens, what may be padding before it ends: about what starting another one costs.
LARGEST_PADDING = 1 / 16


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows end to end without padding, ids [1, T], or side by side, ids [B, N], padded on the right.

    Attributes:
        positions: of each token in its row, as ids; None where the model counts them itself.
        lengths: of the rows.
    """

    ids: Tensor
    positions: Tensor | None
    extents: Extents
    lengths: list[int]

    @property
    def padding(self) -> int:
        """How many tokens are padding."""
        return self.ids.numel() - sum(self.lengths)


def end_to_end(rows: Sequence[TokenIds], device: torch.device, before: int = 0) -> Batch:
    """Returns the rows as one sequence, in which attention must be told where a row ends.

    Args:
        before: how many tokens the model has seen of each row already.
    """
    lengths = [len(row.ids) for row in rows]
    ids_T = torch.from_numpy(np.concatenate([row.ids for row in rows]).astype(np.int64))
    position_T = torch.cat([torch.arange(before, before + length) for length in lengths])
    start_B = np.cumsum([0, *lengths[:-1]])
    return Batch(ids_T[None].to(device), position_T[None].to(device), _extents(rows, start_B, device), lengths)


def side_by_side(rows: Sequence[TokenIds], device: torch.device) -> Batch:
    """Returns the rows as a right-padded batch, to be run without an attention mask.

    With causal attention a real token never sees the padding behind it. A row is padded with its own last token:
    attention kernels multiply what lies behind by zero instead of leaving it out, and so a token of whose embedding
    nothing is known (NaN, say) could reach the row after all.
    """
    lengths = [len(row.ids) for row in rows]
    ids_BN = torch.empty((len(rows), max(lengths)), dtype=torch.int64)
    for row, out_N in zip(rows, ids_BN, strict=True):
        out_N[: len(row.ids)] = torch.from_numpy(row.ids)
        out_N[len(row.ids) :] = int(row.ids[-1])
    start_B = np.arange(len(rows)) * max(lengths)
    return Batch(ids_BN.to(device), None, _extents(rows, start_B, device), lengths)


def _extents(rows: Sequence[TokenIds], start_B: np.ndarray, device: torch.device) -> Extents:
    counts = [(len(row.ids), row.text_begin, row.text_end, row.placeholder) for row in rows]
    table = torch.from_numpy(np.column_stack([start_B, counts]).astype(np.int64)).to(device)
    return Extents(*table.unbind(dim=1))


def batches(lengths: Sequence[int], budget: int, padded: bool) -> Iterator[np.ndarray]:
    """Yields batches of row indices, longest rows first, of at most ``budget`` tokens, padding included.

    The longest first, so that memory runs out at once or never, and so that rows of like length share a batch. A row
    longer than the budget is a batch of its own.

    Args:
        padded: whether rows will stand side by side; a batch then also ends before its padding is more than
            ``LARGEST_PADDING`` of the budget.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    begin = 0
    while begin < len(order):
        longest = real = lengths[order[begin]]
        end = begin + 1
        while end < len(order):
            real += lengths[order[end]]
            tokens = (end - begin + 1) * longest if padded else real
            if tokens > budget or tokens - real > budget * LARGEST_PADDING:
                break
            end += 1
        yield order[begin:end]
        begin = end
