"""report.json: what a run's commits add up to."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.store import VectorStore

_MOST_DUPLICATES_LISTED = 1000
_SUMMED = ("rows_in", "rows_out", "rows_quarantined", "tokens", "truncated")


def make_report(store: VectorStore) -> dict[str, Any]:
    """Returns the report over all commits of a finished run.

    ``status`` is "complete" when every row has a vector and every id is there once, else "partial".
    """
    commits = list(store.commits().values())
    duplicates = repeated_ids(store)
    totals = {key: sum(commit[key] for commit in commits) for key in _SUMMED}
    seconds = sum(commit["seconds"] for commit in commits)
    whole = not totals["rows_quarantined"] and not duplicates
    return {
        "status": "complete" if whole else "partial",
        **totals,
        "units": len(commits),
        "reasons": dict(sum((Counter(commit["reasons"]) for commit in commits), Counter())),
        "by_language": _by_language(commit["by_language"] for commit in commits),
        "duplicates": duplicates,
        "encoder_seconds": round(seconds, 3),
        "tokens_per_encoder_second": round(totals["tokens"] / seconds, 1) if seconds else 0.0,
        "content_hash": f"{sum(int(commit['content_hash'], 16) for commit in commits) % 2**256:064x}",
        "fingerprint": commits[0]["fingerprint"] if commits else None,
    }


def _by_language(parts: Iterable[Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, int]]:
    total: dict[str, Counter[str]] = {}
    for part in parts:
        for language, counts in part.items():
            total.setdefault(language, Counter()).update(counts)
    return {language: dict(counts) for language, counts in sorted(total.items())}


def repeated_ids(store: VectorStore) -> list[dict[str, Any]]:
    """Returns the ids that stand in more than one unit, with the files that hold them (at most 1000 are listed).

    Keeps eight bytes an id in memory: hashes first, and for the hashes that repeat a second look at the ids themselves.
    """
    hashes = [_hashed(table.column("id")) for _, table in store.iter_vectors(["id"])]
    if not hashes:
        return []
    ordered = np.sort(np.concatenate(hashes))
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not repeated.size:
        return []
    places: dict[int | str, list[str]] = {}
    for commit, table in store.iter_vectors(["id"]):
        column = table.column("id")
        for i in np.flatnonzero(np.isin(_hashed(column), repeated)):
            places.setdefault(column[int(i)].as_py(), []).append(f"{commit['source']} (unit {commit['unit']})")
    return [{"id": key, "places": where} for key, where in places.items() if len(where) > 1][:_MOST_DUPLICATES_LISTED]


def _hashed(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a number for each id, equal for equal ids: int64 [N]."""
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    digests = (hashlib.blake2b(identifier.encode(), digest_size=8).digest() for identifier in column.to_pylist())
    return np.frombuffer(b"".join(digests), dtype=np.int64)
