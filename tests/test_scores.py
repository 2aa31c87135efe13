"""Each scorer against mteb's own, on random vectors, and against values worked out by hand."""

import decimal
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config import EvaluateConfig
from pipeline.errors import RunError, UsageError
from pipeline.evaluate import SCORERS, evaluate
from pipeline.examples import Examples, read_examples
from pipeline.scored import Scored
from pipeline.tasks import COLUMNS, load_task
from tests.conftest import SENTENCES

RANDOM = np.random.default_rng(3)


def examples(kind: Any, **columns: list[Any]) -> Examples:
    count = len(next(iter(columns.values())))
    return Examples("default", COLUMNS[kind], list(range(count)), columns, {})


def scored(kind: Any, part: Examples, vectors: dict[str, np.ndarray]) -> Scored:
    return SCORERS[kind](part, vectors)


def random_vectors(texts: list[str], width: int = 8) -> dict[str, np.ndarray]:
    return {text: RANDOM.normal(size=width).astype(np.float32) for text in texts}


def pairs(count: int) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    sides = {"sentence1": [f"a{i}" for i in range(count)], "sentence2": [f"b{i}" for i in range(count)]}
    return sides, random_vectors([*sides["sentence1"], *sides["sentence2"]])


def cosines(sides: dict[str, list[str]], vectors: dict[str, np.ndarray]) -> list[float]:
    from sklearn.metrics.pairwise import paired_cosine_distances

    first, second = (np.stack([vectors[text] for text in side]) for side in sides.values())
    return list(1 - paired_cosine_distances(first, second))


def test_sts_is_mtebs() -> None:
    from mteb.abstasks.sts import AbsTaskSTS

    sides, vectors = pairs(40)
    gold = [float(i % 6) for i in range(40)]
    cosine = cosines(sides, vectors)
    raw = {
        f"{name}_{kind}": cosine
        for name, kind in [("cosine", "scores"), ("manhattan", "distances"), ("euclidean", "distances")]
    }
    expected = AbsTaskSTS._calculate_scores(SimpleNamespace(), {**raw, "similarity_scores": cosine}, gold)  # type: ignore[arg-type]
    found = scored("sts", examples("sts", **sides, score=gold), vectors).scores
    assert found["cosine_spearman"] == pytest.approx(expected["cosine_spearman"], abs=1e-6)
    assert found["cosine_pearson"] == pytest.approx(expected["cosine_pearson"], abs=1e-6)
    assert found["main_score"] == found["cosine_spearman"]


@pytest.mark.parametrize("ties", [False, True])
def test_pair_classification_is_mtebs(ties: bool) -> None:
    from mteb.abstasks.pair_classification import AbsTaskPairClassification

    sides, vectors = pairs(60)
    if ties:
        vectors = {text: np.sign(vector[:2]) for text, vector in vectors.items()}
    label = [int(i % 3 == 0) for i in range(60)]
    task = AbsTaskPairClassification.__new__(AbsTaskPairClassification)
    # Rounded, so that what is equal on paper is a tie here too.
    cosine = [round(value, 6) for value in cosines(sides, vectors)]
    expected = task._compute_metrics_values(cosine, np.array(label), True)
    found = scored("pair-classification", examples("pair-classification", **sides, label=label), vectors).scores
    for name in ("ap", "accuracy", "f1", "precision", "recall"):
        assert found[f"cosine_{name}"] == pytest.approx(expected[name], abs=1e-6), name
    assert found["main_score"] == found["cosine_ap"]


def test_reranking_is_mtebs() -> None:
    from mteb._evaluators.retrieval_metrics import calculate_retrieval_scores

    queries = [f"q{i}" for i in range(12)]
    positive = [[f"p{i}-{j}" for j in range(1 + i % 3)] for i in range(12)]
    negative = [[f"n{i}-{j}" for j in range(5 + 3 * i)] for i in range(12)]
    vectors = random_vectors([*queries, *(text for side in (positive, negative) for texts in side for text in texts)])
    results, relevant = {}, {}
    for query, good, bad in zip(queries, positive, negative, strict=True):
        sides = {"sentence1": [query] * (len(good) + len(bad)), "sentence2": [*good, *bad]}
        results[query] = dict(zip(sides["sentence2"], map(float, cosines(sides, vectors)), strict=True))
        relevant[query] = dict.fromkeys(good, 1)
    expected = calculate_retrieval_scores(results, relevant, [10, 1000])
    part = examples("reranking", query=queries, positive=positive, negative=negative)
    found = scored("reranking", part, vectors)
    assert found.scores["main_score"] == pytest.approx(expected.map["MAP@1000"], abs=1e-5)
    assert found.scores["mrr_at_10"] == pytest.approx(expected.mrr["MRR@10"], abs=1e-5)
    assert np.mean(found.items.column("score").to_pylist()) == pytest.approx(found.scores["main_score"])


def test_reranking_by_hand() -> None:
    # Cosines with the query: good 1.0, bad 0.6, second good 0.0: precision 1/1 and 2/3.
    vectors = {"q": [1, 0], "good": [2, 0], "bad": [3, 4], "other": [0, 1]}
    part = examples("reranking", query=["q"], positive=[["good", "other"]], negative=[["bad"]])
    found = scored("reranking", part, {text: np.array(v, dtype=np.float32) for text, v in vectors.items()})
    assert found.scores == pytest.approx({"main_score": 5 / 6, "map": 5 / 6, "mrr_at_10": 1.0})
    # What cannot tell texts apart gets no credit for the file's order.
    same = dict.fromkeys(vectors, np.ones(2, dtype=np.float32))
    assert scored("reranking", part, same).scores["mrr_at_10"] == pytest.approx(1 / 2)


def test_classification_is_mtebs() -> None:
    from mteb._evaluators.sklearn_evaluator import SklearnEvaluator
    from mteb.abstasks.classification import AbsTaskClassification

    texts = [f"t{i}" for i in range(90)]
    label = [i % 4 for i in range(90)]
    split = ["train" if i % 3 else "test" for i in range(90)]
    vectors = random_vectors(texts)
    for text, kind in zip(texts, label, strict=True):
        vectors[text][kind] += 1.5
    rows = {name: [i for i in range(90) if split[i] == name] for name in ("train", "test")}
    labels = {name: {"label": [label[i] for i in kept]} for name, kept in rows.items()}
    stacked = {name: np.stack([vectors[texts[i]] for i in kept]) for name, kept in rows.items()}
    model = AbsTaskClassification.evaluator_model
    evaluator = SklearnEvaluator(labels["train"], labels["test"], label_column_name="label", evaluator_model=model)  # type: ignore[arg-type, call-arg]
    expected = AbsTaskClassification._calculate_scores(
        SimpleNamespace(),  # type: ignore[arg-type]
        np.array(labels["test"]["label"]),
        evaluator(stacked["train"], stacked["test"]),
    )
    found = scored("classification", examples("classification", text=texts, label=label, split=split), vectors)
    assert 0.3 < found.scores["main_score"] < 1
    for name in ("accuracy", "f1", "f1_weighted"):
        assert found.scores[name] == pytest.approx(expected[name]), name
    assert found.n_items == 30 == found.items.num_rows


def test_clustering_begins_with_mtebs() -> None:
    from datasets import Dataset
    from mteb import get_task
    from mteb._evaluators.clustering_evaluator import ClusteringEvaluator
    from sklearn.metrics import v_measure_score

    texts = [f"t{i}" for i in range(80)]
    label = ["xyz"[i % 3] for i in range(80)]
    vectors = random_vectors(texts)
    for text, kind in zip(texts, label, strict=True):
        vectors[text]["xyz".index(kind)] += 2

    class Encoder:
        def encode(self, *_: Any, **__: Any) -> np.ndarray:
            return np.stack([vectors[text] for text in texts])

    evaluator = ClusteringEvaluator(
        Dataset.from_dict({"sentences": texts, "labels": label}),
        input_column_name="sentences",
        label_column_name="labels",
        task_metadata=get_task("TwentyNewsgroupsClustering").metadata,
        hf_split="test",
        hf_subset="default",
        timer=lambda *_, **__: nullcontext(),  # type: ignore[arg-type]
    )
    expected = v_measure_score(label, evaluator(Encoder(), encode_kwargs={}))  # type: ignore[arg-type]
    found = scored("clustering", examples("clustering", text=texts, label=label), vectors).scores
    assert found["v_measure_first"] == pytest.approx(expected)
    assert found["main_score"] == found["v_measure"] and 0.2 < found["v_measure"] < 1


def task_file(folder: Any, kind: str, table: dict[str, Any], **fields: Any) -> str:
    pq.write_table(pa.table(table), folder / f"{kind}.parquet")
    task = {"name": kind, "type": kind, "data": f"{kind}.parquet", **fields}
    (folder / f"{kind}.yaml").write_text(yaml.safe_dump(task))
    return str(folder / f"{kind}.yaml")


def test_from_a_file_to_its_result(ray_session: None, tiny: dict[str, str], tmp_path: Any) -> None:
    split = ["train", "train", "train", "train", "test", "test"] * 2
    tables: dict[str, dict[str, Any]] = {
        "sts": {"sentence1": SENTENCES[:6], "sentence2": SENTENCES[6:], "score": [0, 1, 2, 3, 4, None]},
        "classification": {"text": SENTENCES, "label": [1, 2] * 6, "split": split},
        "reranking": {
            "query": SENTENCES[:3],
            "positive": [SENTENCES[3:5], [], SENTENCES[5:6]],
            "negative": [SENTENCES[6:8], SENTENCES[8:9], SENTENCES[9:12]],
        },
    }
    files = [task_file(tmp_path, kind, table) for kind, table in tables.items()]
    results = evaluate(EvaluateConfig(task=files, model=tiny["llama"], method="va", output=str(tmp_path / "out")))
    counts = {result["type"]: (result["n_items"], result["n_left_out"]) for result in results}
    assert counts == {
        "sts": (5, {"null": 1}),
        "classification": (4, {}),
        "reranking": (2, {"no-positive": 1}),
    }
    for result in results:
        items = pq.read_table(tmp_path / "out" / result["items"])
        assert items.num_rows == result["n_items"] and items.column_names[:2] == ["subset", "item"]
        assert -1 <= result["main_score"] == result["subsets"]["default"]["main_score"] <= 1
    assert pq.read_table(tmp_path / "out" / "items" / "reranking.parquet").column("item").to_pylist() == [0, 2]


def test_a_limit_counts_rows_of_each_split(tmp_path: Any) -> None:
    table = {"text": list("abcdefgh"), "label": [0, 1] * 4, "split": ["train"] * 5 + ["test"] * 3}
    (part,) = read_examples(*load_task(task_file(tmp_path, "classification", table, limit=2)))
    assert part.columns["text"] == ["a", "b", "f", "g"]


def test_items_are_rows_of_their_subset_with_a_limit_too(tmp_path: Any) -> None:
    table = {
        "text": list("abcdef"),
        "label": [0, 1, 0, 0, 1, 1],
        "split": ["test", "train", "dev", "train", "test", "test"],
    }
    (part,) = read_examples(*load_task(task_file(tmp_path, "classification", table, limit=2)))
    assert part.rows == [0, 1, 3, 4] and part.columns["text"] == list("abde") and part.left_out == {"other-split": 1}


def test_values_in_any_type(tmp_path: Any) -> None:
    score = pa.array([decimal.Decimal("0.5"), decimal.Decimal("1.5")])
    table = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "score": score, "y": pa.array([0.1, 0.1], pa.float32())}
    (part,) = read_examples(*load_task(task_file(tmp_path, "sts", table, where={"y": 0.1})))
    assert part.columns["score"] == [0.5, 1.5]
    fixed = pa.array([["b", "c"]], pa.list_(pa.string(), 2))
    lists = {"query": pa.array(["a"], pa.string_view()), "positive": fixed, "negative": [["d"]]}
    (part,) = read_examples(*load_task(task_file(tmp_path, "reranking", lists)))
    assert part.columns["positive"] == [["b", "c"]]
    infinite = {"sentence1": ["a"] * 3, "sentence2": ["c"] * 3, "score": [0.0, 1.0, float("inf")]}
    (part,) = read_examples(*load_task(task_file(tmp_path, "sts", infinite)))
    assert part.left_out == {"not-a-number": 1}


def test_a_refused_run_leaves_the_results_folder_as_it_was(
    ray_session: None, tiny: dict[str, str], tmp_path: Any
) -> None:
    task = task_file(tmp_path, "clustering", {"text": SENTENCES[:4], "label": [1, 1, 2, 2]})
    options = {"task": [task], "model": tiny["llama"], "output": str(tmp_path / "out")}
    evaluate(EvaluateConfig(method="va", **options))
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
    task_file(tmp_path, "clustering", {"text": SENTENCES[4:8], "label": [1, 1, 2, 2]})
    with pytest.raises(UsageError, match="belongs to another run"):
        evaluate(EvaluateConfig(method="lt", **options))
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")} == before


def test_what_is_left_after_encoding_must_still_make_a_score(
    ray_session: None, tiny: dict[str, str], tmp_path: Any
) -> None:
    from tests.conftest import byte_level, llama, save_model

    spoiled = byte_level()("q")["input_ids"][0]
    model = save_model(tmp_path / "m", llama(), byte_level(), lambda m: m.embed_tokens.weight[spoiled].fill_(np.nan))
    task = task_file(tmp_path, "clustering", {"text": ["abc", "bcd", "q"], "label": [1, 1, 2]})
    with pytest.raises(RunError, match=r"needs two different labels.*non-finite.* could not be encoded"):
        evaluate(EvaluateConfig(task=[task], model=model, method="lt", output=str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("kind", "table", "fields", "message"),
    [
        ("sts", {"sentence1": ["a"], "sentence2": ["b"], "score": ["x"]}, {}, "score must hold numbers"),
        ("sts", {"sentence1": ["a"] * 2, "sentence2": ["b"] * 2, "score": [1, 1]}, {}, "two different scores"),
        ("sts", {"sentence1": ["a"], "sentence2": ["b"]}, {}, "no column 'score'"),
        ("classification", {"text": ["a"], "label": [1], "split": ["train"]}, {}, "two different labels in split"),
        ("classification", {"text": ["a"], "label": [1], "split": ["dev"]}, {}, "nothing to score.*other-split"),
        ("clustering", {"text": ["a", "b"], "label": [1, 1]}, {}, "two different labels"),
        ("pair-classification", {"sentence1": ["a"], "sentence2": ["b"], "label": [2]}, {}, "labels must be 0"),
        ("reranking", {"query": ["a"], "positive": ["b"], "negative": [["c"]]}, {}, "lists of strings"),
        ("clustering", {"text": ["a"], "label": [1]}, {"pairs": [["a", "b"]]}, "goes with type bitext"),
        ("clustering", {"text": ["a"], "label": [[1]]}, {}, "column label has type list.*one value a row"),
        ("clustering", {"text": ["a"], "label": [1], "subset": [[1]]}, {}, "subsets are named by"),
        ("clustering", {"text": ["a", "b"], "label": [1, 2], "subset": [None, "None"]}, {}, "one subset"),
        ("clustering", {"text": ["a"], "label": [1]}, {"name": "_hidden"}, "pattern"),
        (
            "clustering",
            {"text": ["a"], "label": [1]},
            {"where": {"label": None}},
            "label: None is NoneType; give a text",
        ),
        ("bitext", {"source": ["a"], "target": ["b"]}, {"pairs": [["a", "b"], ["a", "b"]]}, "stands twice"),
        ("classification", {"text": ["a"], "label": [1], "split": [1]}, {"limit": 2}, "nothing to score.*other-split"),
        ("clustering", {"text": ["a"], "label": [1]}, {"columns": {"source": "a"}}, "'source' is not known"),
    ],
)
def test_data_that_cannot_be_scored_is_refused(
    tmp_path: Any, kind: str, table: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        read_examples(*load_task(task_file(tmp_path, kind, table, **fields)))
