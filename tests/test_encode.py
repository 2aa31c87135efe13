"""The main job on real Ray: exact vectors, rows accounted for, resumed after a kill, refused when it must be."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from extractors import Encoder
from pipeline.build_index import build_index
from pipeline.config import EncodeConfig, IndexConfig
from pipeline.encode import encode, prepare
from pipeline.errors import RunError, UsageError
from pipeline.plan import describe
from pipeline.store import VectorStore
from pipeline.tokenizing import tokenize_one
from pipeline.vectors import matrix
from pipeline.workers import EncodeUnit
from tests.conftest import SENTENCES, byte_level, llama, save_model, write_shard
from tests.reference import assert_same_vectors
from tests.test_source import damaged

pytestmark = pytest.mark.usefixtures("ray_session")


def config(tiny: dict[str, str], folder: Path, **changes: Any) -> EncodeConfig:
    options = {
        "model": tiny["llama"],
        "method": "va-half",
        "input": [str(folder / "in")],
        "output": str(folder / "out"),
    }
    return EncodeConfig.model_validate({**options, **changes})


def stored(output: Path | str) -> dict[Any, np.ndarray]:
    """Returns the committed vectors by id, after checking that no id comes twice."""
    found: dict[Any, np.ndarray] = {}
    for _, table in VectorStore(str(output)).iter_vectors():
        for identifier, vector in zip(table.column("id").to_pylist(), matrix(table.column("vector")), strict=True):
            assert identifier not in found
            found[identifier] = vector
    return found


def texts_of(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(SENTENCES, generator.integers(1, 4))) + f" {i}" for i in range(count)]


def test_a_thousand_sentences_in_three_shards_equal_a_plain_script(tiny: dict[str, str], tmp_path: Path) -> None:
    texts = texts_of(1000)
    for shard, (begin, end) in enumerate(((0, 20), (20, 500), (500, 1000))):
        ids = [f"{i:04d}" for i in range(begin, end)]
        write_shard(tmp_path / "in" / f"{shard}.parquet", ids, texts[begin:end])
    report = encode(config(tiny, tmp_path, num_actors=2, unit_rows=200))
    assert (report["status"], report["rows_in"], report["rows_out"], report["units"]) == ("complete", 1000, 1000, 7)

    model = AutoModel.from_pretrained(tiny["llama"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny["llama"])
    values: list[torch.Tensor] = []
    for layer in model.layers[2:]:
        layer.self_attn.v_proj.register_forward_hook(lambda _module, _inputs, output: values.append(output[0].mean(0)))
    expected = []
    for text in texts:
        values.clear()
        with torch.no_grad():
            model(**tokenizer(text, return_tensors="pt"))
        expected.append(torch.stack(values).mean(0).numpy())

    found = stored(tmp_path / "out")
    assert sorted(found) == [f"{i:04d}" for i in range(1000)]
    assert_same_vectors(np.stack([found[f"{i:04d}"] for i in range(1000)]), np.stack(expected))


def test_small_shards_many_actors_and_one_slow_shard(tiny: dict[str, str], tmp_path: Path) -> None:
    solo = Encoder(tiny["llama"], "lt")
    sizes = [1, 7, 8, 9, 15, 16, 17]
    texts = {}
    for shard, size in enumerate(sizes):
        ids = [1000 * shard + i for i in range(size)]
        rows = [f"row {i} " * (60 if shard == 0 else 1) for i in ids]
        texts |= dict(zip(ids, rows, strict=True))
        write_shard(tmp_path / "in" / f"{shard}.parquet", ids, rows, lang=["x"] * size)
    report = encode(config(tiny, tmp_path, method="lt", num_actors=3, keep=["lang"], token_budget=64))
    found = stored(tmp_path / "out")
    assert sorted(found) == sorted(texts)
    assert_same_vectors(np.stack(list(found.values())), np.stack([solo.encode([texts[i]])[0] for i in found]))
    rows = {Path(c["source"]).stem: c["rows_out"] for c in VectorStore(str(tmp_path / "out")).commits().values()}
    assert rows == {str(shard): size for shard, size in enumerate(sizes)}
    assert report["by_language"]["x"]["rows"] == sum(sizes)


def test_odd_rows_and_damaged_files(tiny: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "in"
    texts = ["", " ", None, "\u200b", "w" * 1_000_000, "a</s>b", "a<|im_end|>b", "x", "y", "z", "ok"]
    write_shard(folder / "odd.parquet", [0, 1, 2, 3, 4, 5, 6, None, 8, 8, 10], texts, lang=["q"] * 11)
    write_shard(folder / "good.parquet", [20, 21], ["one", "two"], lang=["q"] * 2)
    paths = damaged(folder)
    options = config(tiny, tmp_path, keep=["lang"])
    report = encode(options)
    found = stored(tmp_path / "out")
    assert sorted(found) == [4, 5, 6, 8, 10, 20, 21]
    assert_same_vectors(found[10][None], Encoder(tiny["llama"], "va-half").encode(["ok"]))
    assert not np.allclose(found[5], found[6])
    assert report["status"] == "partial"
    assert report["rows_in"] == report["rows_out"] + report["rows_quarantined"]
    # The page-damaged file lacks the column lang besides, which is seen first, before its pages are read.
    assert report["reasons"] == {
        "blank-text": 3,
        "null-text": 1,
        "null-id": 1,
        "duplicate-id": 1,
        "unreadable-file": 3,
        "column-missing": 10,
    }
    assert report["truncated"] == 1
    quarantine = pa.concat_tables(pq.read_table(path) for path in (tmp_path / "out" / "quarantine").glob("*.parquet"))
    assert quarantine.num_rows == report["rows_quarantined"]
    kept_out = {(Path(row["source"]).stem, row["row"]): row["reason"] for row in quarantine.to_pylist()}
    assert kept_out["odd", 9] == "duplicate-id" and kept_out["noise", None] == "unreadable-file"

    # Repaired files are done again, and only they.
    before = {name: commit["seconds"] for name, commit in VectorStore(str(tmp_path / "out")).commits().items()}
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "commits").glob("*.json")}
    for i, path in enumerate(paths):
        write_shard(path, [100 + i], ["mended"], lang=["q"])
    assert len(prepare(options).todo) == 4
    report = encode(options)
    assert sorted(stored(tmp_path / "out")) == [4, 5, 6, 8, 10, 20, 21, 100, 101, 102, 103]
    assert report["reasons"] == {"blank-text": 3, "null-text": 1, "null-id": 1, "duplicate-id": 1}
    same = [path for path, stamp in stamps.items() if path.exists() and path.stat().st_mtime_ns == stamp]
    assert sorted(path.stem.split("-")[0] for path in same) == ["good", "odd"] and len(before) == 6


def test_again_other_and_missing_inputs(tiny: dict[str, str], tmp_path: Path) -> None:
    for shard in range(3):
        write_shard(tmp_path / "in" / f"{shard}.parquet", [shard], [f"text {shard}"])
    options = config(tiny, tmp_path)
    first = encode(options)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    assert encode(options)["content_hash"] == first["content_hash"]

    for changes, message in (
        ({"method": "lt"}, r"belongs to another run.*method\.name 'va-half' there, 'lt' here"),
        ({"dtype": "bfloat16"}, "dtype 'float32' there, 'bfloat16' here"),
        ({"model": tiny["qwen3"]}, "belongs to another run"),
        ({"unit_rows": 7}, "other columns or units"),
        ({"id_column": "row"}, "--id-column 'row'|other columns"),
        ({"input": [str(tmp_path / "in" / "0.parquet")]}, "not among this run's inputs"),
    ):
        with pytest.raises(UsageError, match=message):
            encode(config(tiny, tmp_path, **changes))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")} == files

    # A further file extends the run; a changed one is done again as a whole.
    write_shard(tmp_path / "in" / "3.parquet", [3, 1], ["more", "id of another file"])
    write_shard(tmp_path / "in" / "0.parquet", [7], ["changed"])
    report = encode(options)
    assert [entry["id"] for entry in report["duplicates"]] == [1] and report["status"] == "partial"
    ids = [
        i
        for _, table in VectorStore(str(tmp_path / "out")).iter_vectors(["id"])
        for i in table.column("id").to_pylist()
    ]
    assert sorted(ids) == [1, 1, 2, 3, 7]


def test_only_empty_shards(tiny: dict[str, str], tmp_path: Path) -> None:
    empty = pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})
    (tmp_path / "in").mkdir()
    pq.write_table(empty, tmp_path / "in" / "none.parquet")
    report = encode(config(tiny, tmp_path))
    assert (report["status"], report["rows_in"], report["units"]) == ("complete", 0, 1)
    (path,) = (tmp_path / "out" / "vectors").glob("*.parquet")
    assert pq.read_schema(path).field("vector").type == pa.list_(pa.float32(), 16)


def test_vectors_that_are_not_finite_or_zero_stay_inside(tmp_path: Path, ray_session: None) -> None:
    from tests.conftest import byte_level, llama, save_model

    def spoil(model: Any) -> None:
        tokenizer = byte_level()
        (loud,), (silent,) = tokenizer("a")["input_ids"], tokenizer("z")["input_ids"]
        model.embed_tokens.weight[loud] = float("nan")
        model.embed_tokens.weight[silent] = 0.0

    model = save_model(tmp_path / "model", llama(), byte_level(), spoil)
    write_shard(tmp_path / "in" / "a.parquet", ["nan", "zero", "good"], ["a", "z", "The station"])
    report = encode(EncodeConfig(model=model, method="va", input=[str(tmp_path / "in")], output=str(tmp_path / "out")))
    assert report["reasons"] == {"non-finite": 1, "zero-vector": 1}
    assert list(stored(tmp_path / "out")) == ["good"]


def test_float16_vectors(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(4), SENTENCES[:4])
    encode(config(tiny, tmp_path, vector_dtype="float16"))
    (path,) = (tmp_path / "out" / "vectors").glob("*.parquet")
    assert pq.read_schema(path).field("vector").type == pa.list_(pa.float16(), 16)
    expected = Encoder(tiny["llama"], "va-half").encode(SENTENCES[:4])
    found = stored(tmp_path / "out")
    np.testing.assert_allclose(np.stack([found[i] for i in range(4)]), expected, rtol=1e-3, atol=1e-3)


def test_plan_starts_and_writes_nothing(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(9), ["x"] * 9)
    plan, _ = describe(prepare(config(tiny, tmp_path, unit_rows=3)), num_actors=2)
    assert (plan["units_to_do"], plan["rows_to_do"], plan["width"]) == (3, 9, 16)
    assert not (tmp_path / "out").exists()


def test_a_type_that_no_file_told_may_become_known(tiny: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(b"broken")
    write_shard(tmp_path / "in" / "b.parquet", pa.array([None], pa.null()), ["x"], lang=pa.array([None], pa.null()))
    options = config(tiny, tmp_path, keep=["lang"])
    assert encode(options)["rows_quarantined"] == 2
    write_shard(tmp_path / "in" / "a.parquet", [1], ["mended"], lang=["en"])
    assert encode(options)["rows_out"] == 1
    build_index(IndexConfig(vectors=str(tmp_path / "out"), output=str(tmp_path / "index")))
    write_shard(tmp_path / "in" / "c.parquet", ["a string id"], ["x"], lang=["en"])
    with pytest.raises(UsageError, match=r"int64 in .* and string in"):
        encode(options)


def test_a_run_that_failed_before_its_first_vector_holds_no_folder(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", [1], ["x"])
    with pytest.raises(RunError, match=r"a worker failed: model .* FlashAttention2"):
        encode(config(tiny, tmp_path, attention="flash_attention_2", method="lt"))
    assert encode(config(tiny, tmp_path))["rows_out"] == 1


def test_an_index_is_not_made_of_part_of_a_run(tiny: dict[str, str], tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_shard(tmp_path / "in" / f"{name}.parquet", [name], ["x"])
    encode(config(tiny, tmp_path))
    next((tmp_path / "out" / "vectors").glob("a-*")).unlink()
    index = IndexConfig(vectors=str(tmp_path / "out"), output=str(tmp_path / "index"))
    with pytest.raises(UsageError, match="1 rows are there where the run wrote 2"):
        build_index(index)
    assert len(prepare(config(tiny, tmp_path)).todo) == 1
    (tmp_path / "out" / "report.json").unlink()
    with pytest.raises(UsageError, match="not finished"):
        build_index(index)


def test_a_node_with_other_weights_takes_no_part(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", llama(), byte_level())
    write_shard(tmp_path / "in" / "a.parquet", [1], ["x"])
    options = EncodeConfig(model=model, input=[str(tmp_path / "in")], output=str(tmp_path / "out"))
    job = pickle.loads(pickle.dumps(prepare(options).job))
    EncodeUnit(job)
    save_model(tmp_path / "model", llama(), byte_level(), lambda m: m.norm.weight.add_(1))
    with pytest.raises(RunError, match="on this node"):
        EncodeUnit(job)


def test_a_worker_that_died_after_its_commit_leaves_nothing_to_do(tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(3), SENTENCES[:3])
    work = prepare(config(tiny, tmp_path))
    worker = EncodeUnit(work.job)
    work.store.start(work.job.identity, work.how)
    batch = tokenize_one({"unit": [pickle.dumps(work.todo[0])]}, work.job.layout, work.job.plan.tokenizer)
    first, files = worker(batch), {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
    # What it was about to do when it was killed: its note is still there.
    work.store.note_attempt(work.todo[0].name, {"number": 1})
    second = worker(batch)
    assert (second["rows_in"], second["tokens"]) == (first["rows_in"], first["tokens"]) and second["tokens_run"] == [0]
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")} == files
    # A commit whose file is damaged is not taken for done.
    (vectors,) = (tmp_path / "out" / "vectors").iterdir()
    vectors.write_bytes(b"PAR1")
    assert encode(config(tiny, tmp_path))["rows_out"] == 3 and len(stored(tmp_path / "out")) == 3
    # Nor is a note of it, left at the same point, kept beyond the run.
    work.store.note_attempt(work.todo[0].name, {"number": 1})
    encode(config(tiny, tmp_path))
    assert not work.store.attempts()


def test_a_row_too_large_for_memory_is_kept_out(tiny: dict[str, str], tmp_path: Path) -> None:
    texts = [SENTENCES[0], "x " * 80, SENTENCES[1]]
    write_shard(tmp_path / "in" / "a.parquet", range(3), texts)
    work = prepare(config(tiny, tmp_path))
    worker = EncodeUnit(work.job)

    def allocate(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
        if args[0].shape[1] > 100:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    worker.encoder.backbone.blocks[0].register_forward_pre_hook(allocate)
    work.store.start(work.job.identity, work.how)
    batch = tokenize_one({"unit": [pickle.dumps(work.todo[0])]}, work.job.layout, work.job.plan.tokenizer)
    worker(batch)
    (commit,) = work.store.commits().values()
    assert commit["reasons"] == {"out-of-memory": 1}
    expected = Encoder(tiny["llama"], "va-half").encode([texts[0], texts[2]])
    assert_same_vectors(np.stack([stored(tmp_path / "out")[i] for i in (0, 2)]), expected)
