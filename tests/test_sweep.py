"""Sweeps: what is scored, the curve, and a recipe that does what was scored."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config import EvaluateConfig, SweepConfig
from pipeline.errors import UsageError
from pipeline.evaluate import evaluate
from pipeline.sweep import sweep
from tests.conftest import SENTENCES


@pytest.fixture
def options(tiny: dict[str, str], tmp_path: Path) -> dict[str, Any]:
    texts = [f"{text} {i}" for i, text in enumerate(SENTENCES[:8])]
    table = {
        "id": list(range(8)),
        "eng": texts,
        "xxx": [f"x {text}" for text in texts],
        "yyy": [f"{t} y" for t in texts],
    }
    pq.write_table(pa.table(table), tmp_path / "wide.parquet")
    task = {"name": "dev", "type": "bitext", "data": "wide.parquet", "pairs": [["xxx", "eng"]]}
    (tmp_path / "dev.yaml").write_text(yaml.safe_dump(task))
    corpus = {"input": str(tmp_path / "wide.parquet"), "languages": "eng,xxx,yyy"}
    return {
        "model": tiny["llama"],
        "method": "prompteol",
        "task": str(tmp_path / "dev.yaml"),
        "output": str(tmp_path / "sweep"),
        **corpus,
    }


def checked(options: dict[str, Any], tmp_path: Path, **more: Any) -> dict[str, Any]:
    """Runs a sweep; the recipe scores what the sweep says it does."""
    result = sweep(SweepConfig.model_validate({**options, **more}))
    folder = Path(options["output"])
    assert json.loads((folder / "sweep.json").read_text()) == result
    assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    (again,) = evaluate(
        EvaluateConfig.model_validate({**recipe, "task": options["task"], "output": str(tmp_path / "again")})
    )
    best = next(point for point in result["points"] if point["value"] == result["best"])
    assert again["main_score"] == best["mean"] == max(point["mean"] for point in result["points"])
    return result


def test_start_layers(ray_session: None, options: dict[str, Any], tmp_path: Path) -> None:
    result = checked(options, tmp_path, over="start-layer", values="2,3")
    assert [point["value"] for point in result["points"]] == ["2", "3"]
    assert result["recipe"]["subspace"] == [f"{options['output']}/subspaces/start-layer-{result['best']}.safetensors"]


def test_ranks_on_the_finished_vector(ray_session: None, options: dict[str, Any], tmp_path: Path) -> None:
    result = checked(options, tmp_path, over="rank", place="embedding", method="va")
    assert [point["value"] for point in result["points"]] == ["1", "2"]
    assert len(list(Path(options["output"], "subspaces").iterdir())) == 2


def test_layers_of_a_steered_method(ray_session: None, options: dict[str, Any], tmp_path: Path) -> None:
    more = {"over": "layer", "values": [2, 3], "method": "tp", "max_length": 100}
    result = checked({**options, "input": []}, tmp_path, **more)
    assert result["recipe"]["max_length"] == 100
    assert yaml.safe_load(Path(result["recipe"]["method"]).read_text())["layers"] == [int(result["best"])]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"over": "rank", "input": []}, "give a parallel corpus with --input"),
        ({"over": "layer", "values": "one"}, "takes whole numbers from 0 to 3"),
        ({"over": "layer", "values": "3,99"}, "--values 99: .*from 0 to 3"),
        ({"over": "start-layer", "values": [2, -1]}, "--values -1: .*from 0 to 3"),
        ({"over": "start-layer", "values": "3", "method": "aligned-wva-prompteol"}, "from 0 to 2"),
        ({"over": "groups", "values": "9"}, "from 1 to 8"),
        ({"over": "languages", "values": "1"}, "from 2 to 3"),
        ({"over": "rank", "values": "0"}, "from 1 to 63"),
        ({"over": "rank", "construction": "lir"}, "needs each text's language"),
    ],
)
def test_wrong_sweeps_are_refused(options: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sweep(SweepConfig.model_validate({**options, **changes}))
