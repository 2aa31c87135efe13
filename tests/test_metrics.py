"""What Prometheus sees of a run, on Ray's own endpoint, and what stands in the encoders' logs."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import ray

from pipeline.config import EncodeConfig
from pipeline.encode import encode
from pipeline.store import VectorStore
from tests.conftest import SENTENCES, write_shard

pytestmark = pytest.mark.usefixtures("ray_session")


def scraped() -> dict[str, float]:
    """Returns isogloss's series by name and, where it has one, reason, summed over workers."""
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    totals: dict[str, float] = {}
    for line in urllib.request.urlopen(url, timeout=10).read().decode().splitlines():
        if line.startswith("ray_isogloss") and 'method="wva-lt"' in line:
            series, value = line.rsplit(" ", 1)
            name = series.split("{")[0] + (
                ":" + series.split('reason="')[1].split('"')[0] if "reason=" in series else ""
            )
            totals[name] = totals.get(name, 0) + float(value)
    return totals


def test_a_run_is_seen_by_prometheus(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(14), [*SENTENCES, None, "x " * 600])
    options = {
        "model": tiny["llama"],
        "method": "wva-lt",
        "input": str(tmp_path / "in"),
        "output": str(tmp_path / "out"),
    }
    report = encode(EncodeConfig.model_validate(options))
    deadline = time.monotonic() + 60
    while "ray_isogloss_unit_seconds_count" not in (found := scraped()):
        assert time.monotonic() < deadline, "nothing came up"
        time.sleep(0.5)
    assert found["ray_isogloss_rows_total"] == report["rows_out"] == 13
    assert found["ray_isogloss_rows_quarantined_total:null-text"] == 1
    assert found["ray_isogloss_tokens_total"] == report["tokens"]
    assert found["ray_isogloss_tokens_run_total"] == report["tokens"] + found["ray_isogloss_padding_run_total"]
    assert found["ray_isogloss_rows_truncated_total"] == 1
    assert found["ray_isogloss_unit_seconds_count"] == 1


def test_each_unit_has_a_line_in_the_log(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(14), [*SENTENCES, None, "x " * 600])
    options = {"model": tiny["llama"], "method": "lt", "input": str(tmp_path / "in"), "output": str(tmp_path / "out")}
    encode(EncodeConfig.model_validate({**options, "unit_rows": 5}))
    session = ray.get_runtime_context().get_session_name()
    lines: list[dict[str, Any]] = []
    for path in Path("/tmp/ray", session, "logs").glob("worker-*.err"):
        lines += [json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"time"')]
    logged = {line["unit"]: line for line in lines if line["event"] == "committed"}
    commits = VectorStore(str(tmp_path / "out")).commits()
    assert len(commits) == 3
    for unit, commit in commits.items():
        for key in ("source", "row_start", "rows_in", "rows_out", "reasons", "tokens", "truncated", "seconds"):
            assert logged[unit][key] == commit[key]
    assert any(line["event"] == "ready" and line["method"] == "lt" for line in lines)
