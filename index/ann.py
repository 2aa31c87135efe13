"""An exact index over vectors in blocks; faiss row numbers count the vectors in the order they were added.

Arrays in, arrays out. Scores: cosine and inner product are better when larger, squared Euclidean (l2) when smaller.
"""

from collections.abc import Iterable
from typing import Literal

import faiss
import numpy as np

from index.errors import VectorError

Metric = Literal["cosine", "ip", "l2"]
FACTORY = "Flat"


def as_rows(vectors: np.ndarray, metric: Metric) -> np.ndarray:
    """Returns a contiguous float32 copy [N, D], of unit length for cosine; the input is left as it is.

    Raises:
        VectorError: a value that is not finite, or for cosine a zero vector, by row.
    """
    rows = np.array(vectors, dtype=np.float32, order="C", ndmin=2)
    unusable = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if unusable.size:
        raise VectorError(f"vector {unusable[0]} has values that are not finite")
    if metric == "cosine":
        # In float64: squares of small float32 values vanish.
        lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
        if not lengths.all():
            raise VectorError(f"vector {np.flatnonzero(lengths == 0)[0]} is zero; it has no direction for cosine")
        rows = (rows / lengths).astype(np.float32)
    return rows


class VectorIndex:
    """Exact search by comparing with every vector."""

    def __init__(self, native: faiss.Index, metric: Metric) -> None:
        self.native = native
        self.metric = metric

    @classmethod
    def empty(cls, width: int, metric: Metric) -> "VectorIndex":
        """Returns an index of no vectors."""
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        return cls(faiss.index_factory(width, FACTORY, kind), metric)

    @classmethod
    def from_bytes(cls, content: bytes, metric: Metric) -> "VectorIndex":
        """Rebuilds an index from :meth:`to_bytes`."""
        return cls(faiss.deserialize_index(np.frombuffer(content, dtype=np.uint8)), metric)

    def to_bytes(self) -> bytes:
        """Returns the index in faiss's file format."""
        return faiss.serialize_index(self.native).tobytes()

    def __len__(self) -> int:
        return self.native.ntotal

    def add(self, vectors_ND: np.ndarray) -> None:
        """Adds vectors; they get the next row numbers. Raises VectorError."""
        rows = as_rows(vectors_ND, self.metric)
        self._check_width(rows)
        self.native.add(rows)

    def search(
        self, queries_QD: np.ndarray, k: int, among: np.ndarray | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns, for each query, the scores and row numbers of its best hits, best first.

        Args:
            k: hits a query; fewer when there are fewer.
            among: only these row numbers can be hits.
        """
        queries = as_rows(queries_QD, self.metric)
        self._check_width(queries)
        possible = len(self) if among is None else len(among)
        if not possible or not len(queries):
            return [(np.empty(0, np.float32), np.empty(0, np.int64))] * len(queries)
        only = None
        if among is not None:
            # faiss keeps a bare pointer to the selector, so a name must hold it until the search is over.
            selector = faiss.IDSelectorBatch(np.asarray(among, dtype=np.int64))
            only = faiss.SearchParameters()
            only.sel = selector
        scores, rows = self.native.search(queries, min(k, possible), params=only)
        if self.metric == "cosine":
            # Rounding can carry the score of equal directions past 1.
            scores = np.clip(scores, -1.0, 1.0)
        # faiss fills up with row -1 where it found less.
        return [(score[row >= 0], row[row >= 0]) for score, row in zip(scores, rows, strict=True)]

    def _check_width(self, rows: np.ndarray) -> None:
        if rows.shape[1] != self.native.d:
            raise VectorError(f"vectors have {rows.shape[1]} values where the index has {self.native.d}")


def exact_scores(blocks: Iterable[np.ndarray], queries_QD: np.ndarray, k: int, metric: Metric) -> np.ndarray:
    """Returns the k best scores a query by brute force in numpy, best first: [Q, k], -inf where there are fewer.

    For l2 the scores are negated distances, so that larger is better for every metric.
    """
    queries = as_rows(queries_QD, metric).astype(np.float64)
    best = np.full((len(queries), k), -np.inf)
    for block in blocks:
        rows = as_rows(block, metric).astype(np.float64)
        scores = queries @ rows.T
        if metric == "l2":
            scores = -((queries**2).sum(axis=1)[:, None] - 2 * scores + (rows**2).sum(axis=1)[None, :])
        best = -np.sort(-np.concatenate([best, scores], axis=1), axis=1)[:, :k]
    return best


def recall(found: list[tuple[np.ndarray, np.ndarray]], exact_QK: np.ndarray, metric: Metric) -> float:
    """Returns the share of the exact hits that were found; equal scores count as equal hits."""
    tolerance = 1e-5
    hits = wanted = 0
    for (scores, _), exact in zip(found, exact_QK, strict=True):
        possible = exact[np.isfinite(exact)]
        if not possible.size:
            continue
        larger_is_better = -scores if metric == "l2" else scores
        worst = possible[-1] - tolerance * max(1.0, abs(possible[-1]))
        hits += min(int((larger_is_better >= worst).sum()), len(possible))
        wanted += len(possible)
    return hits / wanted if wanted else 1.0
