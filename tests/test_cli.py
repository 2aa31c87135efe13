"""The command line: one message and an exit status, nothing but one JSON object on stdout."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import COMMANDS, main, parse_options
from pipeline.config import EncodeConfig, FitConfig
from pipeline.errors import UsageError
from tests.conftest import write_shard

ROOT = Path(__file__).parent.parent


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    out, err = capfd.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encod"], "did you mean 'encode'"),
        (["encode", "--inptu", "x"], "unknown option --inptu (did you mean '--input'?)"),
        (["encode", "--input", "x"], "--output is required"),
        (["encode", "--input", "/nowhere", "--output", "o", "--model", "m"], "names no Parquet file"),
        (["encode", "--num-actors", "0", "--input", "x", "--output", "o", "--model", "m"], "--num-actors = '0'"),
        (["encode", "--dtype", "fp32", "--input", "x", "--output", "o", "--model", "m"], "'float32'"),
        (["methods", "--model", "/nowhere"], "no such folder"),
        (["search", "--index", "/nowhere", "--query", "x"], "no index.json"),
        (["search", "--index", "/nowhere"], "either --query"),
        (["index", "--vectors", "/nowhere", "--output", "o"], "names no Parquet file"),
        (["evaluate", "--task", "nope", "--model", "m", "--output", "o"], "task YAML file"),
    ],
)
def test_wrong_use_is_one_message_and_status_2(
    capfd: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status, out, err = run(capfd, *arguments)
    assert status == 2 and not out
    assert message in err and "Traceback" not in err


def test_yaml_and_command_line(capfd: pytest.CaptureFixture[str], tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in.parquet", range(3), ["x", "y", "z"])
    config = tmp_path / "run.yaml"
    fields = f"input: [{tmp_path}/in.parquet]\noutput: {tmp_path}/out\nmodel: {tiny['llama']}\nmethod: lt\n"
    config.write_text(fields)
    status, out, _ = run(capfd, "encode", "--config", str(config), "--plan", "--json")
    assert status == 0 and json.loads(out)["identity"]["method"]["name"] == "lt"
    status, out, _ = run(capfd, "encode", "--config", str(config), "--method", "va", "--plan", "--json")
    assert json.loads(out)["identity"]["method"]["name"] == "va" and json.loads(out)["rows_to_do"] == 3
    config.write_text(fields + "unit_row: 3\n")
    status, _, err = run(capfd, "encode", "--config", str(config), "--plan")
    assert status == 2 and "unknown key 'unit_row' (did you mean 'unit_rows'?)" in err
    config.write_text("- input")
    assert run(capfd, "encode", "--config", str(config))[0] == 2
    assert run(capfd, "encode", "--config", str(tmp_path / "nowhere.yaml"))[0] == 2


def test_too_many_quarantined_is_status_4(
    ray_session: None, capfd: pytest.CaptureFixture[str], tiny: dict[str, str], tmp_path: Path
) -> None:
    write_shard(tmp_path / "in.parquet", range(4), ["x", "y", "z", None])
    arguments = ["encode", "--input", f"{tmp_path}/in.parquet", "--output", f"{tmp_path}/out", "--model", tiny["llama"]]
    status, out, err = run(capfd, *arguments, "--json")
    report = json.loads(out)
    assert status == 4 and report["rows_quarantined"] == 1 and "null-text: 1" in err
    assert run(capfd, *arguments, "--max-quarantined", "0.25")[0] == 0


def test_methods_as_json(capfd: pytest.CaptureFixture[str], tiny: dict[str, str]) -> None:
    status, out, _ = run(capfd, "methods", "--model", tiny["llama"], "--json")
    content: dict[str, Any] = json.loads(out)
    keys = {"name", "prompts", "read", "layers", "pooling", "steering", "width", "forward_passes", "paper", "notes"}
    assert status == 0 and keys <= set(content["methods"][0]) and content["model"] == tiny["llama"]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_a_module_with_help(command: str) -> None:
    done = subprocess.run([sys.executable, "-m", f"jobs.{command}", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--config FILE" in done.stdout and "--json" in done.stdout


def test_what_fails_in_a_worker_is_one_message_and_status_1(
    ray_session: None, capfd: pytest.CaptureFixture[str], tiny: dict[str, str], tmp_path: Path
) -> None:
    write_shard(tmp_path / "in.parquet", [1], ["x"])
    arguments = ["encode", "--input", f"{tmp_path}/in.parquet", "--output", f"{tmp_path}/out", "--model", tiny["llama"]]
    status, _, err = run(capfd, *arguments, "--attention", "flash_attention_2")
    assert status == 1
    assert "a worker failed" in err and "FlashAttention2" in err and "Traceback" not in err


def test_a_gpu_that_is_not_there_is_not_waited_for(
    capfd: pytest.CaptureFixture[str], tiny: dict[str, str], tmp_path: Path
) -> None:
    write_shard(tmp_path / "in.parquet", [1], ["x"])
    arguments = ["encode", "--input", f"{tmp_path}/in.parquet", "--output", f"{tmp_path}/out", "--model", tiny["llama"]]
    status, _, err = run(capfd, *arguments, "--device", "cuda", "--num-actors", "64")
    assert status == 2 and "usable GPU(s)" in err and not (tmp_path / "out").exists()


def test_yaml_may_name_one_value_for_a_list_and_ask_for_json(
    capfd: pytest.CaptureFixture[str], tiny: dict[str, str], tmp_path: Path
) -> None:
    write_shard(tmp_path / "in.parquet", [1], ["x"], lang=["en"])
    config = tmp_path / "run.yaml"
    config.write_text(
        f"input: {tmp_path}/in.parquet\noutput: {tmp_path}/o\nmodel: {tiny['llama']}\nkeep: lang\njson: true"
    )
    status, out, _ = run(capfd, "encode", "--config", str(config), "--plan")
    assert status == 0 and json.loads(out)["rows_to_do"] == 1


def test_an_output_that_is_a_file_is_refused(
    capfd: pytest.CaptureFixture[str], tiny: dict[str, str], tmp_path: Path
) -> None:
    path = write_shard(tmp_path / "in.parquet", [1], ["x"])
    other = write_shard(tmp_path / "other.parquet", [1], ["x"])
    status, _, err = run(capfd, "encode", "--input", path, "--output", other, "--model", tiny["llama"])
    assert status == 2 and "give a folder" in err


def test_recipes_are_known_by_name(tiny: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitting, _ = parse_options("fit", FitConfig, ["--config", "multilingual-fit", "--model", "m", "--input", "p"])
    encoding, _ = parse_options(
        "encode", EncodeConfig, ["--config", "multilingual", "--model", "m", "--input", "c", "--output", "v"]
    )
    assert encoding.subspace == [fitting.output] and encoding.method == fitting.method
    # A file of that name comes first.
    Path("multilingual").write_text("method: lt\n")
    own, _ = parse_options(
        "encode", EncodeConfig, ["--config", "multilingual", "--model", "m", "--input", "c", "--output", "v"]
    )
    assert own.method == "lt"
    with pytest.raises(UsageError, match="or a recipe: multilingual, multilingual-fit"):
        parse_options("encode", EncodeConfig, ["--config", "nothing"])
