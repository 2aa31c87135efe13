"""Rows of a unit -> the texts that can be tokenized, and the rows that are kept out, each with its reason."""

import dataclasses
from typing import Any

import pyarrow as pa

from extractors.errors import TextError
from extractors.inputs import PromptTokenizer, TokenIds
from pipeline.errors import RowKeptOut
from pipeline.source import Layout, Unit, plain_type, read_unit
from pipeline.store import QUARANTINE_SCHEMA

Id = int | str

_LARGEST_ID = 2**63 - 1


@dataclasses.dataclass
class Quarantine:
    """Collects what is kept out of one source."""

    source: str
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def add(self, row: int | None, identifier: Id | None, reason: str, detail: str) -> None:
        """Records one row; ``row`` is None for a file that cannot be read at all."""
        spelled = None if identifier is None else str(identifier)
        entry = {"source": self.source, "row": row, "id": spelled, "reason": reason, "detail": detail}
        self.rows.append(entry)

    def table(self) -> pa.Table:
        """Returns the quarantine file's content."""
        return pa.Table.from_pylist(self.rows, schema=QUARANTINE_SCHEMA)


@dataclasses.dataclass(frozen=True)
class TokenizedUnit:
    """A unit that is ready for the encoder.

    Attributes:
        rows_in: rows of the unit; an unreadable file counts as one.
        intact: False when the file as a whole could not be used, so that the unit is tried again in the next run.
        positions: each row's position in its file.
        carried: ids and kept columns of the same rows.
        tokens: ``tokens[i][p]`` is row i in prompt p.
    """

    rows_in: int
    intact: bool
    positions: list[int]
    carried: pa.Table
    tokens: list[list[TokenIds]]
    quarantine: Quarantine


def tokenize_unit(unit: Unit, layout: Layout, tokenizer: PromptTokenizer) -> TokenizedUnit:
    """Reads and tokenizes one unit; every row of it comes out either as tokens or in the quarantine."""
    quarantine = Quarantine(unit.source)
    try:
        table = read_unit(unit, layout)
        texts = strings(table.column(layout.text_column), layout.text_column)
        ids = _ids(table, unit, layout)
        kept = [_kept(table.column(field.name), field) for field in layout.kept]
    except RowKeptOut as fault:
        _keep_out_whole(unit, fault, quarantine)
        empty = pa.schema([pa.field("id", layout.id_type), *layout.kept]).empty_table()
        return TokenizedUnit(len(quarantine.rows), False, [], empty, [], quarantine)
    good, tokens = _good_rows(unit, texts, ids, [column.faults for column in kept], tokenizer, quarantine)
    chosen = {field.name: column.take(good) for field, column in zip(layout.kept, kept, strict=True)}
    carried = pa.table({"id": pa.array([ids[i] for i in good], layout.id_type), **chosen})
    positions = [unit.row_start + i for i in good]
    return TokenizedUnit(table.num_rows, True, positions, carried, tokens, quarantine)


def _keep_out_whole(unit: Unit, fault: RowKeptOut, quarantine: Quarantine) -> None:
    rows = [None] if unit.rows is None else range(unit.row_start, unit.row_start + unit.rows)
    for row in rows:
        quarantine.add(row, None, fault.code, str(fault))


def _good_rows(
    unit: Unit,
    texts: list[str | RowKeptOut | None],
    ids: list[Id | RowKeptOut | None],
    kept_faults: list[dict[int, RowKeptOut]],
    tokenizer: PromptTokenizer,
    quarantine: Quarantine,
) -> tuple[list[int], list[list[TokenIds]]]:
    # A fault of the text keeps its row out; its place in the batch is taken by a blank that is refused below.
    spelled = [text if isinstance(text, str) else "" for text in texts]
    good, tokens = [], []
    owner: dict[Id | None, int] = {}
    for i, (text, identifier, row) in enumerate(zip(texts, ids, tokenizer.tokenize(spelled), strict=True)):
        kept_fault = next((faults[i] for faults in kept_faults if i in faults), None)
        fault = _fault(text, identifier, kept_fault, row)
        known = identifier if isinstance(identifier, int | str) else None
        if fault is None and known in owner:
            fault = RowKeptOut(
                "duplicate-id", f"row {unit.row_start + owner[known]} of the same file has this id and comes first"
            )
        if fault is not None:
            quarantine.add(unit.row_start + i, known, fault.code, str(fault))
            continue
        owner[known] = i
        good.append(i)
        tokens.append(row)
    return good, tokens  # type: ignore[return-value]


def _fault(
    text: str | RowKeptOut | None,
    identifier: Id | RowKeptOut | None,
    kept: RowKeptOut | None,
    row: list[TokenIds | TextError],
) -> RowKeptOut | TextError | None:
    if identifier is None:
        return RowKeptOut("null-id", "the id is null")
    if text is None:
        return RowKeptOut("null-text", "the text is null")
    found = [problem for problem in (identifier, text, kept, *row) if isinstance(problem, RowKeptOut | TextError)]
    return found[0] if found else None


def _ids(table: pa.Table, unit: Unit, layout: Layout) -> list[Any]:
    if layout.id_column is None:
        return [f"{unit.source}#{unit.row_start + i}" for i in range(table.num_rows)]
    column = table.column(layout.id_column)
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if layout.id_type == pa.string():
        return strings(column, layout.id_column)
    return [_checked(value) for value in _plain(column).to_pylist()]


def _checked(identifier: int | None) -> int | RowKeptOut | None:
    if identifier is not None and identifier > _LARGEST_ID:
        return RowKeptOut("id-out-of-range", f"the id {identifier} is more than {_LARGEST_ID}; make ids strings")
    return identifier


def strings(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Returns a column's strings; None for null, and for bytes that are not UTF-8 what is wrong with them.

    Raises:
        RowKeptOut: it is not a column of strings.
    """
    if pa.types.is_null(column.type):
        return [None] * len(column)
    if plain_type(column.type) != pa.string():
        raise RowKeptOut("column-type", f"column {name} has type {column.type}; it must be a string column")
    try:
        # Arrow checks no string on reading, so bytes of any kind get this far.
        return _plain(column).to_pylist()
    except UnicodeDecodeError:
        return [_decoded(value) for value in _plain(column).cast(pa.large_binary()).to_pylist()]


def _decoded(value: bytes | None) -> str | RowKeptOut | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError as problem:
        return RowKeptOut("invalid-unicode", f"not UTF-8 at byte {problem.start}: {problem.reason}")


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column
    return pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks], column.type.value_type)


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A kept column, and the rows whose value cannot be carried."""

    values: pa.ChunkedArray
    faults: dict[int, RowKeptOut]

    def take(self, rows: list[int]) -> pa.ChunkedArray:
        return self.values.take(pa.array(rows, pa.int64()))


def _kept(column: pa.ChunkedArray, field: pa.Field) -> _Kept:
    if field.type == pa.string():
        values = strings(column, field.name)
        faults = {i: value for i, value in enumerate(values) if isinstance(value, RowKeptOut)}
        sound = [None if i in faults else value for i, value in enumerate(values)]
        return _Kept(pa.chunked_array([pa.array(sound, pa.string())]), faults)
    try:
        return _Kept(_plain(column).cast(field.type), {})
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as problem:
        raise RowKeptOut("column-type", f"column {field.name}: {problem}") from None
