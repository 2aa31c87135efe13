"""Scores of matching vectors against vectors."""

import numpy as np

from index.ann import as_rows

_QUERIES_AT_ONCE = 1024


def nearest_neighbours(queries_QD: np.ndarray, corpus_ND: np.ndarray) -> np.ndarray:
    """Returns the row of the corpus vector with the highest cosine for each query: int64 [Q]."""
    queries, corpus = as_rows(queries_QD, "cosine"), as_rows(corpus_ND, "cosine")
    chunks = range(0, len(queries), _QUERIES_AT_ONCE)
    return np.concatenate([(queries[i : i + _QUERIES_AT_ONCE] @ corpus.T).argmax(axis=1) for i in chunks])


def matching_scores(gold_Q: np.ndarray, found_Q: np.ndarray) -> dict[str, float]:
    """Returns accuracy, and precision, recall and F1 averaged over the gold classes by their frequency.

    These are the figures of mteb's bitext mining evaluator (scikit-learn's ``average="weighted"``), where each target
    sentence is a class of its own.
    """
    classes = int(max(gold_Q.max(), found_Q.max())) + 1
    gold = np.bincount(gold_Q, minlength=classes).astype(np.float64)
    found = np.bincount(found_Q, minlength=classes).astype(np.float64)
    right = np.bincount(gold_Q[gold_Q == found_Q], minlength=classes).astype(np.float64)
    precision, recall = _ratio(right, found), _ratio(right, gold)
    weights = gold / gold.sum()
    return {
        "accuracy": float((gold_Q == found_Q).mean()),
        "precision": float(weights @ precision),
        "recall": float(weights @ recall),
        "f1": float(weights @ _ratio(2 * precision * recall, precision + recall)),
    }


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
