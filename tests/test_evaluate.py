"""Bitext scores: mteb's own evaluator, ties, what is left out; and the chain encode -> index -> search."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from extractors import Encoder
from pipeline.bitext import score_direction
from pipeline.build_index import build_index
from pipeline.config import EncodeConfig, EvaluateConfig, IndexConfig, SearchConfig
from pipeline.encode import encode
from pipeline.errors import RunError, UsageError
from pipeline.evaluate import evaluate
from pipeline.examples import read_examples
from pipeline.search import search
from pipeline.tasks import load_task
from tests.conftest import SENTENCES, write_shard


def task_file(folder: Path, table: dict[str, Any], **fields: Any) -> str:
    pq.write_table(pa.table(table), folder / "pairs.parquet")
    task = {"name": "pairs", "type": "bitext", "data": "pairs.parquet", **fields}
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    return str(folder / "task.yaml")


def mteb_scores(sources: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    from mteb._evaluators.text.bitext_mining_evaluator import BitextMiningEvaluator
    from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining

    class Cosine:
        @staticmethod
        def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
            return (a @ b.T) / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)

    found = BitextMiningEvaluator._similarity_search(None, sources, targets, Cosine)  # type: ignore[arg-type]
    gold = [(i, i) for i in range(len(sources))]
    return dict(AbsTaskBitextMining._compute_metrics(None, found, gold))  # type: ignore[arg-type]


def test_scores_are_mtebs(ray_session: None, tiny: dict[str, str], tmp_path: Path) -> None:
    sources, targets = SENTENCES, [" ".join(text.split()[::-1]) + "!" for text in SENTENCES]
    task = task_file(tmp_path, {"source": sources, "target": targets})
    (result,) = evaluate(EvaluateConfig(task=[task], model=tiny["llama"], method="va", output=str(tmp_path / "out")))
    encoder = Encoder(tiny["llama"], "va")
    vectors = encoder.encode(sources), encoder.encode(targets)
    forward, backward = mteb_scores(*vectors), mteb_scores(*vectors[::-1])
    assert {k: result["metrics"][k] for k in forward} == pytest.approx(forward)
    assert {k: result["metrics"][f"{k}_reverse"] for k in backward} == pytest.approx(backward)
    assert 0 < result["main_score"] == pytest.approx(forward["accuracy"])
    assert result["n_items"] == 12 and result["n_left_out"] == {}
    items = pq.read_table(tmp_path / "out" / result["items"])
    assert items.num_rows == 24
    by_item = items.to_pylist()
    assert np.mean([row["score"] for row in by_item if row["direction"] == "forward"]) == result["main_score"]


def test_equal_sentences_are_one_class_in_any_order() -> None:
    texts = ["a", "b", "c", "b"]
    vectors = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        scored = score_direction(vectors[order], vectors[order], [texts[i] for i in order])
        assert scored.scores == {"accuracy": 1.0, "precision": 1.0, "recall": 1.0, "f1": 1.0}


def test_tasks_select_subsets_rows_and_limits(tmp_path: Path) -> None:
    table = {
        "src": ["a", "b", None, "d", "e", " "],
        "tgt": ["A", "B", "C", "D", "E", "F"],
        "lang": ["x", "x", "x", "y", "y", "y"],
        "split": ["test", "dev", "test", "test", "test", "test"],
    }
    columns = {"source": "src", "target": "tgt", "subset": "lang"}
    task, data = load_task(task_file(tmp_path, table, columns=columns, where={"split": "test"}, limit=2))
    found = {
        part.subset: (part.columns["source"], part.columns["target"], part.left_out)
        for part in read_examples(task, data)
    }
    assert found == {"x": (["a"], ["A"], {"null": 1}), "y": (["d", "e"], ["D", "E"], {})}

    task, data = load_task(task_file(tmp_path, table, pairs=[["src", "tgt"]]))
    (part,) = read_examples(task, data)
    assert part.subset == "src-tgt" and part.left_out == {"null": 1, "blank": 1} and len(part.rows) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"typ": "bitext"}, "did you mean 'type'"),
        ({"type": "betext"}, "'bitext'"),
        ({"data": "nowhere.parquet"}, "does not exist"),
        ({"pairs": [["eng", "fra"]]}, "no column 'eng'"),
        ({"columns": {"sorce": "eng"}}, "did you mean 'source'"),
        ({"where": {"splt": "test"}}, "no column 'splt'"),
        ({"limit": 0}, "greater than 0"),
    ],
)
def test_wrong_tasks_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    path = task_file(tmp_path, {"source": ["a"], "target": ["b"]}, **fields)
    with pytest.raises(UsageError, match=message):
        task, data = load_task(path)
        read_examples(task, data)


def test_encode_index_search(ray_session: None, tiny: dict[str, str], tmp_path: Path) -> None:
    write_shard(tmp_path / "in" / "a.parquet", range(6), SENTENCES[:6], lang=["en", "fr", "de", "ru", "ja", "en"])
    options = {"model": tiny["llama"], "method": "prompteol", "input": [str(tmp_path / "in")]}
    vectors, index = str(tmp_path / "vectors"), str(tmp_path / "index")
    encode(EncodeConfig.model_validate({**options, "output": vectors, "keep": ["lang"]}))
    about = build_index(IndexConfig(vectors=vectors, output=index))
    assert about["identity"]["method"]["name"] == "prompteol" and about["ntotal"] == 6

    queries = tmp_path / "queries.jsonl"
    queries.write_text(
        f'{{"query_id": "good", "text": "{SENTENCES[1]}"}}\n{{"query_id": "bad", "text": "\\ud800"}}\n',
        encoding="utf-8",
    )
    found, _, refused = search(SearchConfig(index=index, queries=str(queries), k=3))
    rows = found.to_pylist()
    assert [row["rank"] for row in rows] == [1, 2, 3] and {row["query_id"] for row in rows} == {"good"}
    assert rows[0]["id"] == 1 and rows[0]["lang"] == "fr" and rows[0]["score"] == pytest.approx(1.0, abs=1e-5)
    assert list(refused) == ["bad"] and "Unicode" in refused["bad"]
    german, _, _ = search(SearchConfig(index=index, query=[SENTENCES[1]], language="de"))
    assert german.column("id").to_pylist() == [2]

    # Ids that stand in two units make the folder unfit for an index.
    write_shard(tmp_path / "in" / "b.parquet", [3], ["again"], lang=["en"])
    encode(EncodeConfig.model_validate({**options, "output": vectors, "keep": ["lang"]}))
    with pytest.raises(UsageError, match=r"such as 3 in .*a\.parquet.* and .*b\.parquet"):
        build_index(IndexConfig(vectors=vectors, output=index))


def test_an_index_is_not_searched_with_other_weights(ray_session: None, tmp_path: Path) -> None:
    from tests.conftest import byte_level, llama, save_model

    model = save_model(tmp_path / "model", llama(), byte_level())
    write_shard(tmp_path / "in" / "a.parquet", [1], ["x"])
    encode(EncodeConfig(model=model, input=[str(tmp_path / "in")], output=str(tmp_path / "vectors")))
    build_index(IndexConfig(vectors=str(tmp_path / "vectors"), output=str(tmp_path / "index")))
    save_model(tmp_path / "model", llama(), byte_level(), lambda m: m.norm.weight.add_(1))
    with pytest.raises(UsageError, match=r"revision .*bring the old files back"):
        search(SearchConfig(index=str(tmp_path / "index"), query=["x"]))


def test_an_index_is_not_searched_with_another_tokenizer(ray_session: None, tmp_path: Path) -> None:
    from tests.conftest import byte_level, llama, save_model

    model = save_model(tmp_path / "model", llama(), byte_level())
    write_shard(tmp_path / "in" / "a.parquet", [1], ["x"])
    encode(EncodeConfig(model=model, input=[str(tmp_path / "in")], output=str(tmp_path / "vectors")))
    build_index(IndexConfig(vectors=str(tmp_path / "vectors"), output=str(tmp_path / "index")))
    byte_level(start=True).save_pretrained(model)
    with pytest.raises(UsageError, match=r"tokenizer 'sha256.*bring the old files back"):
        search(SearchConfig(index=str(tmp_path / "index"), query=["x"]))


@pytest.mark.parametrize(
    ("table", "fields", "message"),
    [
        ({"source": [1], "target": ["b"]}, {}, "must be a string column"),
        ({"source": ["a"], "target": ["b"], "n": [1]}, {"where": {"n": "x"}}, "is str, the column int64"),
    ],
)
def test_data_that_does_not_fit_its_task(tmp_path: Path, table: Any, fields: Any, message: str) -> None:
    task, data = load_task(task_file(tmp_path, table, **fields))
    with pytest.raises(UsageError, match=message):
        read_examples(task, data)


def test_rows_without_a_subset_are_scored_too(tmp_path: Path) -> None:
    task, data = load_task(task_file(tmp_path, {"source": ["a", "b"], "target": ["A", "B"], "subset": ["x", None]}))
    assert {part.subset: part.columns["source"] for part in read_examples(task, data)} == {"x": ["a"], "None": ["b"]}


def test_what_cannot_be_scored_is_one_error(ray_session: None, tmp_path: Path) -> None:
    from tests.conftest import byte_level, llama, save_model

    model = save_model(tmp_path / "model", llama(), byte_level(), lambda m: m.norm.weight.fill_(float("nan")))
    task = task_file(tmp_path, {"source": ["a"], "target": ["b"]})
    options = {"model": model, "method": "lt", "output": str(tmp_path / "out")}
    with pytest.raises(RunError, match=r"nothing could be encoded.*non-finite"):
        evaluate(EvaluateConfig.model_validate({**options, "task": [task]}))
    with pytest.raises(UsageError, match="same name"):
        evaluate(EvaluateConfig.model_validate({**options, "task": [task, task]}))
