"""A run through faults gives the vectors of an undisturbed one: each row once, nothing done again after its commit."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from pipeline.config import EncodeConfig
from pipeline.encode import encode
from pipeline.errors import RunError
from pipeline.store import VectorStore
from tests.conftest import write_shard
from tests.s3 import BUCKET, FaultyProxy, client, environment, seaweedfs
from tests.storm import Disturbance, Storm, kill_an_encoder, kill_the_driver, lose_a_node, two_nodes
from tests.test_encode import texts_of

ROOT = Path(__file__).parent.parent
OPTIONS = {"method": "va-half", "unit_rows": 200}
# A thread each, as one CPU a node gives: other numbers of threads add in another order.
COMMAND = [sys.executable, "-m", "jobs.encode", "--method", "va-half", "--unit-rows", "200", "--num-actors", "2"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with two_nodes() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 files of 1 to 500 rows."""
    folder, row = tmp_path_factory.mktemp("shards"), 0
    for number in range(20):
        rows = [1, 150, 500, 40, 210][number % 5]
        write_shard(folder / f"{number:02d}.parquet", range(row, row + rows), texts_of(rows, seed=number))
        row += rows
    return folder


@pytest.fixture(scope="module")
def undisturbed(ray_session: None, tiny: dict[str, str], shards: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The content hash."""
    output = str(tmp_path_factory.mktemp("undisturbed"))
    options = {**OPTIONS, "num_actors": 2, "model": tiny["llama"], "input": str(shards), "output": output}
    return encode(EncodeConfig.model_validate(options))["content_hash"]


def local_commits(output: Path) -> Callable[[], dict[str, object]]:
    return lambda: {path.stem: path.stat().st_mtime_ns for path in output.glob("commits/*.json")}


def run_through(
    cluster: Cluster,
    command: list[str],
    commits: Callable[[], dict[str, object]],
    disturbances: list[tuple[int, Disturbance]],
    limit: float,
) -> None:
    storm = Storm(cluster, command, {"PYTHONPATH": str(ROOT)})
    try:
        first_seen = storm.pass_over(commits, disturbances, limit)
    finally:
        storm.close()
    last_seen = commits()
    assert {unit: last_seen[unit] for unit in first_seen} == first_seen, "a unit was done again after its commit"


def test_killed_workers_a_lost_node_and_a_killed_driver(
    cluster: Cluster, undisturbed: str, tiny: dict[str, str], shards: Path, tmp_path: Path
) -> None:
    # What a worker that died while it wrote would leave behind.
    (tmp_path / "vectors").mkdir()
    (tmp_path / "vectors" / ".torn.parquet.123").write_bytes(b"PAR1")
    command = [*COMMAND, "--model", tiny["llama"], "--input", str(shards), "--output", str(tmp_path)]
    disturbances = [(2, kill_an_encoder), (6, lose_a_node), (10, kill_an_encoder), (14, kill_the_driver)]
    run_through(cluster, command, local_commits(tmp_path), disturbances, limit=240)
    report = VectorStore(str(tmp_path)).report()
    assert report is not None and (report["rows_in"], report["rows_out"]) == (3604, 3604)
    assert report["content_hash"] == undisturbed and not list((tmp_path / "attempts").glob("*.json"))


@pytest.mark.chaos
def test_the_same_and_more_on_a_store_that_fails(
    undisturbed: str, tiny: dict[str, str], shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seaweedfs(tmp_path) as server:
        files, place = client(server), f"{BUCKET}/storm"
        for path in shards.iterdir():
            files.pipe_file(f"{place}/in/{path.name}", path.read_bytes())

        def commits() -> dict[str, object]:
            return {path: info["ETag"] for path, info in files.find(f"{place}/out/commits", detail=True).items()}

        kills: list[tuple[int, Disturbance]] = [(count, kill_an_encoder) for count in range(1, 26, 2)]
        losses: list[tuple[int, Disturbance]] = [(5, lose_a_node), (15, lose_a_node)]
        restarts: list[tuple[int, Disturbance]] = [(10, kill_the_driver), (20, kill_the_driver)]
        disturbances = sorted([*kills, *losses, *restarts], key=lambda one: one[0])
        with FaultyProxy(server, faulty=("/in/", "/vectors/", "/commits/")).running() as url:
            places = ["--input", f"s3://{place}/in", "--output", f"s3://{place}/out"]
            command = [*COMMAND, "--model", tiny["llama"], *places]
            # Workers have their node's variables, not the driver's.
            for name, value in environment(url).items():
                monkeypatch.setenv(name, value)
            with two_nodes() as cluster:
                run_through(cluster, command, commits, disturbances, limit=1200)
        report = json.loads(files.cat_file(f"{place}/out/report.json"))
        assert (report["rows_in"], report["rows_out"]) == (3604, 3604)
        assert report["content_hash"] == undisturbed and not files.glob(f"{place}/out/attempts/*.json")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root may mount a small disk")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_costs_nothing_that_is_committed(
    undisturbed: str, tiny: dict[str, str], shards: Path, small_disk: Path
) -> None:
    options = {**OPTIONS, "num_actors": 2, "model": tiny["llama"], "input": str(shards), "output": str(small_disk)}
    config = EncodeConfig.model_validate(options)
    with pytest.raises(RunError, match=rf"{small_disk}/.* No space left on device"):
        encode(config)
    commits = local_commits(small_disk)
    committed = commits()
    assert committed and not (small_disk / "report.json").exists()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    report = encode(config)
    assert report["rows_out"] == 3604 and report["content_hash"] == undisturbed
    assert {unit: commits()[unit] for unit in committed} == committed
    # Nothing half written is left.
    names = [path.name for path in small_disk.rglob("*") if path.is_file()]
    assert all(name.endswith((".json", ".parquet")) and not name.startswith(".") for name in names)
