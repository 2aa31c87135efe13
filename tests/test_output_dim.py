"""Vectors of fewer values are principal components of the run's own, and queries get the same ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from extractors import Encoder
from extractors.subspace import load_subspace
from jobs.encode import main
from pipeline.store import VectorStore
from pipeline.vectors import matrix
from tests.conftest import SENTENCES, write_shard

pytestmark = pytest.mark.usefixtures("ray_session")


def run(tiny: dict[str, str], folder: Path, *options: str) -> int:
    command = [
        "--model",
        tiny["llama"],
        "--method",
        "lt",
        "--input",
        str(folder / "in"),
        "--output",
        str(folder / "out"),
    ]
    return main([*command, *options])


def stored(output: Path) -> dict[Any, np.ndarray]:
    tables = [table for _, table in VectorStore(str(output)).iter_vectors(["id", "vector"])]
    pairs = (zip(t.column("id").to_pylist(), matrix(t.column("vector")), strict=True) for t in tables)
    return {identifier: vector for part in pairs for identifier, vector in part}


def test_components_are_those_of_scikit_learn(tiny: dict[str, str], tmp_path: Path) -> None:
    texts = [f"{text} {i}" for i in range(3) for text in SENTENCES]
    write_shard(tmp_path / "in" / "a.parquet", range(36), [*texts[:35], None])
    assert run(tiny, tmp_path, "--output-dim", "8", "--max-quarantined", "0.1") == 0
    found = np.stack([stored(tmp_path / "out")[i] for i in range(35)])
    whole = Encoder(tiny["llama"], "lt").encode(texts[:35])
    expected = PCA(8, svd_solver="full").fit_transform(whole.astype(np.float64))
    # A direction may be turned round.
    signs = np.sign((found * expected).sum(axis=0))
    np.testing.assert_allclose(found * signs, expected, atol=1e-3 * np.abs(expected).max())
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "components.safetensors" in names and "sample" not in names
    components = load_subspace(str(tmp_path / "out" / "components.safetensors"))
    again = Encoder(tiny["llama"], "lt", subspaces=[components]).encode(texts[:1])
    np.testing.assert_allclose(again[0], found[0], atol=1e-4 * np.abs(found).max())


def test_a_run_goes_on_with_its_own_components(
    tiny: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(12), SENTENCES)
    assert run(tiny, tmp_path, "--output-dim", "4") == 0
    before = (tmp_path / "out" / "components.safetensors").read_bytes()
    write_shard(tmp_path / "in" / "b.parquet", range(12, 15), ["new words", "others", "and more"])
    assert run(tiny, tmp_path, "--output-dim", "4") == 0
    assert (tmp_path / "out" / "components.safetensors").read_bytes() == before
    assert {len(vector) for vector in stored(tmp_path / "out").values()} == {4} and len(stored(tmp_path / "out")) == 15
    for options, message in (
        (["--output-dim", "5"], "holds vectors of 4 values"),
        ([], "belongs to another run"),
    ):
        assert run(tiny, tmp_path, *options) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("width", "message"), [(64, "have 64 values; give less"), (12, "the input has 12")])
def test_too_many_components_are_refused(
    tiny: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], width: int, message: str
) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(12), SENTENCES)
    assert run(tiny, tmp_path, "--output-dim", str(width)) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()
