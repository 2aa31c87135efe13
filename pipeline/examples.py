"""A task's rows as its scorer takes them; a row that cannot be scored is left out and counted by reason."""

import dataclasses
import decimal
import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from extractors.errors import nearest
from extractors.inputs import is_blank
from pipeline.errors import RowKeptOut, UsageError
from pipeline.parquet import read_file
from pipeline.rows import strings
from pipeline.tasks import COLUMNS, SUBSET, Task, TaskColumns

TRAIN, TEST = "train", "test"


@dataclasses.dataclass(frozen=True)
class Examples:
    """What one subset of a task scores.

    Attributes:
        rows: the examples' positions in their subset.
        columns: under the task type's own names, each as long as ``rows``.
        left_out: how many rows of the subset are not among them, by reason.
    """

    subset: str
    kind: TaskColumns
    rows: list[int]
    columns: dict[str, list[Any]]
    left_out: dict[str, int]

    def texts(self, i: int) -> Iterator[str]:
        """Yields all texts of example i."""
        yield from (self.columns[name][i] for name in self.kind.texts)
        for name in self.kind.lists:
            yield from self.columns[name][i]

    def all_texts(self) -> Iterator[str]:
        """Yields the texts of all examples in order."""
        for i in range(len(self.rows)):
            yield from self.texts(i)

    def without(self, fault: Callable[["Examples", int], str | None]) -> "Examples":
        """Returns the examples without those that have a fault; a fault is the reason, for counting."""
        faults = [fault(self, i) for i in range(len(self.rows))]
        keep = [i for i, reason in enumerate(faults) if reason is None]
        left_out = dict(self.left_out)
        for reason in filter(None, faults):
            left_out[reason] = left_out.get(reason, 0) + 1
        columns = {name: [values[i] for i in keep] for name, values in self.columns.items()}
        return dataclasses.replace(self, rows=[self.rows[i] for i in keep], columns=columns, left_out=left_out)

    def encoded(self, texts: Collection[str]) -> "Examples":
        """Returns the examples of which every text is among ``texts``."""
        return self.without(lambda part, i: None if all(t in texts for t in part.texts(i)) else "not-encoded")


def read_examples(task: Task, data: str) -> list[Examples]:
    """Returns the task's examples by subset.

    Raises:
        UsageError: a column that the file does not have, or that holds something else than the task needs; nothing to
            score.
    """
    table = _without_views(read_file(data))
    for name, value in task.where.items():
        table = table.filter(_equals(_column(table, name, task), name, value, task))
    parts = [_examples(*subset, task).without(_fault) for subset in _subsets(task, table)]
    for part in parts:
        if part.rows:
            check_labels(part, task)
    if not any(part.rows for part in parts):
        reasons = sorted({reason for part in parts for reason in part.left_out})
        raise UsageError(f"task {task.name}: nothing to score in {data} ({', '.join(reasons) or 'no rows'})")
    return parts


def _subsets(task: Task, table: pa.Table) -> Iterator[tuple[str, pa.Table, dict[str, str]]]:
    """Yields each subset's name, its rows, and the file's names for the task's columns."""
    names = {name: task.columns.get(name, name) for name in COLUMNS[task.type].names}
    if task.pairs:
        for source, target in task.pairs:
            yield f"{source}-{target}", table, {"source": source, "target": target}
        return
    by = task.columns.get(SUBSET, SUBSET)
    if by not in table.column_names and SUBSET not in task.columns:
        yield "default", table, names
        return
    column = _column(table, by, task)
    if pa.types.is_nested(column.type) or pa.types.is_floating(column.type):
        raise UsageError(f"task {task.name}: column {by} has type {column.type}; subsets are named by texts or numbers")
    values = column.unique().to_pylist()
    if len({str(value) for value in values}) < len(values):
        raise UsageError(f"task {task.name}: column {by} holds null and the text 'None'; they would be one subset")
    for value in values:
        yield str(value), table.filter(_equals(column, by, value, task)), names


def _examples(subset: str, table: pa.Table, names: dict[str, str], task: Task) -> Examples:
    kind = COLUMNS[task.type]
    rows = _limited(table, names.get("split"), task)
    table = table.take(rows)
    columns: dict[str, list[Any]] = {}
    for name in kind.names:
        column = _column(table, names[name], task)
        try:
            if name in kind.texts:
                columns[name] = strings(column, names[name])
            elif name in kind.lists:
                columns[name] = _lists(column, names[name])
            else:
                columns[name] = _values(column, names[name])
        except RowKeptOut as problem:
            raise UsageError(f"task {task.name}: {problem}") from None
    return Examples(subset, kind, rows, columns, {})


def _limited(table: pa.Table, split: str | None, task: Task) -> list[int]:
    """The first ``limit`` rows; where there are splits, of each that is scored."""
    if task.limit is None or split is None:
        return list(range(min(table.num_rows, task.limit or table.num_rows)))
    left = {TRAIN: task.limit, TEST: task.limit}
    rows = []
    for row, value in enumerate(_column(table, split, task).to_pylist()):
        if value not in left or left[value] > 0:
            rows.append(row)
        if value in left:
            left[value] -= 1
    return rows


def _values(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Returns a column's labels or scores, decimals as floats; None for null."""
    if pa.types.is_nested(column.type):
        raise RowKeptOut("column-type", f"column {name} has type {column.type}; it must hold one value a row")
    return [float(value) if isinstance(value, decimal.Decimal) else value for value in column.to_pylist()]


def _lists(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Returns a column's lists of strings; None for null."""
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise RowKeptOut("column-type", f"column {name} has type {kind}; it must be a column of lists of strings")
    whole = column.combine_chunks()
    flat = iter(strings(pa.chunked_array([pc.list_flatten(whole)]), name))
    lengths = pc.list_value_length(whole).to_pylist()
    return [None if length is None else [next(flat) for _ in range(length)] for length in lengths]


def _without_views(table: pa.Table) -> pa.Table:
    """Returns the table with views as strings: Arrow has few functions for views."""
    views = [field for field in table.schema if pa.types.is_string_view(field.type)]
    for field in views:
        place = table.schema.get_field_index(field.name)
        table = table.set_column(place, field.name, table.column(place).cast(pa.string()))
    return table


def _equals(column: pa.ChunkedArray, name: str, value: Any, task: Task) -> pa.ChunkedArray:
    if value is None:
        return column.is_null()
    try:
        # 0.1 is another number in float32.
        narrow = isinstance(value, float) and pa.types.is_floating(column.type)
        return pc.equal(column, pa.scalar(value, column.type if narrow else None))
    except pa.ArrowException:
        kind = type(value).__name__
        raise UsageError(f"task {task.name}: {name}: {value!r} is {kind}, the column {column.type}") from None


def _column(table: pa.Table, name: str, task: Task) -> pa.ChunkedArray:
    if name not in table.column_names:
        known = ", ".join(table.column_names)
        raise UsageError(
            f"task {task.name}: no column {name!r}{nearest(name, table.column_names)}; columns are {known}"
        )
    return table.column(name)


def _fault(examples: Examples, i: int) -> str | None:
    """Why example i cannot be scored, or None."""
    kind, columns = examples.kind, examples.columns
    values = [columns[name][i] for name in kind.values]
    lists = [columns[name][i] for name in kind.lists]
    if any(value is None for value in (*values, *lists)):
        return "null"
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return "not-a-number"
    empty = next((name for name, entries in zip(kind.lists, lists, strict=True) if not entries), None)
    if empty is not None:
        return f"no-{empty}"
    if "split" in columns and columns["split"][i] not in (TRAIN, TEST):
        return "other-split"
    return next(filter(None, map(_text_fault, examples.texts(i))), None)


def _text_fault(text: Any) -> str | None:
    if text is None:
        return "null"
    if isinstance(text, RowKeptOut):
        return "invalid-unicode"
    return "blank" if is_blank(text) else None


def check_labels(examples: Examples, task: Task) -> None:
    """Refuses labels and scores on which no figure can be worked out.

    Raises:
        UsageError: see the message.
    """
    where = f"task {task.name}, subset {examples.subset}"
    if task.type == "sts":
        scores = examples.columns["score"]
        if not all(isinstance(score, int | float) for score in scores):
            raise UsageError(f"{where}: column score must hold numbers")
        if len(set(scores)) < 2:
            raise UsageError(f"{where}: needs two different scores, for a correlation")
    if task.type == "pair-classification" and set(examples.columns["label"]) != {0, 1}:
        labels = sorted(map(repr, set(examples.columns["label"])))
        found = ", ".join([*labels[:5], *(["…"] if len(labels) > 5 else [])])
        raise UsageError(f"{where}: labels must be 0 (different) and 1 (same), both present; found {found}")
    if task.type == "clustering" and len(set(examples.columns["label"])) < 2:
        raise UsageError(f"{where}: needs two different labels")
    if task.type == "geometry":
        groups, languages = examples.columns["group"], examples.columns["lang"]
        if len(set(languages)) < 2 or len(set(groups)) == len(groups) or len(set(groups)) < 2:
            raise UsageError(f"{where}: needs two groups or more with texts in two languages or more")
        if len(set(zip(groups, languages, strict=True))) < len(groups):
            raise UsageError(f"{where}: a group has a language twice; give each group its own number")
    if task.type == "classification":
        splits = examples.columns["split"]
        trained = {label for label, split in zip(examples.columns["label"], splits, strict=True) if split == TRAIN}
        if len(trained) < 2 or TEST not in splits:
            raise UsageError(f"{where}: needs rows with two different labels in split {TRAIN!r}, and rows in {TEST!r}")


def dataset_fingerprint(parts: list[Examples]) -> str:
    """Returns a SHA-256 over everything a task scores, in order."""
    digest = hashlib.sha256()
    for part in parts:
        for name, values in part.columns.items():
            for value in (part.subset, name, *(f"{entry!r}" for entry in values)):
                digest.update(f"{len(value)}:{value}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
