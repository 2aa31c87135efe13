"""Units that are in work for long are named."""

import time
from pathlib import Path

import pytest

from pipeline.source import Unit
from pipeline.store import VectorStore
from pipeline.watch import watching

UNITS = [Unit(name=f"unit-{i}", source=f"/data/{i}.parquet", tag="", row_start=10 * i, rows=10) for i in range(3)]


def test_a_unit_without_progress_is_named_again_and_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = VectorStore(str(tmp_path))
    with watching(store, UNITS, seconds=0.2):
        time.sleep(0.5)
        store.note_attempt("unit-1", {"number": 2})
        time.sleep(0.7)
    printed = capsys.readouterr().err.splitlines()
    assert "none has begun" in printed[0]
    named = [line for line in printed if "unit-1 (/data/1.parquet, from row 10; attempt 2)" in line]
    assert len(named) >= 2


def test_as_long_as_units_are_finished_nothing_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watching(VectorStore(str(tmp_path)), UNITS, seconds=1.0) as finished:
        for _ in range(8):
            time.sleep(0.2)
            finished()
    assert capsys.readouterr().err == ""
