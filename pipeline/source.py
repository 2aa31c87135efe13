"""Shards -> units of work -> rows.

A unit is a run of rows of one Parquet file, cut at row groups where they are small enough. It is the grain of resuming.
"""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from extractors.errors import nearest
from pipeline.errors import RowKeptOut, UsageError
from pipeline.parquet import DAMAGE
from pipeline.storage import is_local, open_path

ROW_IDS = "row"

# The type of a column of which no file says more than that it is null.
UNKNOWN = pa.null()

_TAIL_BYTES = 65536
# What file systems call the mark of an object's version: a hash, or the time of its last change.
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "content_md5", "mtime", "LastModified", "updated", "last_modified")
_PARALLEL_FOOTERS = 16
# Names that the vectors folder, the index or the search's output give to columns of their own.
_RESERVED = ("id", "vector", "n_tokens", "truncated", "row", "query_id", "rank", "score")


@dataclasses.dataclass(frozen=True)
class Shard:
    """One input file.

    Attributes:
        source: absolute path or URL.
        tag: changes when the content does: size, time of change or ETag, and the hash of the file's end, which holds
            the footer.
        row_groups: rows in each row group; None when the footer cannot be read.
        schema: None likewise.
    """

    source: str
    tag: str
    row_groups: tuple[int, ...] | None
    schema: pa.Schema | None


@dataclasses.dataclass(frozen=True)
class Unit:
    """Rows [row_start, row_start + rows) of one shard; ``rows`` is None when the shard's footer cannot be read."""

    name: str
    source: str
    tag: str
    row_start: int
    rows: int | None


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which columns are read and what types they have in the output, for all shards alike.

    Attributes:
        id_column: the column's name, or None for ids made of file and row.
        id_type: int64 or string.
        kept: the output's fields for the columns carried along.
    """

    text_column: str
    id_column: str | None
    id_type: pa.DataType
    kept: tuple[pa.Field, ...]

    @property
    def columns(self) -> list[str]:
        """The columns to read, each once."""
        ids = [self.id_column] if self.id_column is not None else []
        return list(dict.fromkeys([*ids, self.text_column, *(field.name for field in self.kept)]))


def find_shards(inputs: Sequence[str], output: str | None = None) -> list[Shard]:
    """Returns the files that the inputs name (files, folders, globs), each once, with their footers read.

    A folder means all its *.parquet files at any depth, without those whose path has a part beginning with "." or "_".

    Args:
        output: absolute path or URL of a folder whose files are never inputs, wherever it lies.

    Raises:
        UsageError: an input that names no file.
    """
    found: dict[str, tuple[Any, str]] = {}
    for given in inputs:
        fs, path = open_path(given)
        fs.invalidate_cache()
        for file in _files(fs, path, given):
            source = file if is_local(fs) else fs.unstrip_protocol(file)
            if output is None or not source.startswith(f"{output}/"):
                found.setdefault(source, (fs, file))
    if not found:
        raise UsageError(f"the inputs name no files but the output's own: {', '.join(inputs)}")
    with ThreadPoolExecutor(_PARALLEL_FOOTERS) as pool:
        return list(pool.map(lambda source: _read_footer(source, *found[source]), sorted(found)))


def _files(fs: Any, path: str, given: str) -> list[str]:
    if fs.isfile(path):
        matches = [path]
    elif fs.isdir(path):
        inside = {file: file.removeprefix(path).strip("/") for file in (_walk(path) if is_local(fs) else fs.find(path))}
        matches = [
            file
            for file, name in inside.items()
            if name.endswith(".parquet") and not any(part.startswith((".", "_")) for part in name.split("/"))
        ]
    else:
        matches = [file for file in fs.glob(path) if not fs.isdir(file)]
    if not matches:
        raise UsageError(
            f"input {given!r} names no Parquet file; give a file, a folder with *.parquet files, or a glob"
        )
    return matches


def _walk(folder: str) -> Iterator[str]:
    """Yields the files below a local folder, through links to folders too, but never twice into the same one."""
    entered = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        entered.add(os.path.realpath(place))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(place, name)) not in entered]
        yield from (os.path.join(place, name) for name in files)


def _read_footer(source: str, fs: Any, path: str) -> Shard:
    info = fs.info(path)
    size, version = info["size"], next((str(info[key]) for key in _VERSION_KEYS if info.get(key)), "")
    tail = fs.cat_file(path, start=max(0, size - _TAIL_BYTES)) if size else b""
    tag = f"{size}-{version}-{hashlib.sha256(tail).hexdigest()[:16]}"
    try:
        with fs.open(path, "rb") as handle:
            file = pq.ParquetFile(handle)
            groups = tuple(file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups))
            return Shard(source, tag, groups, file.schema_arrow)
    except DAMAGE:
        # The unit's reader meets the same damage and puts it on record.
        return Shard(source, tag, None, None)


def choose_layout(shards: Sequence[Shard], text_column: str, id_column: str, keep: Sequence[str]) -> Layout:
    """Returns the columns and types that serve all shards.

    Raises:
        UsageError: a column that no shard has, ids that are numbers in one shard and strings in another, or kept
            columns whose types do not go together.
    """
    schemas = {shard.source: shard.schema for shard in shards if shard.schema is not None}
    present = {name for schema in schemas.values() for name in schema.names if schema.names.count(name) == 1}
    by_row = id_column == ROW_IDS and ROW_IDS not in present
    for option, name in (("--text-column", text_column), *([] if by_row else [("--id-column", id_column)])):
        _need_column(option, name, schemas)
    for name in keep:
        _need_column("--keep", name, schemas)
        if name in _RESERVED:
            raise UsageError(
                f"--keep {name}: the output has a column of its own with that name; rename it in the input"
            )
    id_type = pa.string() if by_row else _common_id_type(id_column, schemas)
    kept = tuple(pa.field(name, _common_kept_type(name, schemas)) for name in keep)
    return Layout(text_column, None if by_row else id_column, id_type, kept)


def _need_column(option: str, name: str, schemas: dict[str, pa.Schema]) -> None:
    if not schemas or any(schema.names.count(name) == 1 for schema in schemas.values()):
        return
    source, schema = next(iter(schemas.items()))
    cure = f", or give {option} {ROW_IDS} to make ids of file and row" if option == "--id-column" else ""
    raise UsageError(
        f"{option} {name!r} is in no input file{nearest(name, schema.names)}; the columns of {source} are "
        f"{', '.join(schema.names)}. Give {option} one of them{cure}"
    )


def _common_id_type(name: str, schemas: dict[str, pa.Schema]) -> pa.DataType:
    by_type: dict[pa.DataType, tuple[str, pa.DataType]] = {}
    for source, given in _types(name, schemas).items():
        plain = pa.int64() if pa.types.is_uint64(given) else plain_type(given)
        if plain not in (pa.int64(), pa.string()):
            raise UsageError(
                f"--id-column {name!r} has type {given} in {source}; ids are carried exactly, as integers or strings: "
                "cast the column, or choose another"
            )
        by_type.setdefault(plain, (source, given))
    if len(by_type) > 1:
        (one, a), (other, b) = by_type.values()
        raise UsageError(
            f"--id-column {name!r} has type {a} in {one} and {b} in {other}; cast one of them, so that "
            "2 and '02' cannot be taken for each other"
        )
    return next(iter(by_type), UNKNOWN)


def _common_kept_type(name: str, schemas: dict[str, pa.Schema]) -> pa.DataType:
    given = _types(name, schemas)
    if len(set(given.values())) == 1:
        (kind,) = set(given.values())
        # Dictionaries and the other spellings of strings come out as strings; all else stays as it is.
        return pa.string() if plain_type(kind) == pa.string() else kind
    types = {plain_type(kind): source for source, kind in given.items()}
    if len(types) > 1:
        listed = "; ".join(f"{kind} in {source}" for kind, source in types.items())
        raise UsageError(f"--keep {name}: its types do not go together: {listed}")
    return next(iter(types), UNKNOWN)


def _types(name: str, schemas: dict[str, pa.Schema]) -> dict[str, pa.DataType]:
    """The column's type in each file that has it once, with a type that says something."""
    found = {source: schema.field(name).type for source, schema in schemas.items() if schema.names.count(name) == 1}
    return {source: kind for source, kind in found.items() if not pa.types.is_null(kind)}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Returns the one type that stands for all ways to store the same values (int32 -> int64, dictionary -> string)."""
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    return pa.float64() if pa.types.is_floating(kind) else kind


def cut_units(shards: Sequence[Shard], unit_rows: int) -> Iterator[Unit]:
    """Yields the units of all shards, in order; a shard without rows, or that cannot be read, is one unit."""
    for shard in shards:
        stem = os.path.basename(shard.source).removesuffix(".parquet")[:40]
        key = hashlib.sha256(shard.source.encode()).hexdigest()[:10]
        ranges = [(0, None)] if shard.row_groups is None else list(_ranges(shard.row_groups, unit_rows))
        for start, rows in ranges:
            yield Unit(f"{stem}-{key}-{start:09d}", shard.source, shard.tag, start, rows)


def _ranges(row_groups: Sequence[int], unit_rows: int) -> Iterator[tuple[int, int]]:
    """Packs whole row groups into units of at most ``unit_rows`` rows; cuts a larger row group into even parts."""
    start = pending = 0
    for group in row_groups:
        if pending and pending + group > unit_rows:
            yield start, pending
            start, pending = start + pending, 0
        pending += group
        if pending > unit_rows:
            parts = -(-pending // unit_rows)
            bounds = [pending * part // parts for part in range(parts + 1)]
            yield from ((start + low, high - low) for low, high in itertools.pairwise(bounds))
            start, pending = start + pending, 0
    if pending or start == 0:
        yield start, pending


def read_unit(unit: Unit, layout: Layout) -> pa.Table:
    """Returns the unit's rows with the layout's columns, as the file has them.

    Raises:
        RowKeptOut: the file is damaged ("unreadable-file") or lacks a column ("column-missing").
    """
    fs, path = open_path(unit.source)
    # A listing kept from before would answer with an older object's size.
    fs.invalidate_cache()
    try:
        with fs.open(path, "rb") as handle:
            file = pq.ParquetFile(handle, page_checksum_verification=True)
            names = file.schema_arrow.names
            missing = [name for name in layout.columns if names.count(name) != 1]
            if missing:
                detail = f"no column {', '.join(missing)}, or more than one; the columns are {', '.join(names)}"
                raise RowKeptOut("column-missing", detail)
            return _read_rows(file, unit.row_start, unit.rows or 0, layout.columns)
    except RowKeptOut:
        raise
    except DAMAGE as problem:
        raise RowKeptOut("unreadable-file", str(problem).split("\n")[0]) from None


def _read_rows(file: pq.ParquetFile, start: int, rows: int, columns: list[str]) -> pa.Table:
    groups: list[int] = []
    first_row = before = 0
    for group in range(file.metadata.num_row_groups):
        count = file.metadata.row_group(group).num_rows
        if before + count > start and before < start + rows:
            if not groups:
                first_row = before
            groups.append(group)
        before += count
    if start + rows > before:
        raise ValueError(f"has {before} rows where {start + rows} were expected: it changed while it was read")
    return file.read_row_groups(groups, columns=columns).slice(start - first_row, rows)
