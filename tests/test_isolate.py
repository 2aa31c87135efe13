"""Rows that kill the process they are encoded in: bounded tries, those rows kept out, all others encoded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from extractors import Encoder
from pipeline.isolate import encode_with_care
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
                if any((row.ids == DEATH).sum() >= 8 for row in batch):
                    with open(LOG, "a") as log:
                        log.write("x")
                    os.kill(os.getpid(), signal.SIGKILL)
                return forward(self, batch, *rest)

            module.Encoder._forward = deadly

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
"""


class Death(BaseException):
    """Ends an attempt as a killed process does: nothing is tidied up."""


@pytest.mark.parametrize("killers", [[], [0], [57], [3, 4, 99]])
def test_steps_find_the_rows_that_kill(tmp_path: Path, killers: list[int]) -> None:
    store, rows = VectorStore(str(tmp_path)), list(range(100))

    def encode(rows: list[int]) -> np.ndarray:
        if set(rows) & set(killers):
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

    def encode(rows: list[int]) -> np.ndarray:
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


def test_a_deadly_row_is_kept_out_and_the_job_ends(tmp_path: Path, tiny: dict[str, str]) -> None:
    from tests.conftest import byte_level

    deadly, log = byte_level()("~")["input_ids"][0], tmp_path / "deaths"
    inject = tmp_path / "inject"
    inject.mkdir()
    (inject / "sitecustomize.py").write_text(f"DEATH, LOG = {deadly}, {str(log)!r}\n{DEADLY}")
    texts = [f"text {i}" for i in range(40)]
    texts[7] = "~ " * 12
    write_shard(tmp_path / "in" / "a.parquet", range(40), texts)
    root = Path(__file__).parent.parent
    command = ["--model", tiny["llama"], "--method", "lt", "--input", str(tmp_path / "in")]
    command += ["--output", str(tmp_path / "out"), "--max-quarantined", "0.1", "--unit-rows", "25"]
    done = subprocess.run(
        [sys.executable, "-m", "jobs.encode", *command],
        env={**os.environ, "PYTHONPATH": f"{inject}{os.pathsep}{root}"},
        timeout=300,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["rows_in"], report["rows_out"]) == (40, 39) and report["reasons"] == {"kills-worker": 1}
    assert len(log.read_text()) == 5
    store = VectorStore(str(tmp_path / "out"))
    found = {
        i: v
        for _, table in store.iter_vectors()
        for i, v in zip(table.column("id").to_pylist(), matrix(table.column("vector")), strict=True)
    }
    others = [i for i in range(40) if i != 7]
    assert sorted(found) == others and not list((tmp_path / "out" / "attempts").iterdir())
    expected = Encoder(tiny["llama"], "lt").encode([texts[i] for i in others])
    assert_same_vectors(np.stack([found[i] for i in others]), expected)
