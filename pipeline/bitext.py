"""Bitext mining scores: each sentence's nearest neighbour on the other side should be its translation."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from index.metrics import matching_scores, nearest_neighbours


@dataclasses.dataclass(frozen=True)
class Direction:
    """One direction's figures, and for each query the row that was found and whether it is right."""

    scores: dict[str, float]
    found: np.ndarray
    right: np.ndarray


def score_direction(queries_ND: np.ndarray, corpus_ND: np.ndarray, corpus_texts: Sequence[str]) -> Direction:
    """Scores row i of ``queries_ND`` against row i of ``corpus_ND``.

    Finding another copy of the right sentence is right: equal texts are one class. Without equal texts the figures
    are those of mteb's bitext mining evaluator.
    """
    first: dict[str, int] = {}
    classes = np.array([first.setdefault(text, i) for i, text in enumerate(corpus_texts)])
    found = nearest_neighbours(queries_ND, corpus_ND)
    return Direction(matching_scores(classes, classes[found]), found, classes == classes[found])


def subset_scores(forward: Direction, backward: Direction) -> dict[str, Any]:
    """Returns a subset's figures; the main score is the accuracy from source to target."""
    return {
        "main_score": forward.scores["accuracy"],
        **forward.scores,
        **{f"{name}_reverse": value for name, value in backward.scores.items()},
    }
