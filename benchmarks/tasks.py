"""The tasks of the tables in docs/, cut out of Parquet copies of public sets.

DATA holds NTREX-128 (parallel/ntrex128_part*.parquet: a column a language), Banking77
(classification/banking77.parquet: text, label, split), SIB-200 (parallel/sib200_test_dev.parquet: text, label, lang,
split) and Tatoeba (bitext/tatoeba.parquet: lang, src, tgt).
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
