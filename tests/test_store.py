"""The on-disk format: whole or absent, refused when it is another run's, added up from commits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import UsageError
from pipeline.report import make_report, repeated_ids
from pipeline.storage import Folder
from pipeline.store import QUARANTINE_SCHEMA, VectorStore, differences, fingerprint, vector_schema
from pipeline.workers import content_hash

NOTHING = QUARANTINE_SCHEMA.empty_table()


def vectors(ids: list[Any], seed: int = 0, dtype: str = "float32") -> pa.Table:
    kind = pa.string() if ids and isinstance(ids[0], str) else pa.int64()
    values = np.random.default_rng(seed).normal(size=(len(ids), 3)).astype(dtype)
    columns = [
        pa.array(ids, kind),
        pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3),
        pa.array([2] * len(ids), pa.int32()),
        pa.array([False] * len(ids)),
    ]
    return pa.Table.from_arrays(columns, schema=vector_schema(kind, [], {"vector": 3}, dtype))


def commit(unit: str, table: pa.Table, **changes: Any) -> dict[str, Any]:
    counts = {"rows_in": len(table), "rows_out": len(table), "rows_quarantined": 0, "tokens": 2 * len(table)}
    rest = {"truncated": 0, "seconds": 0.5, "reasons": {}, "by_language": {}, "fingerprint": "f", "intact": True}
    place = {"unit": unit, "source": f"/{unit}", "source_tag": "t", "row_start": 0}
    return {**place, **counts, **rest, "content_hash": content_hash(table), **changes}


def test_publish_replaces_whole_files_and_leaves_no_trace(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.publish("a/b.txt", b"one")
    folder.publish("a/b.txt", b"two")
    assert folder.read("a/b.txt") == b"two"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b.txt"]
    (tmp_path / "a" / ".b.txt.123").write_bytes(b"torn")
    assert folder.names("a") == {"b.txt": 3}
    folder.remove("a/b.txt")
    folder.remove("a/b.txt")
    assert folder.names("a") == {} and folder.names("nowhere") == {}


def test_only_committed_files_count(tmp_path: Path) -> None:
    store = VectorStore(str(tmp_path))
    store.publish_unit(commit("u1", vectors([1, 2])), vectors([1, 2]), NOTHING)
    store.publish_unit(commit("u2", vectors([3])), vectors([3]), NOTHING)
    (tmp_path / "vectors" / "stray.parquet").write_bytes((tmp_path / "vectors" / "u1.parquet").read_bytes())
    assert sum(table.num_rows for _, table in store.iter_vectors()) == 3
    (tmp_path / "vectors" / "u2.parquet").unlink()
    assert set(store.commits()) == {"u1"}
    store.withdraw("u1")
    assert not store.commits() and not (tmp_path / "vectors" / "u1.parquet").exists()


def test_files_are_what_the_format_says(tmp_path: Path) -> None:
    store = VectorStore(str(tmp_path))
    store.publish_unit(commit("u", vectors(["007"], dtype="float16")), vectors(["007"], dtype="float16"), NOTHING)
    schema = pq.read_schema(tmp_path / "vectors" / "u.parquet")
    assert schema.names == ["id", "vector", "n_tokens", "truncated"]
    assert schema.field("vector").type == pa.list_(pa.float16(), 3)
    assert not (tmp_path / "quarantine").exists()
    (file,) = json.loads((tmp_path / "commits" / "u.json").read_text())["files"]
    assert file["path"] == "vectors/u.parquet" and file["rows"] == 1 and len(file["sha256"]) == 64


def test_another_identity_is_refused_with_what_differs(tmp_path: Path) -> None:
    store = VectorStore(str(tmp_path))
    ours = {"dtype": "float32", "method": {"name": "va", "layers": [1]}}
    assert not store.check_identity(ours)
    store.start(ours, {"model": "m"})
    store.publish_unit(commit("u", vectors([1]), fingerprint=fingerprint(ours)), vectors([1]), NOTHING)
    assert store.check_identity(dict(reversed(ours.items())))
    with pytest.raises(UsageError, match=r"method\.name 'va' there, 'lt' here"):
        store.check_identity({**ours, "method": {"name": "lt", "layers": [1]}})
    run = store.run()
    assert run is not None and run["fingerprint"] == fingerprint(ours)
    assert differences(ours, ours) == ""


def test_vectors_of_unknown_origin_are_not_added_to(tmp_path: Path) -> None:
    store = VectorStore(str(tmp_path))
    store.publish_unit(commit("u", vectors([1])), vectors([1]), NOTHING)
    with pytest.raises(UsageError, match="holds vectors but no run"):
        store.check_identity({})


@pytest.mark.parametrize("ids", [([1, 2], [3, 2]), (["1", "2"], ["3", "2"])])
def test_an_id_in_two_units_is_listed_with_both_places(tmp_path: Path, ids: tuple[list[Any], list[Any]]) -> None:
    store = VectorStore(str(tmp_path))
    for unit, part in zip(("u1", "u2"), ids, strict=True):
        store.publish_unit(commit(unit, vectors(part)), vectors(part), NOTHING)
    (entry,) = repeated_ids(store)
    assert entry == {"id": ids[0][1], "places": ["/u1 (unit u1)", "/u2 (unit u2)"]}
    assert make_report(store)["status"] == "partial"


def test_report_adds_up_commits(tmp_path: Path) -> None:
    store = VectorStore(str(tmp_path))
    languages = [{"fra": {"rows": 2, "tokens": 4, "truncated": 0}}, {"fra": {"rows": 1, "tokens": 2, "truncated": 1}}]
    for unit, part, language in zip(("u1", "u2"), ([1, 2], [3]), languages, strict=True):
        store.publish_unit(commit(unit, vectors(part), by_language=language), vectors(part), NOTHING)
    report = make_report(store)
    assert (report["status"], report["rows_in"], report["rows_out"], report["tokens"]) == ("complete", 3, 3, 6)
    assert report["by_language"] == {"fra": {"rows": 3, "tokens": 6, "truncated": 1}}


def test_content_hash_knows_rows_but_not_their_order() -> None:
    table = vectors([1, 2, 3])
    assert content_hash(table) == content_hash(table.take([2, 0, 1]))
    parts = [int(content_hash(part), 16) for part in (table.slice(0, 1), table.slice(1))]
    assert f"{sum(parts) % 2**256:064x}" == content_hash(table)
    swapped = table.set_column(0, table.schema.field("id"), pa.array([2, 1, 3]))
    assert len({content_hash(t) for t in (table, swapped, vectors([1, 2, 3], seed=1), vectors(["1", "2", "3"]))}) == 4


def test_files_cut_short_are_not_committed_and_damage_is_named(tmp_path: Path) -> None:
    store = VectorStore(str(tmp_path))
    for unit, part in (("u1", [1]), ("u2", [2])):
        store.publish_unit(commit(unit, vectors(part)), vectors(part), NOTHING)
    path = tmp_path / "vectors" / "u1.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-5])
    assert set(store.commits()) == {"u2"}
    path.write_bytes(content[:-5] + b"WRONG")
    with pytest.raises(UsageError, match=r"u1\.parquet .*is no readable Parquet file"):
        list(store.iter_vectors())
    (tmp_path / "commits" / "u2.json").write_text('{"unit": ')
    assert set(store.commits()) == {"u1"}


def test_units_of_another_run_are_never_mixed_in(tmp_path: Path) -> None:
    store = VectorStore(str(tmp_path))
    store.start({"a": 1}, {})
    with pytest.raises(UsageError, match="belongs to another run"):
        store.check_identity({"a": 2})
    # A worker may still be at work when another has failed: what it publishes must not lie in a folder of no run.
    store.note_attempt("u1", {"number": 1})
    store.abandon()
    assert store.check_identity({"a": 1}), "a run with a unit begun is not abandoned"
    store.end_attempt("u1")
    store.abandon()
    assert not store.check_identity({"a": 2})
    store.start({"a": 2}, {})
    store.publish_unit(commit("u1", vectors([1]), fingerprint=fingerprint({"a": 1})), vectors([1]), NOTHING)
    with pytest.raises(UsageError, match="units of another run, such as u1"):
        store.commits()
    store.abandon()
    assert store.run() is not None, "a run with commits is not abandoned"
    (tmp_path / "run.json").write_text("")
    with pytest.raises(UsageError, match=r"run\.json is damaged"):
        store.run()


def test_writing_below_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in ("file", "file/below"):
        with pytest.raises(UsageError, match="give a folder"):
            Folder(str(tmp_path / root)).publish("a.json", b"")


def test_publish_if_changed_leaves_equal_files_alone(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    folder.publish_if_changed("a", b"x")
    made = (tmp_path / "a").stat().st_mtime_ns
    folder.publish_if_changed("a", b"x")
    assert (tmp_path / "a").stat().st_mtime_ns == made
    folder.publish_if_changed("a", b"y")
    assert folder.read("a") == b"y"
