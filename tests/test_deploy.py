"""Cluster files: Ray's own schema, KubeRay's fields, and commands that the command line understands."""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import yaml
from pydantic import BaseModel
from ray.autoscaler._private.util import prepare_config, validate_config

from jobs.cli import parse_options
from pipeline.config import EncodeConfig, EvaluateConfig, FitConfig
from pipeline.metrics import EncoderMetrics
from pipeline.store import VectorStore
from tests.conftest import SENTENCES, write_shard

ROOT = Path(__file__).parent.parent
CONFIGS: dict[str, type[BaseModel]] = {"encode": EncodeConfig, "evaluate": EvaluateConfig, "fit": FitConfig}


def _fields(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_TEXT, _COUNT, _ANY = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}, {"type": "object"}
_PARAMS = {"type": "object", "additionalProperties": {"type": "string"}}
_CONTAINER = _fields(
    {"name": _TEXT, "image": _TEXT, "resources": _fields({"requests": _PARAMS, "limits": _PARAMS}, {})}, {}
)
_POD = _fields(
    {"containers": {"type": "array", "minItems": 1, "items": _CONTAINER}},
    {"serviceAccountName": _TEXT, "nodeSelector": _PARAMS, "tolerations": {"type": "array"}},
)
_TEMPLATE = _fields({"spec": _POD}, {})
_WORKERS = _fields(
    {
        "groupName": _TEXT,
        "replicas": _COUNT,
        "minReplicas": _COUNT,
        "maxReplicas": _COUNT,
        "rayStartParams": _PARAMS,
        "template": _TEMPLATE,
    },
    {},
)
# The part of KubeRay's RayJob that is used here (ray.io/v1); an unknown field is one that Kubernetes would drop.
RAY_JOB = _fields(
    {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayJob"},
        "metadata": _fields({}, {"name": _TEXT, "generateName": _TEXT}),
        "spec": _fields(
            {
                "entrypoint": _TEXT,
                "submissionMode": {"enum": ["K8sJobMode", "HTTPMode", "SidecarMode"]},
                "shutdownAfterJobFinishes": {"type": "boolean"},
                "rayClusterSpec": _fields(
                    {
                        "rayVersion": _TEXT,
                        "headGroupSpec": _fields({"rayStartParams": _PARAMS, "template": _TEMPLATE}, {}),
                        "workerGroupSpecs": {"type": "array", "minItems": 1, "items": _WORKERS},
                    },
                    {"enableInTreeAutoscaling": {"type": "boolean"}},
                ),
            },
            {"ttlSecondsAfterFinished": _COUNT, "backoffLimit": _COUNT},
        ),
    },
    {},
)


def test_the_cluster_file_passes_rays_own_schema() -> None:
    config = yaml.safe_load((ROOT / "ray_cluster.yaml").read_text())
    validate_config(prepare_config(config))
    workers = config["available_node_types"]["gpu"]
    assert workers["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"
    # Without these Ray's defaults would install a Ray of their own.
    assert config["setup_commands"] == []
    with pytest.raises(Exception, match="min_worker"):
        validate_config(prepare_config({**config, "min_worker": 1}))


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_ray_job_has_known_fields_and_a_command_that_is_understood(name: str) -> None:
    job = yaml.safe_load((ROOT / "deploy" / f"{name}.yaml").read_text())
    jsonschema.validate(job, RAY_JOB)
    python, flag, module, *options = shlex.split(job["spec"]["entrypoint"])
    assert (python, flag, module) == ("python", "-m", f"jobs.{name}")
    config, _ = parse_options(name, CONFIGS[name], options)
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert config.num_actors <= group["maxReplicas"]  # type: ignore[attr-defined]


def test_the_nightly_job_may_create_what_it_creates() -> None:
    account, role, binding, cron = yaml.safe_load_all((ROOT / "deploy" / "nightly.yaml").read_text())
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    name = account["metadata"]["name"]
    assert pod["serviceAccountName"] == binding["subjects"][0]["name"] == name
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert role["rules"] == [{"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create"]}]
    (container,) = pod["containers"]
    assert container["command"][-1] == f"{container['volumeMounts'][0]['mountPath']}/evaluate.yaml"
    assert len(cron["spec"]["schedule"].split()) == 5


def test_the_dashboard_asks_for_series_that_exist() -> None:
    known = {f"ray_{metric.info['name']}" for metric in vars(EncoderMetrics("m", "m")).values()}
    dashboard = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    queries = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    asked = {re.sub(r"_(total|bucket)$", "", name) for name in re.findall(r"ray_isogloss_\w+", queries)}
    assert asked == known
    documented = (ROOT / "docs" / "operations.md").read_text()
    assert all(name in documented for name in known)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Ray head with a dashboard, as on a cluster; yields its address for jobs."""
    ports = [_free_port() for _ in range(3)]
    start = [f"{sys.prefix}/bin/ray", "start", "--head", "--block", f"--port={ports[0]}", "--num-cpus=2"]
    start += ["--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={ports[1]}"]
    # The agent that starts jobs listens on one fixed port otherwise, which another Ray on this machine may hold.
    start += [f"--dashboard-agent-listen-port={ports[2]}"]
    start += ["--object-store-memory=100000000", "--disable-usage-stats"]
    process = subprocess.Popen(
        start, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    address = f"http://127.0.0.1:{ports[1]}"
    deadline = time.monotonic() + 90
    try:
        while not _answers(f"{address}/api/version"):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.3)
        yield address
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(30)


def _environment() -> dict[str, str]:
    return {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except OSError:
        return False


def test_a_submitted_job_encodes(head: str, tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(12), SENTENCES)
    submit = [f"{sys.prefix}/bin/ray", "job", "submit", "--address", head, "--working-dir", str(ROOT), "--"]
    encode = [sys.executable, "-m", "jobs.encode", "--model", tiny["llama"], "--method", "lt"]
    encode += ["--input", str(tmp_path / "in"), "--output", str(tmp_path / "out")]
    deadline = time.monotonic() + 60
    while True:
        done = subprocess.run(
            [*submit, *encode], env=_environment(), capture_output=True, text=True, timeout=200, check=False
        )
        # The head answers before the agent that starts jobs is there.
        if "No available agent" not in done.stdout + done.stderr or time.monotonic() > deadline:
            break
        time.sleep(1)
    assert done.returncode == 0, done.stdout + done.stderr
    report = VectorStore(str(tmp_path / "out")).report()
    assert report is not None and (report["status"], report["rows_out"]) == ("complete", 12)
