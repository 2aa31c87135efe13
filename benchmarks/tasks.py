"""The tasks of the tables in docs/, cut out of Parquet copies of public sets.

DATA holds NTREX-128 (parallel/ntrex128_part*.parquet: a column a language), Banking77
(classification/banking77.parquet: text, label, split), SIB-200 (parallel/sib200_{test_dev,train_a,train_b}.parquet:
group_id, text, label, lang, split), TICO-19 (parallel/tico19.parquet: a column a language), XQuAD
(parallel/xquad_parallel.parquet: group_id, kind, lang, text) and Tatoeba (bitext/tatoeba.parquet: lang, src, tgt).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from pipeline.demo import find_demo_model

TRAIN_ROWS, TEST_ROWS = 1000, 500


def options(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the options that all tables share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", default=find_demo_model(), help="default: the demo's SmolLM2-135M-Instruct")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16")
    return parser


def ntrex(data: Path, languages: Sequence[str], begin: int, end: int) -> pa.Table:
    """Returns rows begin to end - 1 with the id and a column a language."""
    parts = [pq.read_table(path) for path in sorted(data.glob("parallel/ntrex128_part*.parquet"))]
    columns = {name: part.column(name) for part in parts for name in part.column_names}
    return pa.table({name: columns[name] for name in ("id", *languages)}).slice(begin, end - begin)


def bitext(folder: Path, name: str, table: pa.Table, languages: Sequence[str]) -> str:
    """Writes a task of each language against English; returns its file."""
    return _write(folder, name, table, type="bitext", pairs=[[language, "eng"] for language in languages])


def banking77(data: Path, folder: Path) -> str:
    """Writes the classification task: rows at equal distances, since the file is sorted by label."""
    table = pq.read_table(data / "classification" / "banking77.parquet")
    splits = (("train", TRAIN_ROWS), ("test", TEST_ROWS))
    rows = pa.concat_tables([_spread(_where(table, "split", split), count) for split, count in splits])
    return _write(folder, "banking77", rows, type="classification")


def sib200(data: Path, folder: Path) -> str:
    """Writes the clustering task: the English test sentences and their topics."""
    table = pq.read_table(data / "parallel" / "sib200_test_dev.parquet")
    return _write(folder, "sib200", _where(_where(table, "lang", "eng_Latn"), "split", "test"), type="clustering")


def tatoeba(data: Path, folder: Path, languages: Sequence[str], limit: int) -> str:
    """Writes the first ``limit`` pairs of each language with English."""
    table = pq.read_table(data / "bitext" / "tatoeba.parquet")
    chosen = table.filter(pc.is_in(table.column("lang"), pa.array(languages)))
    columns = {"source": "src", "target": "tgt", "subset": "lang"}
    return _write(folder, "tatoeba", chosen, type="bitext", columns=columns, limit=limit)


# Names of languages in sets that do not use NTREX's.
SIB200_NAMES = {
    **{"eng": "eng_Latn", "fra": "fra_Latn", "deu": "deu_Latn", "spa": "spa_Latn", "ita": "ita_Latn"},
    **{"por": "por_Latn", "nld": "nld_Latn", "pol": "pol_Latn", "rus": "rus_Cyrl", "tur": "tur_Latn"},
    **{"arb": "arb_Arab", "zho-CN": "zho_Hans", "ron": "ron_Latn", "swe": "swe_Latn", "ell": "ell_Grek"},
}
TICO19_NAMES = {"spa": "spa-LA", "zho-CN": "zho"}
XQUAD_NAMES = {"zho-CN": "zho"}


def long(wide: pa.Table, prefix: str) -> pa.Table:
    """Returns a table with a column a language (and id) as group, lang, text; groups are named prefix-id."""
    parts = [
        pa.table(
            {
                "group": [f"{prefix}-{value}" for value in wide.column("id").to_pylist()],
                "lang": [language] * wide.num_rows,
                "text": wide.column(language),
            }
        )
        for language in wide.column_names
        if language != "id"
    ]
    return pa.concat_tables(parts)


def sib200_groups(data: Path, languages: Sequence[str], groups: int) -> pa.Table:
    """Returns the first training sentences in these languages as group, lang, text."""
    parts = [pq.read_table(data / "parallel" / f"sib200_train_{part}.parquet") for part in "ab"]
    return _groups(pa.concat_tables(parts), "sib200", SIB200_NAMES, languages, groups)


def tico19(data: Path, languages: Sequence[str], groups: int) -> pa.Table:
    """Returns the first sentences that all these languages have as group, lang, text."""
    table = pq.read_table(data / "parallel" / "tico19.parquet")
    columns = {name: table.column(TICO19_NAMES.get(name, name)) for name in languages}
    return long(pa.table({"id": table.column("id"), **columns}).drop_null().slice(0, groups), "tico19")


def xquad_questions(data: Path, languages: Sequence[str], groups: int) -> pa.Table:
    """Returns the first questions in these languages as group, lang, text."""
    table = _where(pq.read_table(data / "parallel" / "xquad_parallel.parquet"), "kind", "question")
    return _groups(table, "xquad", XQUAD_NAMES, languages, groups)


def _groups(table: pa.Table, prefix: str, names: dict[str, str], languages: Sequence[str], groups: int) -> pa.Table:
    """Takes the first groups of a long table in these languages, which ``names`` spells as the table does."""
    parts = []
    for language in languages:
        own = _where(table, "lang", names.get(language, language)).sort_by("group_id").slice(0, groups)
        wide = pa.table({"id": own.column("group_id"), language: own.column("text")})
        parts.append(long(wide, prefix))
    return pa.concat_tables(parts)


def _where(table: pa.Table, column: str, value: str) -> pa.Table:
    return table.filter(pc.equal(table.column(column), value))


def _spread(table: pa.Table, rows: int) -> pa.Table:
    return table.take([i * table.num_rows // rows for i in range(rows)])


def _write(folder: Path, name: str, table: pa.Table, **fields: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f"{name}.parquet")
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, "data": f"{name}.parquet", **fields}), encoding="utf-8")
    return str(path)
