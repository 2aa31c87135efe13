"""The mathematics of language removal: what differs within a group of translations is taken for the language's trace.

Arrays are float64 and named by shape: G groups of K languages each, D values, q directions.
"""

import dataclasses

import numpy as np

# Of squares: what the same text may differ by in two batches.
_ROUNDING = 1e-11


@dataclasses.dataclass
class Moments:
    """Sums over parallel groups, so that no state need be kept; of the same size whatever the number of groups.

    Attributes:
        groups: G.
        within_DD: sum over all residuals r = h - (mean of h over its group) of r^T r.
        sum_KD: sum over the groups of h, by language.
        second_KDD: sum over the groups of h^T h, by language; None unless asked for.
        total: sum of the squares of all values.
    """

    groups: int
    within_DD: np.ndarray
    sum_KD: np.ndarray
    second_KDD: np.ndarray | None
    total: float = 0.0

    @classmethod
    def empty(cls, languages: int, width: int, by_language: bool = False) -> "Moments":
        """Returns the moments of no group.

        Args:
            by_language: whether to keep each language's own second moment.
        """
        second = np.zeros((languages, width, width)) if by_language else None
        return cls(0, np.zeros((width, width)), np.zeros((languages, width)), second)

    def add(self, states_GKD: np.ndarray) -> None:
        """Adds whole groups."""
        states = states_GKD.astype(np.float64)
        flat = residuals(states).reshape(-1, states.shape[-1])
        self.groups += len(states)
        self.total += float((states**2).sum())
        self.within_DD += flat.T @ flat
        self.sum_KD += states.sum(axis=0)
        if self.second_KDD is not None:
            self.second_KDD += np.einsum("gkd,gke->kde", states, states)

    def refuse_equal(self) -> None:
        """Refuses states in which nothing differs within a group, beyond float32's rounding.

        Raises:
            ValueError: with the reason.
        """
        if np.trace(self.within_DD) <= _ROUNDING * self.total:
            raise ValueError("all states of each group are equal, so nothing differs between its languages")

    @property
    def mean_KD(self) -> np.ndarray:
        """The mean by language."""
        return self.sum_KD / self.groups

    @property
    def mean_D(self) -> np.ndarray:
        """The mean over all groups and languages."""
        return self.mean_KD.mean(axis=0)


def residuals(states_GKD: np.ndarray) -> np.ndarray:
    """Returns each state less the mean of its group; over a group they sum to zero."""
    return states_GKD - states_GKD.mean(axis=1, keepdims=True)


def shuffled(states_GKD: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Returns the groups with each language's sentences in an order of its own: same languages, no translations."""
    return np.stack([states_GKD[generator.permutation(len(states_GKD)), k] for k in range(states_GKD.shape[1])], axis=1)


def top_directions(moment_DD: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the eigenvectors [D, q] of the largest eigenvalues of a sum of x^T x, and the singular values [q].

    These are the right singular vectors and the singular values of the stacked x (PRSR, arXiv 2610.23807: the
    directions that leave least of the residuals behind). Signs are fixed: the largest component is positive.

    Raises:
        ValueError: fewer than ``rank`` directions have anything in them.
    """
    values, vectors = np.linalg.eigh((moment_DD + moment_DD.T) / 2)
    values, vectors = values[::-1][:rank], vectors[:, ::-1][:, :rank]
    present = int((values > _ROUNDING * np.trace(moment_DD)).sum())
    if present < rank:
        raise ValueError(f"rank {rank} is more than the {present} directions in which anything differs")
    largest = np.abs(vectors).argmax(axis=0)
    return vectors * np.sign(vectors[largest, np.arange(rank)]), np.sqrt(values)


def random_directions(width: int, rank: int, seed: int | list[int] = 0) -> np.ndarray:
    """Returns orthonormal columns [D, q] in no particular direction."""
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((width, rank)))[0]


def language_mean_directions(mean_KD: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the directions [D, q] in which the languages' means differ, and their singular values.

    Raises:
        ValueError: a rank above K - 1.
    """
    centred = mean_KD - mean_KD.mean(axis=0)
    if rank > len(mean_KD) - 1:
        raise ValueError(f"rank {rank} is more than the {len(mean_KD) - 1} that {len(mean_KD)} languages' means have")
    _, values, rows = np.linalg.svd(centred, full_matrices=False)
    return rows[:rank].T, values[:rank]


def lsar_directions(mean_KD: np.ndarray, rank: int) -> np.ndarray:
    """Returns LSAR's directions [D, k] (Xie et al. 2022): of the languages' means, orthogonal to what all share.

    Raises:
        ValueError: a rank above K - 1.
    """
    count = len(mean_KD)
    if rank > count - 1:
        raise ValueError(f"rank {rank} is more than the {count - 1} that {count} languages' means have")
    means_DK = mean_KD.T
    common_D = means_DK.mean(axis=1)
    left, values, rows = np.linalg.svd(means_DK - common_D[:, None], full_matrices=False)
    smooth_DK = common_D[:, None] + left[:, :rank] * values[:rank] @ rows[:rank]
    shared_D = np.linalg.pinv(smooth_DK).T @ np.ones(count)
    shared_D /= shared_D @ shared_D
    return np.linalg.svd(smooth_DK - shared_D[:, None], full_matrices=False)[0][:, :rank]


def projection_away(basis_Dq: np.ndarray) -> np.ndarray:
    """Returns I - B B^T [D, D]."""
    return np.eye(len(basis_Dq)) - basis_Dq @ basis_Dq.T


def within_whitening(moments: Moments, shrinkage: float) -> np.ndarray:
    """Returns the inverse square root [D, D] of the shrunk covariance of the residuals.

    Within-class covariance normalisation (Hatch, Kajarekar, Stolcke 2006) with a group of translations as a class:
    ((1 - l) S + l tr(S) / D I)^(-1/2), S the mean of r^T r over all groups and languages.

    Raises:
        ValueError: no shrinkage where fewer residuals than values leave S singular.
    """
    count = moments.groups * len(moments.sum_KD)
    covariance = moments.within_DD / count
    width = len(covariance)
    level = np.trace(covariance) / width
    shrunk = (1 - shrinkage) * covariance + shrinkage * level * np.eye(width)
    values, vectors = np.linalg.eigh((shrunk + shrunk.T) / 2)
    if values[0] <= 1e-9 * level:
        raise ValueError(
            f"shrinkage {shrinkage} leaves directions in which nothing was seen to differ, and which would be blown up "
            "without bound; give more, such as 0.3"
        )
    return vectors / np.sqrt(values) @ vectors.T
