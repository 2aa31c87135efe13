"""Scores of pairs and rankings by cosine: STS, pair classification, reranking. The figures are mteb's."""

from typing import Any

import numpy as np
import pyarrow as pa
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score

from index.ann import as_rows
from pipeline.examples import Examples
from pipeline.scored import Scored, Vectors


def score_sts(examples: Examples, vectors: Vectors) -> Scored:
    """Spearman's (main) and Pearson's correlation of the cosines with the gold scores; 0 if all cosines are equal."""
    gold, cosine = np.array(examples.columns["score"], dtype=np.float64), _pair_cosines(examples, vectors)
    spearman = pearson = 0.0
    if np.ptp(cosine) > 0 and np.ptp(gold) > 0:
        spearman, pearson = float(spearmanr(gold, cosine).statistic), float(pearsonr(gold, cosine).statistic)
    scores = {"main_score": spearman, "cosine_spearman": spearman, "cosine_pearson": pearson}
    return Scored(scores, len(gold), _items(examples, gold=gold, cosine=cosine))


def score_pair_classification(examples: Examples, vectors: Vectors) -> Scored:
    """Average precision (main), and the best accuracy and F1 over all cosine thresholds."""
    label, cosine = np.array(examples.columns["label"], dtype=np.int64), _pair_cosines(examples, vectors)
    precision = float(average_precision_score(label, cosine))
    scores = {"main_score": precision, "cosine_ap": precision, **_best_thresholds(label, cosine)}
    return Scored(scores, len(label), _items(examples, gold=label, cosine=cosine))


def score_reranking(examples: Examples, vectors: Vectors) -> Scored:
    """Mean over the queries of the average precision of the ranked candidates (main), and MRR at 10.

    Among equal cosines the negative candidates are ranked first, so that a model that cannot tell texts apart gains
    nothing from the order in the file.
    """
    precisions, reciprocal_ranks = [], []
    for query, positive, negative in zip(*(examples.columns[name] for name in examples.kind.names), strict=True):
        candidates = as_rows(np.stack([vectors[text] for text in (*negative, *positive)]), "cosine")
        cosine = candidates @ as_rows(vectors[query][None], "cosine")[0]
        relevant = (np.arange(len(cosine)) >= len(negative))[np.argsort(-cosine, kind="stable")]
        found = np.flatnonzero(relevant) + 1
        precisions.append(float((np.arange(1, len(found) + 1) / found).mean()))
        reciprocal_ranks.append(1 / found[0] if found[0] <= 10 else 0.0)
    average = float(np.mean(precisions))
    scores = {"main_score": average, "map": average, "mrr_at_10": float(np.mean(reciprocal_ranks))}
    return Scored(scores, len(precisions), _items(examples, score=precisions))


def _pair_cosines(examples: Examples, vectors: Vectors) -> np.ndarray:
    sides = (examples.columns[name] for name in ("sentence1", "sentence2"))
    first, second = (as_rows(np.stack([vectors[text] for text in side]), "cosine") for side in sides)
    return (first.astype(np.float64) * second).sum(axis=1)


def _best_thresholds(label: np.ndarray, cosine: np.ndarray) -> dict[str, float]:
    """A threshold lies between two different cosines; equal ones are never parted."""
    order = np.argsort(-cosine, kind="stable")
    ranked, count = label[order], np.arange(1, len(label))
    cut = np.flatnonzero(cosine[order][:-1] != cosine[order][1:])
    if not len(cut):
        return {f"cosine_{name}": 0.0 for name in ("accuracy", "f1", "precision", "recall")}
    right = ranked.cumsum()[:-1][cut]
    above = count[cut]
    positives = ranked.sum()
    accuracy = (right + (len(label) - above) - (positives - right)) / len(label)
    f1 = 2 * right / (above + positives)
    best = int(f1.argmax())
    return {
        "cosine_accuracy": float(accuracy.max()),
        "cosine_f1": float(f1[best]),
        "cosine_precision": float(right[best] / above[best]) if f1[best] else 0.0,
        "cosine_recall": float(right[best] / positives) if f1[best] else 0.0,
    }


def _items(examples: Examples, **columns: Any) -> pa.Table:
    return pa.table({"item": pa.array(examples.rows, pa.int64()), **{k: pa.array(v) for k, v in columns.items()}})
