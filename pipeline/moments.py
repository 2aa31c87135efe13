"""What a Ray task makes of one column of states: sums over whole groups, and a subspace from these."""

import dataclasses
from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from extractors.residuals import (
    Moments,
    language_mean_directions,
    lsar_directions,
    projection_away,
    random_directions,
    shuffled,
    top_directions,
    within_whitening,
)
from pipeline.parallel import GROUP, LANG
from pipeline.store import VectorStore
from pipeline.vectors import matrix


@dataclasses.dataclass(frozen=True)
class Fit:
    """How a subspace is made of states; plain data.

    Attributes:
        states: the vectors folder.
        groups: which groups to use.
        languages: K of them.
        seed: of random directions and of shuffling.
    """

    states: str
    groups: Collection[str]
    languages: tuple[str, ...]
    construction: str
    rank: int
    removal: str
    shrinkage: float
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A column's subspace.

    Attributes:
        groups: how many whole groups the column had.
        explained: the directions' share of all that differs within groups; None where none is worked out.
    """

    tensors: dict[str, np.ndarray]
    groups: int
    explained: float | None


def accumulate(fit: Fit, column: str) -> Moments:
    """Streams a column of states, one unit at a time, and returns its moments.

    Raises:
        ValueError: no group is whole, or nothing differs within the groups.
    """
    moments: Moments | None = None
    generator = np.random.default_rng(fit.seed)
    for states_GKD in _whole_groups(fit, column):
        if moments is None:
            _, languages, width = states_GKD.shape
            moments = Moments.empty(languages, width, by_language=fit.construction == "lir")
        moments.add(shuffled(states_GKD, generator) if fit.construction == "shuffled-pair" else states_GKD)
    if moments is None:
        raise ValueError("no group of translations could be encoded as a whole; see the quarantine of the states")
    moments.refuse_equal()
    return moments


def _whole_groups(fit: Fit, column: str) -> Iterator[np.ndarray]:
    """Yields each unit's groups that have all languages, [G, K, D]; no group is in two units."""
    place = {language: k for k, language in enumerate(fit.languages)}
    wanted = set(fit.groups)
    for _, table in VectorStore(fit.states).iter_vectors([GROUP, LANG, column]):
        rows: dict[str, list[int | None]] = {}
        names = (table.column(name).to_pylist() for name in (GROUP, LANG))
        for row, (group, language) in enumerate(zip(*names, strict=True)):
            if group in wanted and language in place:
                rows.setdefault(group, [None] * len(place))[place[language]] = row
        whole = [entry for entry in rows.values() if None not in entry]
        if whole:
            chosen = pa.array(np.array(whole, dtype=np.int64).ravel())
            states = matrix(table.column(column).take(chosen))
            yield states.reshape(len(whole), len(place), -1)


def fit_block(fit: Fit, column: str) -> Fitted | str:
    """Returns the basis of one block, or what is wrong."""
    try:
        moments = accumulate(fit, column)
        basis, values = _directions(fit, moments, column)
    except ValueError as problem:
        return str(problem)
    tensors = {f"{column}.basis": basis, f"{column}.singular_values": values}
    return Fitted(_float32(tensors), moments.groups, _share(basis, moments))


def fit_embedding(fit: Fit, column: str) -> Fitted | str:
    """Returns what is done to finished vectors, or what is wrong."""
    try:
        moments = accumulate(fit, column)
        if fit.construction == "lir":
            assert moments.second_KDD is not None
            bases = [top_directions(second, fit.rank)[0] for second in moments.second_KDD]
            named = zip(fit.languages, bases, strict=True)
            tensors = {f"language.{language}.basis": basis for language, basis in named}
            return Fitted(_float32(tensors), moments.groups, None)
        mean = np.zeros_like(moments.mean_D)
        if fit.removal == "soft":
            whitening = {"embedding.mean": moments.mean_D, "embedding.matrix": within_whitening(moments, fit.shrinkage)}
            return Fitted(_float32(whitening), moments.groups, None)
        if fit.construction == "lsar":
            basis = lsar_directions(moments.mean_KD, fit.rank)
        else:
            basis, _ = _directions(fit, moments, column)
            mean = moments.mean_D if fit.removal == "hard" else mean
    except ValueError as problem:
        return str(problem)
    projection = {"embedding.mean": mean, "embedding.matrix": projection_away(basis)}
    return Fitted(_float32(projection), moments.groups, _share(basis, moments))


def _directions(fit: Fit, moments: Moments, column: str) -> tuple[np.ndarray, np.ndarray]:
    if fit.construction == "random":
        # Another subspace in each block, the same every time.
        seed = [fit.seed, *column.encode()]
        return random_directions(len(moments.mean_D), fit.rank, seed), np.zeros(fit.rank)
    if fit.construction == "language-mean":
        return language_mean_directions(moments.mean_KD, fit.rank)
    return top_directions(moments.within_DD, fit.rank)


def _share(basis_Dq: np.ndarray, moments: Moments) -> float:
    """The share of the residuals' sum of squares that lies in the basis."""
    return float(np.trace(basis_Dq.T @ moments.within_DD @ basis_Dq) / np.trace(moments.within_DD))


def _float32(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
