"""Scores of labelled texts: classification and clustering, as mteb works them out, on the vectors as they are."""

import warnings

import numpy as np
import pyarrow as pa
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, v_measure_score

from pipeline.examples import TRAIN, Examples
from pipeline.scored import Scored, Vectors

_ITERATIONS = 100
_BATCH = 500
# mteb clusters once, from its seed 42. One start differs from the next by several points on a small set, so here the
# score is the mean over this many starts, of which that one is the first.
_FIRST_SEED, _SEEDS = 42, 10


def score_classification(examples: Examples, vectors: Vectors) -> Scored:
    """Accuracy (main) and F1 of a logistic regression fitted to the whole split train, on the split test.

    The vectors are not normalised. mteb's classifier is the same; its tasks fit it ten times to a few rows a label.
    """
    vector_ND = np.stack([vectors[text] for text in examples.columns["text"]])
    label = np.array([str(label) for label in examples.columns["label"]])
    train = np.array([split == TRAIN for split in examples.columns["split"]])
    with warnings.catch_warnings():
        # A hundred iterations are the convention, converged or not.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = LogisticRegression(max_iter=_ITERATIONS).fit(vector_ND[train], label[train])
    gold, found = label[~train], fitted.predict(vector_ND[~train])
    accuracy = float(accuracy_score(gold, found))
    scores = {
        "main_score": accuracy,
        "accuracy": accuracy,
        "f1": float(f1_score(gold, found, average="macro")),
        "f1_weighted": float(f1_score(gold, found, average="weighted")),
    }
    rows = np.array(examples.rows)[~train]
    items = {"item": rows, "gold": gold, "found": found, "score": (gold == found).astype(np.float64)}
    return Scored(scores, len(gold), pa.table({name: pa.array(values) for name, values in items.items()}))


def score_clustering(examples: Examples, vectors: Vectors) -> Scored:
    """V-measure of mini-batch k-means with as many clusters as there are labels: mean (main) and deviation over
    the starts."""
    vector_ND = np.stack([vectors[text] for text in examples.columns["text"]])
    label = [str(label) for label in examples.columns["label"]]
    clusters = [
        MiniBatchKMeans(len(set(label)), batch_size=_BATCH, n_init="auto", random_state=seed).fit(vector_ND).labels_
        for seed in range(_FIRST_SEED, _FIRST_SEED + _SEEDS)
    ]
    measures = np.array([v_measure_score(label, found) for found in clusters])
    mean = float(measures.mean())
    scores = {"main_score": mean, "v_measure": mean, "v_measure_std": float(measures.std())}
    scores["v_measure_first"] = float(measures[0])
    items = {"item": examples.rows, "gold": label, "cluster": clusters[0]}
    return Scored(scores, len(label), pa.table({name: pa.array(values) for name, values in items.items()}))
