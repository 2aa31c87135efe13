"""Index: vectors -> a folder with a FAISS index, the ids of its rows, and what it was made of."""

import json
import time
from typing import Any

import numpy as np
import pyarrow as pa

from index.ann import FACTORY, VectorIndex, exact_scores, recall
from index.errors import VectorError
from pipeline.config import IndexConfig
from pipeline.errors import UsageError
from pipeline.parquet import to_bytes
from pipeline.source import plain_type
from pipeline.storage import Folder
from pipeline.vectors import Vectors, open_vectors

INDEX, IDS, ABOUT = "index.faiss", "ids.parquet", "index.json"

_RECALL_QUERIES = 64
_RECALL_K = 10


def build_index(config: IndexConfig) -> dict[str, Any]:
    """Builds the index and returns the content of index.json, which is written last.

    Raises:
        UsageError: no vectors, vectors that cannot be indexed (by id), or an id that stands twice.
    """
    began = time.monotonic()
    vectors = open_vectors(config.vectors)
    built, ids = _collect(vectors, config)
    content = built.to_bytes()
    folder = Folder(config.output)
    # An index without its description does not count; an older one must not describe the new files.
    folder.remove(ABOUT)
    folder.publish(INDEX, content)
    folder.publish(IDS, to_bytes(ids, compression="zstd"))
    run = vectors.run or {}
    about = {
        **{
            key: run.get(key)
            for key in ("fingerprint", "identity", "model", "revision", "subspace", "subspace_strength")
        },
        "metric": config.metric,
        "factory": FACTORY,
        "dim": built.native.d,
        "ntotal": len(built),
        "recall_at_10": _measured_recall(built, vectors),
        "build_seconds": round(time.monotonic() - began, 3),
        "bytes": len(content),
    }
    folder.publish(ABOUT, json.dumps(about, indent=1, ensure_ascii=False).encode())
    return about


def _collect(vectors: Vectors, config: IndexConfig) -> tuple[VectorIndex, pa.Table]:
    built: VectorIndex | None = None
    tables = []
    for table, block in vectors.blocks():
        tables.append(table)
        if not len(block):
            continue
        built = built or VectorIndex.empty(block.shape[1], config.metric)
        try:
            built.add(block)
        except VectorError as problem:
            raise UsageError(
                f"vectors {config.vectors}, ids {table.column('id')[0]} and following: {problem}"
            ) from None
    if built is None:
        raise UsageError(f"vectors {config.vectors}: nothing to index, there are no vectors")
    try:
        ids = pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as problem:
        raise UsageError(f"vectors {config.vectors}: the files' columns do not go together: {problem}") from None
    if len({plain_type(table.schema.field("id").type) for table in tables if table.num_rows}) > 1:
        raise UsageError(f"vectors {config.vectors}: ids are integers in one file and strings in another; cast one")
    _refuse_repeats(ids.column("id"), config.vectors)
    return built, ids.add_column(0, "row", pa.array(range(ids.num_rows), pa.int64()))


def _refuse_repeats(ids: pa.ChunkedArray, where: str) -> None:
    if ids.null_count:
        raise UsageError(f"vectors {where}: {ids.null_count} id(s) are null")
    counts = ids.value_counts()
    repeated = (
        [entry["values"].as_py() for entry in counts if entry["counts"].as_py() > 1] if len(counts) < len(ids) else []
    )
    if repeated:
        raise UsageError(f"vectors {where}: {len(repeated)} id(s) stand more than once, such as {repeated[0]!r}")


def _measured_recall(built: VectorIndex, vectors: Vectors) -> float:
    """Recall@10 against a brute-force search in numpy, for queries between pairs of stored vectors."""
    generator = np.random.default_rng(0)
    stored = built.native.reconstruct_batch(generator.integers(0, len(built), 2 * _RECALL_QUERIES))
    queries = stored[:_RECALL_QUERIES] + 0.5 * stored[_RECALL_QUERIES:]
    queries = queries[np.abs(queries).max(axis=1) > 0]
    exact = exact_scores((block for _, block in vectors.blocks() if len(block)), queries, _RECALL_K, built.metric)
    return recall(built.search(queries, _RECALL_K), exact, built.metric)
