"""The geometry report, on embeddings whose answer is known."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline.config import EvaluateConfig
from pipeline.errors import UsageError
from pipeline.evaluate import evaluate
from pipeline.examples import Examples, read_examples
from pipeline.geometry import score_geometry
from pipeline.tasks import COLUMNS, load_task
from tests.conftest import SENTENCES

GROUPS, LANGUAGES = 12, ("a", "b", "c")


def examples_and_parts() -> tuple[Examples, np.ndarray, np.ndarray]:
    """Texts whose lengths are alike, with an own direction for each meaning [N, 16] and each language [N, 16]."""
    rows = [(group, language) for group in range(GROUPS) for language in LANGUAGES]
    columns = {
        "text": [f"{language}{group:02d}" for group, language in rows],
        "group": [group for group, _ in rows],
        "lang": [language for _, language in rows],
    }
    meaning, own = np.zeros((len(rows), 16)), np.zeros((len(rows), 16))
    for i, (group, language) in enumerate(rows):
        meaning[i, group] = 1
        own[i, GROUPS + LANGUAGES.index(language)] = 1
    return Examples("default", COLUMNS["geometry"], list(range(len(rows))), columns, {}), meaning, own


def scores_of(weight: float) -> dict[str, float]:
    part, meaning, own = examples_and_parts()
    vectors = (meaning + weight * own).astype(np.float32)
    return score_geometry(part, dict(zip(part.columns["text"], vectors, strict=True))).scores


def test_embeddings_that_are_all_language() -> None:
    # Cosine to a translation is 1 / (1 + w^2), to a negative of the same language w^2 / (1 + w^2).
    scores = scores_of(2.0)
    assert scores["nmi"] == pytest.approx(1) and scores["ari"] == pytest.approx(1)
    assert scores["ordering_violations"] == 1 and scores["main_score"] == 0
    assert scores["translation_distance"] == pytest.approx(0.8) and scores["negative_distance"] == pytest.approx(0.2)
    assert scores["distance_ratio"] == pytest.approx(4)


def test_embeddings_that_are_mostly_meaning() -> None:
    scores = scores_of(0.5)
    assert scores["ordering_violations"] == 0 and scores["main_score"] == 1
    assert scores["distance_ratio"] == pytest.approx(0.2 / 0.8) and scores["nmi"] < 0.5


def test_every_comparison_is_an_item_with_a_negative_of_the_anchors_language() -> None:
    part, meaning, own = examples_and_parts()
    items = score_geometry(part, dict(zip(part.columns["text"], (meaning + own).astype(np.float32), strict=True))).items
    assert items.num_rows == GROUPS * len(LANGUAGES) * (len(LANGUAGES) - 1)
    for row in items.to_pylist():
        group, language = (part.columns[name] for name in ("group", "lang"))
        assert group[row["item"]] == group[row["translation"]] != group[row["negative"]]
        assert language[row["item"]] == language[row["negative"]] != language[row["translation"]]


def task_file(folder: Path, table: dict[str, Any]) -> str:
    pq.write_table(pa.table(table), folder / "g.parquet")
    (folder / "g.yaml").write_text(yaml.safe_dump({"name": "g", "type": "geometry", "data": "g.parquet"}))
    return str(folder / "g.yaml")


def test_the_page_shows_before_and_after(ray_session: None, tiny: dict[str, str], tmp_path: Path) -> None:
    from pipeline.config import FitConfig
    from pipeline.fit import fit

    texts = [f"{word}{text}" for text in SENTENCES[:6] for word in ("", "x ")]
    table = {"group": [i // 2 for i in range(12)], "lang": ["eng", "xxx"] * 6, "text": texts}
    task = task_file(tmp_path, table)
    options: dict[str, Any] = {"model": tiny["llama"], "method": "va"}
    subspace = str(tmp_path / "s.safetensors")
    fit(FitConfig(**options, input=[str(tmp_path / "g.parquet")], output=subspace, place="embedding"))
    (result,) = evaluate(EvaluateConfig(**options, task=[task], subspace=[subspace], output=str(tmp_path / "out")))
    page = (tmp_path / "out" / "g.html").read_text()
    assert "<th>before</th><th>after</th>" in page and "data:image/png;base64," in page and "http" not in page
    assert f"{result['metrics']['distance_ratio']:.3f}" in page
    assert result["identity"]["removals"] and result["n_items"] == 12


def test_the_only_sentence_of_a_language_has_no_negative() -> None:
    columns = {"text": list("abcde"), "group": [1, 1, 2, 2, 1], "lang": ["x", "y", "x", "y", "z"]}
    part = Examples("default", COLUMNS["geometry"], list(range(5)), columns, {})
    vectors = dict(zip("abcde", np.eye(5, dtype=np.float32), strict=True))
    items = score_geometry(part, vectors).items.to_pylist()
    assert all(row["item"] != 4 and row["negative"] != row["item"] for row in items)
    assert {(row["item"], row["translation"]) for row in items} == {(0, 1), (0, 4), (1, 0), (1, 4), (2, 3), (3, 2)}


def test_a_corpus_without_pairs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two languages or more"):
        read_examples(*load_task(task_file(tmp_path, {"group": [1, 2], "lang": ["a", "b"], "text": ["x", "y"]})))
    twice = {"group": [1, 1, 1, 2], "lang": ["a", "a", "b", "b"], "text": ["x", "y", "z", "v"]}
    with pytest.raises(UsageError, match="language twice"):
        read_examples(*load_task(task_file(tmp_path, twice)))
