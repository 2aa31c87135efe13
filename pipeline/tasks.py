"""Evaluation tasks from YAML files over local Parquet."""

import dataclasses
import hashlib
import os
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import yaml
from pydantic import BaseModel, ConfigDict, Field

from extractors.errors import nearest
from extractors.inputs import is_blank
from extractors.validated import parse
from pipeline.errors import RowKeptOut, UsageError
from pipeline.parquet import read_file
from pipeline.rows import strings


class Columns(BaseModel):
    """The file's names for a task's columns."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str = "source"
    target: str = "target"
    subset: str = "subset"


class Task(BaseModel):
    """One task file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[\w.-]+$")
    type: Literal["bitext"]
    data: str
    columns: Columns = Columns()
    pairs: list[tuple[str, str]] = []
    where: dict[str, str | bool | int | float] = {}
    limit: int | None = Field(None, gt=0)


@dataclasses.dataclass(frozen=True)
class Bitext:
    """Sentence pairs of one subset; row i of both sides belongs together."""

    subset: str
    sources: list[str]
    targets: list[str]
    left_out: dict[str, int]


def load_task(path: str) -> tuple[Task, str]:
    """Returns the task in a YAML file, and the path of its data.

    Raises:
        UsageError: no such file, not a valid task, or no such data.
    """
    if not path.endswith((".yaml", ".yml")):
        raise UsageError(f"--task {path}: give a task YAML file (name, type, data, …)")
    try:
        with open(path, encoding="utf-8") as handle:
            fields = yaml.safe_load(handle)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise UsageError(f"--task {path}: {problem}") from None
    if not isinstance(fields, dict):
        raise UsageError(f"--task {path}: must hold a mapping with {', '.join(Task.model_fields)}")
    task = parse(Task, fields, f"task {path}", UsageError)
    data = os.path.join(os.path.dirname(os.path.abspath(path)), task.data)
    if not os.path.isfile(data):
        raise UsageError(f"task {path}: data {data} does not exist (paths are relative to the task file)")
    return task, data


def read_bitext(task: Task, data: str) -> list[Bitext]:
    """Returns the task's pairs by subset. A pair with a null or blank side is left out and counted.

    Raises:
        UsageError: a column that the file does not have, or nothing left to score.
    """
    table = read_file(data)
    for name, value in task.where.items():
        table = table.filter(_equals(_column(table, name, task), name, value, task))
    if task.pairs:
        subsets = [(f"{a}-{b}", table, a, b) for a, b in task.pairs]
    else:
        source, target, subset = task.columns.source, task.columns.target, task.columns.subset
        if subset not in table.column_names and "subset" not in task.columns.model_fields_set:
            subsets = [("default", table, source, target)]
        else:
            column = _column(table, subset, task)
            subsets = [
                (str(value), table.filter(_equals(column, subset, value, task)), source, target)
                for value in column.unique().to_pylist()
            ]
    pairs = [_pairs(name, part.slice(0, task.limit), a, b, task) for name, part, a, b in subsets]
    if not any(part.sources for part in pairs):
        raise UsageError(f"task {task.name}: no pairs to score in {data}")
    return pairs


def _equals(column: pa.ChunkedArray, name: str, value: Any, task: Task) -> pa.ChunkedArray:
    if value is None:
        return column.is_null()
    try:
        return pc.equal(column, pa.scalar(value))
    except pa.ArrowException:
        kind = type(value).__name__
        raise UsageError(f"task {task.name}: where {name}: {value!r} is {kind}, the column {column.type}") from None


def _column(table: pa.Table, name: str, task: Task) -> pa.ChunkedArray:
    if name not in table.column_names:
        known = ", ".join(table.column_names)
        raise UsageError(
            f"task {task.name}: no column {name!r}{nearest(name, table.column_names)}; columns are {known}"
        )
    return table.column(name)


def _pairs(subset: str, table: pa.Table, source: str, target: str, task: Task) -> Bitext:
    sources, targets, left_out = [], [], {"null": 0, "invalid-unicode": 0, "blank": 0}
    try:
        columns = [strings(_column(table, name, task), name) for name in (source, target)]
    except RowKeptOut as problem:
        raise UsageError(f"task {task.name}: {problem}") from None
    for a, b in zip(*columns, strict=True):
        if a is None or b is None:
            left_out["null"] += 1
        elif isinstance(a, RowKeptOut) or isinstance(b, RowKeptOut):
            left_out["invalid-unicode"] += 1
        elif is_blank(a) or is_blank(b):
            left_out["blank"] += 1
        else:
            sources.append(a)
            targets.append(b)
    return Bitext(subset, sources, targets, {reason: n for reason, n in left_out.items() if n})


def dataset_fingerprint(pairs: list[Bitext]) -> str:
    """Returns a SHA-256 over all texts of a task in order."""
    digest = hashlib.sha256()
    for part in pairs:
        for text in (part.subset, *part.sources, *part.targets):
            digest.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
