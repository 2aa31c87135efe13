"""Rows that kill the process they are encoded in: bounded tries, those rows kept out, all others encoded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from extractors import Encoder
from pipeline.isolate import AboutTo, encode_with_care
from pipeline.store import VectorStore
from pipeline.vectors import matrix
from tests.conftest import write_shard
from tests.reference import assert_same_vectors

# Loaded by every Python process that finds it on its path: the process dies of a text with enough tildes.
DEADLY = """
import importlib.abc, importlib.machinery, os, signal, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "extractors.encoder":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            forward = module.Encoder._forward

            def deadly(self, batch, *rest):
                if any((row == DEATH).sum() >= 8 for row in batch.ids[0].split(batch.lengths)):
                    with open(LOG, "a") as log:
                        log.write("x")
                    os.kill(os.getpid(), signal.SIGKILL)
                return forward(self, batch, *rest)

            module.Encoder._forward = deadly

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


ROOT = Path(__file__).parent.parent


class Death(BaseException):
    """Ends an attempt as a killed process does: nothing is tidied up."""


@pytest.mark.parametrize("killers", [[], [0], [57], [3, 4, 99]])
def test_steps_find_the_rows_that_kill(tmp_path: Path, killers: list[int]) -> None:
    store, rows = VectorStore(str(tmp_path)), list(range(100))

    def encode(rows: list[int], about_to: AboutTo | None) -> np.ndarray:
        for batch in (rows[i : i + 32] for i in range(0, len(rows), 32)):
            if about_to is not None:
                about_to(batch)
            if set(batch) & set(killers):
                raise Death
        return np.array(rows, dtype=np.float32).reshape(-1, 1)

    # Two deaths of the unit, one a step, two a row.
    for _ in range(3 + 3 * len(killers) if killers else 1):
        try:
            vectors, found = encode_with_care(store, "unit", rows, encode)
            break
        except Death:
            pass
    assert sorted(found) == killers
    assert vectors.ravel().tolist() == [row for row in rows if row not in killers]


def test_a_machine_that_dies_twice_costs_no_row(tmp_path: Path) -> None:
    store, deaths = VectorStore(str(tmp_path)), iter([True, True, False])

    def encode(rows: list[int], about_to: AboutTo | None) -> np.ndarray:
        if rows and next(deaths, False):
            raise Death
        return np.zeros((len(rows), 1), dtype=np.float32)

    for _ in range(2):
        with pytest.raises(Death):
            encode_with_care(store, "unit", [1, 2], encode)
    vectors, found = encode_with_care(store, "unit", [1, 2], encode)
    assert len(vectors) == 2 and not found
    store.end_attempt("unit")
    assert store.attempt("unit") is None


def run_with_deadly_rows(folder: Path, model: str, rows: int, deadly: set[int], unit_rows: int) -> int:
    """Encodes texts of which some end every process that encodes them; returns how many processes died."""
    from tests.conftest import byte_level

    token, log, inject = byte_level()("~")["input_ids"][0], folder / "deaths", folder / "inject"
    inject.mkdir()
    (inject / "sitecustomize.py").write_text(f"DEATH, LOG = {token}, {str(log)!r}\n{DEADLY}")
    write_shard(folder / "in" / "a.parquet", range(rows), [text_of(row, deadly) for row in range(rows)])
    command = ["--model", model, "--method", "lt", "--input", str(folder / "in"), "--output", str(folder / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "jobs.encode", *command, "--max-quarantined", "0.1", "--unit-rows", str(unit_rows)],
        env={**os.environ, "PYTHONPATH": f"{inject}{os.pathsep}{ROOT}"},
        timeout=1800,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((folder / "out" / "report.json").read_text())
    assert (report["rows_in"], report["rows_out"]) == (rows, rows - len(deadly))
    assert report["reasons"] == {"kills-worker": len(deadly)}
    found = {
        i: v
        for _, table in VectorStore(str(folder / "out")).iter_vectors()
        for i, v in zip(table.column("id").to_pylist(), matrix(table.column("vector")), strict=True)
    }
    others = [row for row in range(rows) if row not in deadly]
    assert sorted(found) == others and not list((folder / "out" / "attempts").iterdir())
    expected = Encoder(model, "lt").encode([text_of(row, deadly) for row in others])
    assert_same_vectors(np.stack([found[row] for row in others]), expected)
    return len(log.read_text())


def text_of(row: int, deadly: set[int]) -> str:
    return "~ " * 12 if row in deadly else f"text {row}"


def test_a_deadly_row_is_kept_out_and_the_job_ends(tmp_path: Path, tiny: dict[str, str]) -> None:
    # Twice before a row is suspected, once for its batch, twice for itself.
    assert run_with_deadly_rows(tmp_path, tiny["llama"], 40, {7}, unit_rows=25) == 5


@pytest.mark.chaos
def test_ten_deadly_rows_among_ten_thousand(tmp_path: Path, tiny: dict[str, str]) -> None:
    deadly = {3, 999, 1000, 1001, 2500, 5017, 5018, 7777, 9998, 9999}
    assert run_with_deadly_rows(tmp_path, tiny["llama"], 10_000, deadly, unit_rows=1000) <= 5 * len(deadly)
