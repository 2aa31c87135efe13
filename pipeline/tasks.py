"""Evaluation tasks: what a task file may say."""

import dataclasses
import os
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from extractors.errors import nearest
from extractors.validated import parse
from pipeline.errors import UsageError

TaskType = Literal["bitext", "sts", "classification", "clustering", "pair-classification", "reranking", "geometry"]
SUBSET = "subset"


@dataclasses.dataclass(frozen=True)
class TaskColumns:
    """The columns of one type of task: texts, lists of texts, and what is no text (labels, scores)."""

    texts: tuple[str, ...]
    lists: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.texts, *self.lists, *self.values)


COLUMNS: dict[TaskType, TaskColumns] = {
    "bitext": TaskColumns(texts=("source", "target")),
    "sts": TaskColumns(texts=("sentence1", "sentence2"), values=("score",)),
    "classification": TaskColumns(texts=("text",), values=("label", "split")),
    "clustering": TaskColumns(texts=("text",), values=("label",)),
    "pair-classification": TaskColumns(texts=("sentence1", "sentence2"), values=("label",)),
    "reranking": TaskColumns(texts=("query",), lists=("positive", "negative")),
    "geometry": TaskColumns(texts=("text",), values=("group", "lang")),
}


class Task(BaseModel):
    """One task file. ``columns`` gives the data's name for a column of the task's type, where it differs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[^\W_][\w.-]*$", description="begins with a letter or digit")
    type: TaskType
    data: str
    columns: dict[str, str] = {}
    pairs: list[tuple[str, str]] = []
    where: dict[str, Any] = {}
    limit: int | None = Field(None, gt=0)

    @field_validator("where")
    @classmethod
    def _plain_values(cls, where: dict[str, Any]) -> dict[str, Any]:
        for name, value in where.items():
            if not isinstance(value, str | bool | int | float):
                raise ValueError(f"{name}: {value!r} is {type(value).__name__}; give a text, a number, true or false")
        return where

    @model_validator(mode="after")
    def _fits_its_type(self) -> "Task":
        allowed = (*COLUMNS[self.type].names, SUBSET)
        for name in self.columns:
            if name not in allowed:
                raise ValueError(
                    f"columns: {name!r} is not known{nearest(name, allowed)}; "
                    f"a task of type {self.type} has {', '.join(allowed)}"
                )
        if len(set(self.pairs)) < len(self.pairs):
            raise ValueError("pairs: the same pair stands twice")
        if self.pairs and self.type != "bitext":
            raise ValueError(f"pairs: goes with type bitext, not with {self.type}")
        return self


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
