"""Index and metrics against numpy and hand-worked values; foreign vectors; what is never a hit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import accuracy_score, f1_score, precision_score, recall_score

from index.ann import VectorIndex, as_rows, exact_scores, recall
from index.errors import VectorError
from index.metrics import matching_scores, nearest_neighbours
from pipeline.build_index import build_index
from pipeline.config import IndexConfig, SearchConfig
from pipeline.errors import UsageError
from pipeline.search import Searcher, search, write_hits
from tests.conftest import write_shard


def built(folder: Path, ids: Any, vectors: Any, metric: Any = "cosine", **columns: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids, "vector": vectors, **columns}), folder / "vectors.parquet")
    build_index(IndexConfig(vectors=str(folder / "vectors.parquet"), output=str(folder / "index"), metric=metric))
    return str(folder / "index")


def hits(index: str, queries: Any, k: int = 10, **options: Any) -> list[list[tuple[Any, float]]]:
    found = Searcher(index).search([str(i) for i in range(len(queries))], np.array(queries), k, **options).to_pylist()
    return [[(hit["id"], hit["score"]) for hit in found if hit["query_id"] == str(i)] for i in range(len(queries))]


XYZ = [[0.1, 0.0], [0.5, 0.5], [0.0, 3.0]]


@pytest.mark.parametrize("element", [pa.float16(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("fixed", [True, False])
def test_cosine_is_cosine(tmp_path: Path, element: pa.DataType, fixed: bool) -> None:
    kind = pa.list_(element, 2) if fixed else pa.list_(element)
    values = pa.array(np.array(XYZ).astype(element.to_pandas_dtype()).tolist(), kind)
    index = built(tmp_path, ["x", "y", "z"], values)
    for found in hits(index, [[1.0, 0.0], [10.0, 0.0]]):
        assert [identifier for identifier, _ in found] == ["x", "y", "z"]
        np.testing.assert_allclose([score for _, score in found], [1.0, 0.5**0.5, 0.0], atol=1e-6)
        assert max(score for _, score in found) <= 1.0
    stored = pq.read_table(tmp_path / "vectors.parquet").column("vector").to_pylist()
    np.testing.assert_allclose(stored, XYZ, rtol=1e-3)


def test_vectors_that_are_not_contiguous_and_inputs_left_alone() -> None:
    wide = np.arange(1.0, 13.0).reshape(2, 6)
    index = VectorIndex.empty(3, "cosine")
    index.add(wide[:, ::2])
    ((scores, rows),) = index.search(np.array([[1.0, 3.0, 5.0]]), 1)
    assert rows.tolist() == [0] and scores[0] == pytest.approx(1.0, abs=1e-6)
    assert wide[0].tolist() == [1, 2, 3, 4, 5, 6]


def test_inner_product_and_l2(tmp_path: Path) -> None:
    by_product = hits(built(tmp_path / "ip", [1, 2, 3], XYZ, "ip"), [[1.0, 1.0]])
    assert by_product == [[(3, 3.0), (2, 1.0), (1, pytest.approx(0.1))]]
    by_distance = hits(built(tmp_path / "l2", [1, 2, 3], XYZ, "l2"), [[0.0, 0.0]])
    assert by_distance == [[(1, pytest.approx(0.01)), (2, pytest.approx(0.5)), (3, pytest.approx(9.0))]]


@pytest.mark.parametrize("count", [1, 5])
def test_fewer_vectors_than_hits_wanted_gives_no_fillers(tmp_path: Path, count: int) -> None:
    ids = [-1, 7, 8, 9, 10][:count]
    ((*found,),) = hits(built(tmp_path, ids, np.eye(5)[:count].tolist()), [[1.0, 0.1, 0.2, 0.3, 0.4]])
    assert sorted(identifier for identifier, _ in found) == sorted(ids)
    assert found[0][0] == -1 and found[0][1] > 0


def test_nothing_to_index(tmp_path: Path) -> None:
    empty = pa.array([], pa.list_(pa.float32(), 2))
    with pytest.raises(UsageError, match="nothing to index"):
        built(tmp_path, pa.array([], pa.int64()), empty)


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        ([1, 2], [[0.0, 0.0], [1.0, 0.0]], "is zero"),
        ([1, 2], [[1.0, float("nan")], [1.0, 0.0]], "not finite"),
        ([1, 1], [[1.0, 0.0], [1.0, 0.0]], "more than once, such as 1"),
        ([1, None], [[1.0, 0.0], [1.0, 0.0]], "null"),
        ([1, 2], [[1.0, 0.0], [1.0]], "different lengths"),
        ([1, 2], [[1.0, 0.0], None], "null"),
        ([1, 2], ["a", "b"], "lists of numbers"),
    ],
)
def test_vectors_that_cannot_be_indexed_are_refused(tmp_path: Path, ids: Any, vectors: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        built(tmp_path, ids, vectors)
    assert not (tmp_path / "index" / "index.json").exists()


def test_exact_search_equals_numpy_and_many_files_keep_their_ids(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    ids = generator.permutation(10_000)[:84]
    vectors = generator.normal(size=(84, 8))
    (tmp_path / "in").mkdir()
    for part in range(12):
        rows = slice(7 * part, 7 * part + 7)
        table = pa.table({"id": ids[rows], "vector": vectors[rows].tolist()})
        pq.write_table(table, tmp_path / "in" / f"part{part}.parquet")
    about = build_index(IndexConfig(vectors=str(tmp_path / "in"), output=str(tmp_path / "index")))
    assert about["ntotal"] == 84 and about["recall_at_10"] == 1.0
    assert [found[0][0] for found in hits(str(tmp_path / "index"), vectors, k=1)] == ids.tolist()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = ids[np.argsort(-(unit @ unit.T), axis=1)[:, :5]]
    assert [[i for i, _ in found] for found in hits(str(tmp_path / "index"), vectors, k=5)] == expected.tolist()


def test_measured_recall_knows_a_wrong_answer() -> None:
    vectors = np.eye(4, dtype=np.float32)
    queries = np.array([[1.0, 0.9, 0.0, 0.0]])
    exact = exact_scores([vectors[:2], vectors[2:]], queries, 2, "ip")
    np.testing.assert_allclose(exact, [[1.0, 0.9]])
    right = [(np.array([1.0, 0.9]), np.array([0, 1]))]
    wrong = [(np.array([1.0, 0.0]), np.array([0, 2]))]
    assert (recall(right, exact, "ip"), recall(wrong, exact, "ip")) == (1.0, 0.5)
    np.testing.assert_allclose(exact_scores([vectors], np.zeros((1, 4)) + 0.5, 1, "l2"), [[-1.0]])


def test_only_one_language(tmp_path: Path) -> None:
    index = built(
        tmp_path, ["a", "b", "c", "d"], [[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.0, 1.0]], lang=["x", "y", "y", None]
    )
    assert [i for i, _ in hits(index, [[1.0, 0.0]], language="y")[0]] == ["b", "c"]
    with pytest.raises(UsageError, match="it has x, y"):
        hits(index, [[1.0, 0.0]], language="z")
    plain = built(tmp_path / "plain", ["a"], [[1.0, 0.0]])
    with pytest.raises(UsageError, match="--keep lang"):
        hits(plain, [[1.0, 0.0]], language="z")


def test_search_by_vectors_from_a_file(tmp_path: Path) -> None:
    index = built(tmp_path, [1, 2], [[1.0, 0.0], [0.0, 1.0]], title=["one", "two"])
    pq.write_table(pa.table({"query_id": ["q"], "vector": [[0.0, 2.0]]}), tmp_path / "queries.parquet")
    found, _, refused = search(SearchConfig(index=index, queries=str(tmp_path / "queries.parquet"), k=1))
    assert found.to_pylist() == [{"query_id": "q", "rank": 1, "id": 2, "score": 1.0, "title": "two"}] and not refused
    write_hits(found, str(tmp_path / "out" / "hits.parquet"))
    assert pq.read_table(tmp_path / "out" / "hits.parquet").equals(found)
    with pytest.raises(UsageError, match="without an encoder on record"):
        search(SearchConfig(index=index, query=["text"]))
    pq.write_table(pa.table({"vector": [[0.0, 2.0, 1.0]]}), tmp_path / "queries.parquet")
    with pytest.raises(UsageError, match="3 values where the index has 2"):
        search(SearchConfig(index=index, queries=str(tmp_path / "queries.parquet")))


def test_an_index_that_was_not_finished_is_no_index(tmp_path: Path) -> None:
    index = Path(built(tmp_path, [1], [[1.0, 0.0]]))
    assert json.loads((index / "index.json").read_text())["factory"] == "Flat"
    (index / "index.json").unlink()
    with pytest.raises(UsageError, match=r"no index\.json"):
        Searcher(str(index))


def test_rows_of_unit_length_survive_small_values() -> None:
    np.testing.assert_allclose(as_rows(np.array([[1e-30, 0.0]]), "cosine"), [[1.0, 0.0]])
    with pytest.raises(VectorError, match="vector 1 is zero"):
        as_rows(np.array([[1.0], [0.0]]), "cosine")


def test_matching_scores_are_scikit_learns() -> None:
    generator = np.random.default_rng(0)
    gold, found = np.arange(50), generator.integers(0, 50, 50)
    found[:20] = gold[:20]
    options: dict[str, Any] = {"average": "weighted", "zero_division": 0}
    expected = {
        "accuracy": accuracy_score(gold, found),
        "precision": precision_score(gold, found, **options),
        "recall": recall_score(gold, found, **options),
        "f1": f1_score(gold, found, **options),
    }
    assert matching_scores(gold, found) == pytest.approx(expected)


def test_nearest_neighbours_ignore_length() -> None:
    queries = np.array([[1.0, 0.0], [0.0, 5.0]])
    corpus = np.array([[0.0, 0.1], [100.0, 99.0], [0.2, 0.0]])
    assert nearest_neighbours(queries, corpus).tolist() == [2, 0]


def test_foreign_files_need_id_and_vector(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.parquet", [1], ["x"])
    with pytest.raises(UsageError, match="no column vector; its columns are id, text"):
        build_index(IndexConfig(vectors=str(tmp_path / "a.parquet"), output=str(tmp_path / "index")))


def test_files_that_do_not_go_together(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1], "vector": [[1.0]], "x": [1]}), folder / "a.parquet")
    for other, message in (
        ({"id": ["2"], "vector": [[1.0]], "x": [1]}, "ids|go together"),
        ({"id": [2], "vector": [[1.0]], "x": ["a"]}, "do not go together"),
        ({"id": [[2]], "vector": [[1.0]], "x": [1]}, "integers or strings"),
        ({"id": [2], "vector": [["1"]], "x": [1]}, "lists of string"),
        ({"id": [2], "vector": [[1.0]], "score": [1]}, "rename score"),
    ):
        pq.write_table(pa.table(other), folder / "b.parquet")
        with pytest.raises(UsageError, match=message):
            build_index(IndexConfig(vectors=str(folder), output=str(tmp_path / "index")))
    (folder / "b.parquet").write_bytes(b"junk")
    with pytest.raises(UsageError, match="no readable Parquet file"):
        build_index(IndexConfig(vectors=str(folder), output=str(tmp_path / "index")))


@pytest.mark.parametrize("name", ["index.json", "index.faiss", "ids.parquet"])
def test_a_damaged_index_says_so(tmp_path: Path, name: str) -> None:
    index = Path(built(tmp_path, [1], [[1.0, 0.0]]))
    (index / name).write_bytes(b"junk")
    with pytest.raises(UsageError, match=r"damaged|no readable Parquet"):
        Searcher(str(index))


def test_one_query_vector_that_is_zero_does_not_stop_the_others(tmp_path: Path) -> None:
    index = built(tmp_path, [1, 2], [[1.0, 0.0], [0.0, 1.0]], lang=[5, 6])
    path = str(tmp_path / "queries.parquet")
    pq.write_table(pa.table({"query_id": ["a", "b"], "vector": [[0.0, 0.0], [0.0, 2.0]]}), path)
    found, _, refused = search(SearchConfig(index=index, queries=path, k=1, language="6"))
    assert found.column("id").to_pylist() == [2] and list(refused) == ["a"]
