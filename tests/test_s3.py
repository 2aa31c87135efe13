"""The main job from and to a real S3 server, through faults, and never by a listing that is out of date."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import EncodeConfig
from pipeline.encode import encode
from pipeline.store import VectorStore
from tests.conftest import SENTENCES, write_shard
from tests.s3 import BUCKET, FaultyProxy, client, environment, seaweedfs

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with seaweedfs(tmp_path_factory.mktemp("s3")) as url:
        yield url


def put(url: str, key: str, ids: Any, texts: Any) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ids, "text": texts}), sink)
    client(url).pipe_file(f"{BUCKET}/{key}", sink.getvalue().to_pybytes())


def run(url: str, model: str, place: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command with input and output in a folder of the bucket."""
    command = [
        "--model",
        model,
        "--method",
        "va-half",
        "--unit-rows",
        "6",
        "--input",
        f"s3://{BUCKET}/{place}/in/*.parquet",
    ]
    return subprocess.run(
        [sys.executable, "-m", "jobs.encode", *command, "--output", f"s3://{BUCKET}/{place}/out"],
        env={**os.environ, **environment(url), **variables, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def report(url: str, place: str) -> dict[str, Any]:
    return json.loads(client(url).cat_file(f"{BUCKET}/{place}/out/report.json"))


@pytest.fixture(scope="module")
def expected(ray_session: None, tiny: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The content hash of the same rows, encoded from and to this machine's disk."""
    folder = tmp_path_factory.mktemp("local")
    write_shard(folder / "a.parquet", range(12), SENTENCES)
    options = {"model": tiny["llama"], "method": "va-half", "input": str(folder), "output": str(folder / "out")}
    return encode(EncodeConfig.model_validate({**options, "unit_rows": 6}))["content_hash"]


def test_through_slow_downs_errors_and_cut_bodies(server: str, tiny: dict[str, str], expected: str) -> None:
    put(server, "faulty/in/a.parquet", range(12), SENTENCES)
    proxy = FaultyProxy(server, faulty=("/in/a.parquet", "/vectors/", "/commits/"))
    with proxy.running() as url:
        done = run(url, tiny["llama"], "faulty")
    assert done.returncode == 0, done.stderr
    assert report(server, "faulty")["content_hash"] == expected
    met = {key.split("/")[-2] for (_, key), count in proxy.given.items() if count > 3}
    assert met >= {"in", "vectors", "commits"}, proxy.given


def test_a_hopeless_key_is_named_in_time_and_the_rest_is_kept(server: str, tiny: dict[str, str], expected: str) -> None:
    put(server, "hopeless/in/a.parquet", range(12), SENTENCES)
    began = time.monotonic()
    with FaultyProxy(server, hopeless="-000000006.parquet").running() as url:
        failed = run(url, tiny["llama"], "hopeless", AWS_MAX_ATTEMPTS="2")
    assert failed.returncode == 1 and time.monotonic() - began < 120
    assert "-000000006.parquet" in failed.stderr and "Traceback" not in failed.stderr
    # No trace under the final name, and nothing committed is lost.
    files = client(server)
    assert not files.glob(f"{BUCKET}/hopeless/out/vectors/*-000000006.parquet")
    committed = {path: files.info(path)["ETag"] for path in files.glob(f"{BUCKET}/hopeless/out/commits/*.json")}
    done = run(server, tiny["llama"], "hopeless")
    assert done.returncode == 0 and report(server, "hopeless")["content_hash"] == expected
    assert all(client(server).info(path)["ETag"] == tag for path, tag in committed.items())


def test_an_object_that_stands_for_a_folder_is_no_file(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    files = client(server)
    for part in ("commits", "vectors"):
        files.call_s3("put_object", Bucket=BUCKET, Key=f"marked/{part}/", Body=b"")
    store = VectorStore(f"s3://{BUCKET}/marked")
    assert not store.check_identity({"a": 1}), "the folder is as good as new"
    assert store.folder.names("commits") == {}
    store.folder.publish("attempts/u1.json", b"{}")
    assert store.folder.names("attempts") == {"u1.json": 2}
    # What this server leaves behind.
    store.folder.remove("attempts/u1.json")
    assert store.folder.names("attempts") == {}


TWICE = """
from pipeline.cluster import disconnect
from pipeline.config import EncodeConfig
from pipeline.encode import encode
from tests.conftest import SENTENCES
from tests.test_s3 import put

config = EncodeConfig(model={model!r}, method="lt", input=["s3://{place}/in/*.parquet"], output="s3://{place}/out")
assert encode(config)["rows_out"] == 4
# By another client: a new object, and an old one replaced by one of another size.
put({url!r}, "news/in/b.parquet", range(10, 13), SENTENCES[4:7])
put({url!r}, "news/in/a.parquet", range(6), SENTENCES[:6])
assert encode(config)["rows_out"] == 9
disconnect()
"""


def test_one_process_sees_what_others_put_and_replace(
    server: str, tiny: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(server, "news/in/a.parquet", range(4), SENTENCES[:4])
    place = f"{BUCKET}/news"
    script = TWICE.format(model=tiny["llama"], place=place, url=server)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environment(server), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    tables = [table for _, table in VectorStore(f"s3://{place}/out").iter_vectors(["id"])]
    assert sorted(pa.concat_tables(tables).column("id").to_pylist()) == [0, 1, 2, 3, 4, 5, 10, 11, 12]
