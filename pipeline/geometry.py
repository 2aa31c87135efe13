"""How much of the embeddings' geometry is language: the measures of the PRSR paper (arXiv 2610.23807, §3 and B.1)."""

import base64
import collections
import html
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from index.ann import as_rows
from pipeline.errors import RunError
from pipeline.examples import Examples
from pipeline.figures import scatter
from pipeline.scored import Scored, Vectors

# Negatives are drawn among sentences of like length: each language's sentences in this many strata.
_STRATA = 10
_SEED = 0
_MOST_POINTS = 2000
_TINY = 1e-9


def score_geometry(examples: Examples, vectors: Vectors) -> Scored:
    """Clusters against language, and translations against same-language negatives.

    ``nmi`` and ``ari`` compare k-means clusters, as many as languages, with the languages. For each anchor and each of
    its translations a negative of the anchor's language is drawn from its stratum of length: ``ordering_violations``
    is how often the negative is the closer one, ``distance_ratio`` the mean distance (1 - cosine) to translations over
    that to negatives. The main score is the share of comparisons without violation.
    """
    groups, languages = (np.array([str(v) for v in examples.columns[name]]) for name in ("group", "lang"))
    unit_ND = as_rows(np.stack([vectors[text] for text in examples.columns["text"]]), "cosine")
    count = len(set(languages))
    clusters = KMeans(count, n_init=10, random_state=_SEED).fit(unit_ND).labels_
    anchor, translation = _pairs(groups)
    negative = _negatives(groups, languages, examples.columns["text"])[anchor]
    # The only sentence of its language, say, has no negative.
    anchor, translation, negative = (rows[negative >= 0] for rows in (anchor, translation, negative))
    if not len(anchor):
        raise RunError(f"subset {examples.subset}: no text has another of its own language to be compared with")
    to_translation = 1 - (unit_ND[anchor] * unit_ND[translation]).sum(axis=1)
    to_negative = 1 - (unit_ND[anchor] * unit_ND[negative]).sum(axis=1)
    violated = to_negative < to_translation
    scores = {
        "main_score": float(1 - violated.mean()),
        "nmi": float(normalized_mutual_info_score(languages, clusters)),
        "ari": float(adjusted_rand_score(languages, clusters)),
        "ordering_violations": float(violated.mean()),
        "distance_ratio": float(to_translation.mean() / max(to_negative.mean(), _TINY)),
        "translation_distance": float(to_translation.mean()),
        "negative_distance": float(to_negative.mean()),
    }
    rows = np.array(examples.rows)
    items = {"item": rows[anchor], "translation": rows[translation], "negative": rows[negative], "score": ~violated}
    table = {
        name: pa.array(np.asarray(values, dtype=np.float64 if name == "score" else np.int64))
        for name, values in items.items()
    }
    return Scored(scores, len(languages), pa.table(table))


def _pairs(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns every ordered pair of rows that belong to the same group."""
    members = collections.defaultdict(list)
    for row, group in enumerate(groups):
        members[group].append(row)
    pairs = [(a, b) for rows in members.values() for a in rows for b in rows if a != b]
    first, second = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return first, second


def _negatives(groups: np.ndarray, languages: np.ndarray, texts: list[str]) -> np.ndarray:
    """Returns for each row another one of its language, drawn among those of like length; -1 where there is none."""
    generator = np.random.default_rng(_SEED)
    lengths = np.array([len(text) for text in texts])
    negative = np.full(len(texts), -1, dtype=np.int64)
    for language in sorted(set(languages)):
        rows = np.flatnonzero(languages == language)
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        for stratum in np.array_split(rows, max(1, min(_STRATA, len(rows) // 2))):
            for row in stratum:
                others = [o for o in stratum if groups[o] != groups[row] and texts[o] != texts[row]]
                if others:
                    negative[row] = generator.choice(others)
    return negative


def geometry_page(title: str, examples: Examples, stages: dict[str, tuple[Vectors, dict[str, float]]]) -> bytes:
    """Returns a page of its own with the measures, and the embeddings in two dimensions (t-SNE), of each stage.

    Args:
        stages: vectors and scores by name, such as before and after a subspace was removed.
    """
    # Whole groups, at equal distances, so that every language is there.
    place = {group: i for i, group in enumerate(dict.fromkeys(examples.columns["group"]))}
    step = -(-len(examples.rows) // _MOST_POINTS)
    shown = [i for i, group in enumerate(examples.columns["group"]) if place[group] % step == 0]
    texts, languages = ([examples.columns[name][i] for i in shown] for name in ("text", "lang"))
    panels = {name: _in_two_dimensions(texts, vectors) for name, (vectors, _) in stages.items()}
    picture = base64.b64encode(scatter(panels, [str(language) for language in languages])).decode()
    head = "".join(f"<th>{html.escape(name)}</th>" for name in stages)
    measures = [name for name in next(iter(stages.values()))[1] if name not in ("main_score", "n_items")]
    rows = "".join(
        f"<tr><td>{name}</td>{''.join(f'<td>{scores[name]:.3f}</td>' for _, scores in stages.values())}</tr>"
        for name in measures
    )
    page = f"""<!doctype html><meta charset="utf-8"><title>{html.escape(title)}</title>
<style>body{{font-family:sans-serif;margin:2em}}td,th{{padding:.2em 1em;text-align:right}}img{{max-width:100%}}</style>
<h1>{html.escape(title)}</h1>
<table><tr><th>measure</th>{head}</tr>{rows}</table>
<p>t-SNE of {len(texts):,} of {len(examples.rows):,} texts, by cosine.</p>
<img alt="t-SNE of the embeddings, coloured by language" src="data:image/png;base64,{picture}">
"""
    return page.encode()


def _in_two_dimensions(texts: list[str], vectors: Vectors) -> np.ndarray:
    points_ND = np.stack([vectors[text] for text in texts])
    options: dict[str, Any] = {"metric": "cosine", "init": "random", "random_state": _SEED}
    return TSNE(perplexity=min(30.0, (len(texts) - 1) / 3), **options).fit_transform(points_ND)
