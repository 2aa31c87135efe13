"""Parallel corpora: groups of sentences that are translations of each other, from long or wide Parquet."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from extractors.errors import nearest
from extractors.inputs import is_blank
from pipeline.errors import RowKeptOut, UsageError
from pipeline.parquet import read_file
from pipeline.rows import strings
from pipeline.source import find_shards, plain_type

GROUP, LANG, TEXT = "group", "lang", "text"
_GROUP_COLUMNS = (GROUP, "group_id", "id")


@dataclasses.dataclass(frozen=True)
class ParallelCorpus:
    """Complete groups only.

    Attributes:
        languages: K languages, in order.
        groups: by the group's name, K texts in the order of the languages.
        left_out: how many groups are not among them, by reason.
    """

    languages: tuple[str, ...]
    groups: dict[str, list[str]]
    left_out: dict[str, int]

    def first(self, groups: int | None = None, languages: int | None = None) -> "ParallelCorpus":
        """Returns the first groups, and of each the first languages."""
        kept = {name: self.groups[name][:languages] for name in list(self.groups)[:groups]}
        return ParallelCorpus(self.languages[:languages], kept, self.left_out)

    def table(self) -> pa.Table:
        """Returns id (group number x K + language number), group, lang and text, group by group."""
        count = len(self.languages)
        columns = {
            "id": pa.array(range(len(self.groups) * count), pa.int64()),
            GROUP: pa.array([name for name in self.groups for _ in self.languages], pa.string()),
            LANG: pa.array([*self.languages] * len(self.groups), pa.string()),
            TEXT: pa.array([text for texts in self.groups.values() for text in texts], pa.string()),
        }
        return pa.table(columns)


def read_parallel(
    inputs: Sequence[str], languages: Sequence[str], most_groups: int | None, states: str | None = None
) -> ParallelCorpus:
    """Reads a corpus and keeps the groups that are complete over the languages, the first ``most_groups`` of them.

    Long files have the columns group (or group_id), lang and text; of several, each holds a part of the rows. Wide
    files have a column a language; of several with the same groups, each holds some of the languages.

    Args:
        languages: none for all in a long file.
        states: a folder whose files are no inputs, wherever it lies.

    Raises:
        UsageError: no such language, fewer than two, a group that has a language twice, or no complete group.
    """
    tables = [(shard.source, read_file(shard.source)) for shard in find_shards(inputs, states)]
    kinds = {{LANG, TEXT} <= set(table.column_names) for _, table in tables}
    if len(kinds) > 1:
        raise UsageError(f"some of {', '.join(inputs)} have columns {LANG} and {TEXT}, others a column a language")
    (is_long,) = kinds
    texts = _long(tables) if is_long else _wide(tables, languages)
    known = list(dict.fromkeys(language for entries in texts.values() for language in entries))
    if not is_long:
        known = list(dict.fromkeys(name for _, table in tables for name in table.column_names))
    chosen = tuple(languages) or tuple(known)
    missing = [language for language in chosen if language not in known]
    if missing:
        hint = nearest(missing[0], known)
        raise UsageError(f"language {missing[0]!r} is not in the corpus{hint}; it has {', '.join(sorted(known))}")
    if not texts:
        raise UsageError(f"the corpus {', '.join(inputs)} has no rows")
    if len(set(chosen)) < 2 or len(set(chosen)) < len(chosen):
        raise UsageError(f"languages {', '.join(chosen)}: a subspace needs at least two, each once")
    complete: dict[str, list[str]] = {}
    left_out, seen = collections.Counter[str](), set()
    for group, entries in texts.items():
        found = tuple(entries.get(language) for language in chosen)
        if any(text is None for text in found):
            left_out["incomplete"] += 1
        elif found in seen:
            left_out["duplicate"] += 1
        elif most_groups is not None and len(complete) == most_groups:
            left_out["beyond --groups"] += 1
        else:
            seen.add(found)
            complete[group] = [text for text in found if text is not None]
    if not complete:
        raise UsageError(f"no group has a text in each of {', '.join(chosen)} ({len(texts)} groups were read)")
    return ParallelCorpus(chosen, complete, dict(left_out))


Texts = dict[str, dict[str, str]]


def _long(tables: list[tuple[str, pa.Table]]) -> Texts:
    texts: Texts = {}
    for source, table in tables:
        name = next((name for name in _GROUP_COLUMNS if name in table.column_names), None)
        if name is None:
            raise UsageError(f"{source}: a long corpus needs a column {GROUP}; it has {', '.join(table.column_names)}")
        columns = (_groups(source, table, name), *(_strings(source, table, column) for column in (LANG, TEXT)))
        for row, (group, language, text) in enumerate(zip(*columns, strict=True)):
            # A row without a group is a group of its own, which no other language completes.
            entries = texts.setdefault(f"{source}#{row}" if group is None else group, {})
            if not isinstance(language, str) or not _is_text(text):
                continue
            if language in entries:
                raise UsageError(f"{source}: group {group} has language {language!r} twice; give each group its own")
            entries[language] = text
    return texts


def _wide(tables: list[tuple[str, pa.Table]], languages: Sequence[str]) -> Texts:
    if not languages:
        names = ", ".join(sorted({name for _, table in tables for name in table.column_names})[:20])
        raise UsageError(f"a corpus with a column a language needs --languages; its columns are {names}")
    texts: Texts = {}
    named = [_group_column(table, languages) for _, table in tables]
    if None in named and len({table.num_rows for _, table in tables}) > 1:
        raise UsageError(f"files of different length need a column {GROUP} to say which rows belong together")
    for name, (source, table) in zip(named, tables, strict=True):
        groups = [str(row) for row in range(table.num_rows)] if name is None else _groups(source, table, name)
        twice = next((group for group, count in collections.Counter(groups).items() if group and count > 1), None)
        if twice is not None:
            raise UsageError(f"{source}: group {twice} stands in two rows; give each group its own {name}")
        for group in groups:
            texts.setdefault(group or f"{source}#null", {})
        for language in (column for column in table.column_names if column in languages and column != name):
            for group, text in zip(groups, _strings(source, table, language), strict=True):
                if group is None or not _is_text(text):
                    continue
                if texts[group].setdefault(language, text) != text:
                    raise UsageError(
                        f"{source}: group {group} has another {language} text in another file. Files with the same "
                        f"languages must not share groups; give each group its own {name or GROUP}"
                    )
    return texts


def _group_column(table: pa.Table, languages: Sequence[str]) -> str | None:
    """Returns the column that names the groups: ``id`` may also be Indonesian, in a column of sentences."""
    found = next((name for name in _GROUP_COLUMNS if name in table.column_names and name not in languages), None)
    is_text = found == "id" and plain_type(table.column(found).type) == pa.string()
    return None if is_text and len(table.column(found).unique()) < table.num_rows else found


def _groups(source: str, table: pa.Table, name: str) -> list[str | None]:
    """Returns the groups' names; 1 and 1.0 (as pandas writes whole numbers beside nulls) are the same."""
    column = table.column(name)
    if pa.types.is_nested(column.type):
        raise UsageError(f"{source}: column {name} has type {column.type}; give texts or whole numbers")
    values = column.to_pylist()
    return [None if v is None else str(int(v)) if isinstance(v, float) and v.is_integer() else str(v) for v in values]


def _strings(source: str, table: pa.Table, column: str) -> list[Any]:
    try:
        return strings(table.column(column), column)
    except RowKeptOut as problem:
        raise UsageError(f"{source}: {problem}") from None


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and not is_blank(text)
