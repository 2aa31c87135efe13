"""Queries from the command line or a file."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.errors import RowKeptOut, UsageError
from pipeline.parquet import read_file
from pipeline.rows import strings
from pipeline.storage import open_path
from pipeline.vectors import matrix

_NOT_UNICODE = "\ud800"


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries in order; ``vectors`` [Q, D] is set when the file brings its own."""

    ids: list[str]
    texts: list[str]
    vectors: np.ndarray | None = None


def read_queries(given: Sequence[str], file: str | None) -> Queries:
    """Returns the queries of the command line, or of a .txt, .jsonl or .parquet file.

    Raises:
        UsageError: none, both, or a file that cannot be read as such.
    """
    if bool(given) == bool(file):
        raise UsageError("give either --query TEXT (repeatable) or --queries FILE")
    if not file:
        return Queries([str(i) for i in range(len(given))], list(given))
    fs, path = open_path(file)
    if not fs.isfile(path):
        raise UsageError(f"--queries {file}: no such file")
    if path.endswith(".parquet"):
        return _from_parquet(file)
    try:
        text = fs.cat_file(path).decode()
    except UnicodeDecodeError as problem:
        raise UsageError(f"--queries {file}: not UTF-8 at byte {problem.start}") from None
    # Only LF and CRLF end a line; str.splitlines would also cut at U+2028 and others inside a text.
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    if path.endswith(".jsonl"):
        return _unique(file, [_from_json(file, i, line) for i, line in enumerate(lines)])
    return Queries([str(i) for i in range(len(lines))], lines)


def _from_json(file: str, position: int, line: str) -> tuple[str, str]:
    try:
        entry: Any = json.loads(line)
        query = str(entry.get("query_id", position))
        query.encode()
        return query, entry["text"] + ""
    except (ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(f'--queries {file}, line {position + 1}: must be {{"query_id": …, "text": …}}') from None


def _from_parquet(file: str) -> Queries:
    table = read_file(file)
    columns = table.column_names
    ids = table.column("query_id").to_pylist() if "query_id" in columns else range(table.num_rows)
    if "vector" in columns:
        unique = _unique(file, [(str(i), "") for i in ids])
        return Queries(unique.ids, unique.texts, matrix(table.column("vector")))
    if "text" not in columns:
        raise UsageError(f"--queries {file}: needs a column text or vector; its columns are {', '.join(columns)}")
    try:
        texts = strings(table.column("text"), "text")
    except RowKeptOut as problem:
        raise UsageError(f"--queries {file}: {problem}") from None
    # Bytes that are not UTF-8 become what no encoder takes, so that just that query is refused.
    sound = [_NOT_UNICODE if isinstance(text, RowKeptOut) else text or "" for text in texts]
    return _unique(file, [(str(i), text) for i, text in zip(ids, sound, strict=True)])


def _unique(file: str, pairs: list[tuple[str, str]]) -> Queries:
    ids = [query for query, _ in pairs]
    repeated = (
        next((query for i, query in enumerate(ids) if query in ids[:i]), None) if len(set(ids)) < len(ids) else None
    )
    if repeated is not None:
        raise UsageError(f"--queries {file}: query_id {repeated!r} stands more than once")
    return Queries(ids, [text for _, text in pairs])
