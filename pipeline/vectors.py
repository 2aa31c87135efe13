"""Where an index's vectors come from: a folder written by encode, or any Parquet files with ids and vectors."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import UsageError
from pipeline.parquet import read_file
from pipeline.source import find_shards, plain_type
from pipeline.storage import open_path
from pipeline.store import VectorStore


@dataclasses.dataclass(frozen=True)
class Vectors:
    """Vectors with their ids and kept columns, in blocks.

    Attributes:
        run: the content of run.json; None for vectors that encode did not write.
        blocks: yields (ids and kept columns, float32 [N, D]), the same order every time.
    """

    run: dict[str, Any] | None
    blocks: Callable[[], Iterator[tuple[pa.Table, np.ndarray]]]


def open_vectors(path: str) -> Vectors:
    """Opens a folder of vectors.

    Raises:
        UsageError: a run that is not finished or has an id twice, or files without the columns id and vector.
    """
    fs, place = open_path(path)
    store = VectorStore(path)
    run = None if fs.isfile(place) else store.run()
    if run is not None:
        _refuse_unfinished(store)
        return Vectors(run, lambda: (_split(table) for _, table in store.iter_vectors()))
    sources = [shard.source for shard in find_shards([path])]
    return Vectors(None, lambda: (_split(_foreign(source)) for source in sources))


def _refuse_unfinished(store: VectorStore) -> None:
    report = store.report()
    if report is None:
        raise UsageError(f"vectors {store.url}: the run is not finished; run the same encode command again")
    held = sum(commit["rows_out"] for commit in store.commits().values())
    if held != report["rows_out"]:
        raise UsageError(
            f"vectors {store.url}: {held:,} rows are there where the run wrote {report['rows_out']:,}; files are gone "
            "or damaged. Run the same encode command again"
        )
    if report["duplicates"]:
        first = report["duplicates"][0]
        raise UsageError(
            f"vectors {store.url}: {len(report['duplicates'])} id(s) stand more than once, such as {first['id']!r} in "
            f"{' and '.join(first['places'])}; make the input's ids unique and encode to another folder"
        )


def _foreign(source: str) -> pa.Table:
    table = read_file(source)
    absent = [name for name in ("id", "vector") if name not in table.column_names]
    if absent:
        raise UsageError(f"{source} has no column {', '.join(absent)}; its columns are {', '.join(table.column_names)}")
    taken = [name for name in ("row", "query_id", "rank", "score") if name in table.column_names]
    if taken:
        raise UsageError(f"{source}: rename {', '.join(taken)}; the index and the hits have columns of that name")
    kind = plain_type(table.schema.field("id").type)
    if kind not in (pa.int64(), pa.string(), pa.null()):
        raise UsageError(f"{source}: ids are of type {kind}; they must be integers or strings")
    return table


def _split(table: pa.Table) -> tuple[pa.Table, np.ndarray]:
    rest = table.drop_columns([name for name in ("vector", "n_tokens", "truncated") if name in table.column_names])
    return rest, matrix(table.column("vector"))


def matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column of lists of numbers as float32 [N, D].

    Raises:
        UsageError: lists of different lengths, nulls, or no lists of numbers.
    """
    kind = column.type
    if not (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise UsageError(f"the vector column has type {kind}; it must hold lists of numbers")
    if not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        raise UsageError(f"the vector column holds lists of {kind.value_type}; it must hold lists of numbers")
    if column.null_count:
        raise UsageError(f"the vector column has {column.null_count} null(s)")
    flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
    widths = set(pc.list_value_length(column).unique().to_pylist())
    if len(widths) > 1:
        raise UsageError(f"the vector column holds vectors of different lengths: {sorted(widths)}")
    return flat.reshape(len(column), -1) if len(column) else np.empty((0, 0), np.float32)
