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
from pipeline.source import find_shards

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


def read_parallel(inputs: Sequence[str], languages: Sequence[str], most_groups: int | None) -> ParallelCorpus:
    """Reads a corpus and keeps the groups that are complete over the languages, the first ``most_groups`` of them.

    Long files have the columns group (or group_id), lang and text; of several, each holds a part of the rows. Wide
    files have a column a language; of several with the same groups, each holds some of the languages.

    Args:
        languages: none for all in a long file.

    Raises:
        UsageError: no such language, fewer than two, a group that has a language twice, or no complete group.
    """
    tables = [(shard.source, read_file(shard.source)) for shard in find_shards(inputs)]
    is_long = all({LANG, TEXT} <= set(table.column_names) for _, table in tables)
    texts = _long(tables) if is_long else _wide(tables, languages)
    known = list(dict.fromkeys(language for entries in texts.values() for language in entries))
    if not is_long:
        known = list(dict.fromkeys(name for _, table in tables for name in table.column_names))
    chosen = tuple(languages) or tuple(known)
    missing = [language for language in chosen if language not in known]
    if missing:
        hint = nearest(missing[0], known)
        raise UsageError(f"language {missing[0]!r} is not in the corpus{hint}; it has {', '.join(sorted(known))}")
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
        columns = (table.column(name).to_pylist(), *(_strings(source, table, column) for column in (LANG, TEXT)))
        for group, language, text in zip(*columns, strict=True):
            if group is None or not isinstance(language, str) or not _is_text(text):
                continue
            entries = texts.setdefault(str(group), {})
            if language in entries:
                raise UsageError(f"{source}: group {group!r} has language {language!r} twice; give each group its own")
            entries[language] = text
    return texts


def _wide(tables: list[tuple[str, pa.Table]], languages: Sequence[str]) -> Texts:
    if not languages:
        names = ", ".join(sorted({name for _, table in tables for name in table.column_names})[:20])
        raise UsageError(f"a corpus with a column a language needs --languages; its columns are {names}")
    texts: Texts = {}
    for source, table in tables:
        name = next((name for name in _GROUP_COLUMNS if name in table.column_names), None)
        groups: list[Any] = table.column(name).to_pylist() if name else list(range(table.num_rows))
        if len(set(groups)) < len(groups):
            twice = next(group for group, count in collections.Counter(groups).items() if count > 1)
            raise UsageError(f"{source}: group {twice!r} stands in two rows; give each group its own {name}")
        for language in table.column_names if name is None else [n for n in table.column_names if n != name]:
            if language not in languages:
                continue
            for group, text in zip(groups, _strings(source, table, language), strict=True):
                if _is_text(text):
                    texts.setdefault(str(group), {}).setdefault(language, text)
        for group in groups:
            texts.setdefault(str(group), {})
    return texts


def _strings(source: str, table: pa.Table, column: str) -> list[Any]:
    try:
        return strings(table.column(column), column)
    except RowKeptOut as problem:
        raise UsageError(f"{source}: {problem}") from None


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and not is_blank(text)
