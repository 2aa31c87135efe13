"""Bitext mining scores: each sentence's nearest neighbour on the other side should be its translation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from index.metrics import matching_scores, nearest_neighbours
from pipeline.examples import Examples
from pipeline.scored import Scored, Vectors


@dataclasses.dataclass(frozen=True)
class Direction:
    """One direction's figures, and for each query the row that was found and whether it is right."""

    scores: dict[str, float]
    found: np.ndarray
    right: np.ndarray


def score_bitext(examples: Examples, vectors: Vectors) -> Scored:
    """Accuracy, precision, recall and F1 from source to target, and back (``_reverse``); main score: accuracy."""
    texts = [examples.columns[side] for side in ("source", "target")]
    source_ND, target_ND = (np.stack([vectors[text] for text in side]) for side in texts)
    forward = score_direction(source_ND, target_ND, texts[1])
    backward = score_direction(target_ND, source_ND, texts[0])
    reverse = {f"{name}_reverse": value for name, value in backward.scores.items()}
    directions = {"forward": forward, "backward": backward}
    items = pa.concat_tables([_items(name, examples.rows, result) for name, result in directions.items()])
    return Scored({"main_score": forward.scores["accuracy"], **forward.scores, **reverse}, len(examples.rows), items)


def score_direction(queries_ND: np.ndarray, corpus_ND: np.ndarray, corpus_texts: Sequence[str]) -> Direction:
    """Scores row i of ``queries_ND`` against row i of ``corpus_ND``.

    Finding another copy of the right sentence is right: equal texts are one class. Without equal texts the figures
    are those of mteb's bitext mining evaluator.
    """
    first: dict[str, int] = {}
    classes = np.array([first.setdefault(text, i) for i, text in enumerate(corpus_texts)])
    found = nearest_neighbours(queries_ND, corpus_ND)
    return Direction(matching_scores(classes, classes[found]), found, classes == classes[found])


def _items(direction: str, rows: list[int], result: Direction) -> pa.Table:
    columns: dict[str, Any] = {
        "direction": [direction] * len(rows),
        "item": pa.array(rows, pa.int64()),
        "found": pa.array([rows[i] for i in result.found], pa.int64()),
        "score": pa.array(result.right.astype(np.float64)),
    }
    return pa.table(columns)
