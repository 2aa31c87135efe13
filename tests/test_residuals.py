"""The laws of language removal, on states made by hand."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm, subspace_angles

from extractors.residuals import (
    Moments,
    language_mean_directions,
    lsar_directions,
    projection_away,
    random_directions,
    residuals,
    shuffled,
    top_directions,
    within_whitening,
)
from extractors.steer_subspace import remove

GROUPS, LANGUAGES, WIDTH, RANK = 50, 4, 12, 3


@pytest.fixture
def states() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(GROUPS, LANGUAGES, WIDTH))


def moments(states: np.ndarray, parts: int = 1, **options: bool) -> Moments:
    total = Moments.empty(LANGUAGES, states.shape[2], **options)
    for part in np.array_split(states, parts):
        total.add(part)
    return total


def test_residuals_of_a_group_sum_to_zero(states: np.ndarray) -> None:
    np.testing.assert_allclose(residuals(states).sum(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("parts", [1, 7, 50])
def test_moments_in_any_order_give_the_svd_of_the_stacked_residuals(states: np.ndarray, parts: int) -> None:
    order = np.random.default_rng(parts).permutation(GROUPS)
    basis, values = top_directions(moments(states[order], parts).within_DD, RANK)
    _, expected_values, rows = np.linalg.svd(residuals(states).reshape(-1, WIDTH), full_matrices=False)
    assert subspace_angles(basis, rows[:RANK].T).max() < 1e-5
    np.testing.assert_allclose(values, expected_values[:RANK])
    np.testing.assert_allclose(basis.T @ basis, np.eye(RANK), atol=1e-12)


def test_no_basis_leaves_less_of_the_residuals(states: np.ndarray) -> None:
    flat = residuals(states).reshape(-1, WIDTH)
    basis, _ = top_directions(moments(states).within_DD, RANK)
    best = np.linalg.norm(flat @ projection_away(basis))
    for seed in range(20):
        assert np.linalg.norm(flat @ projection_away(random_directions(WIDTH, RANK, seed))) >= best


def test_removing_twice_is_removing_once_and_leaves_nothing_in_the_basis(states: np.ndarray) -> None:
    basis = torch.from_numpy(top_directions(moments(states).within_DD, RANK)[0]).float()
    state = torch.from_numpy(states[0]).float()
    once = remove(state, basis)
    torch.testing.assert_close(once @ basis, torch.zeros(LANGUAGES, RANK), atol=1e-5, rtol=0)
    torch.testing.assert_close(remove(once, basis), once)
    # Strength -1 adds what 1 removes.
    torch.testing.assert_close(remove(state, basis, -1.0) + once, 2 * state)


def test_planted_language_directions_are_found() -> None:
    generator = np.random.default_rng(0)
    planted = np.linalg.qr(generator.normal(size=(40, LANGUAGES - 1)))[0]
    meaning = generator.normal(size=(300, 1, 40)) * 3
    offsets = generator.normal(size=(LANGUAGES, LANGUAGES - 1)) @ planted.T * 5
    states = meaning + offsets + 0.01 * generator.normal(size=(300, LANGUAGES, 40))
    for basis in (
        top_directions(moments_of(states).within_DD, LANGUAGES - 1)[0],
        language_mean_directions(moments_of(states).mean_KD, LANGUAGES - 1)[0],
    ):
        assert subspace_angles(basis, planted).max() < 0.05
    # Without pairs, what differs within a group is meaning above all.
    mixed = moments_of(shuffled(states, generator))
    assert subspace_angles(top_directions(mixed.within_DD, LANGUAGES - 1)[0], planted).max() > 0.5
    np.testing.assert_allclose(mixed.mean_KD, moments_of(states).mean_KD)


def moments_of(states: np.ndarray) -> Moments:
    total = Moments.empty(states.shape[1], states.shape[2])
    total.add(states)
    return total


def test_whitening_is_the_inverse_root_of_the_shrunk_covariance(states: np.ndarray) -> None:
    flat = residuals(states).reshape(-1, WIDTH)
    covariance = flat.T @ flat / len(flat)
    shrunk = 0.7 * covariance + 0.3 * np.trace(covariance) / WIDTH * np.eye(WIDTH)
    np.testing.assert_allclose(within_whitening(moments(states), 0.3), np.linalg.inv(sqrtm(shrunk)), atol=1e-9)
    white = flat @ within_whitening(moments(states), 0.0)
    np.testing.assert_allclose(white.T @ white / len(flat), np.eye(WIDTH), atol=1e-9)


def test_lsar_is_orthogonal_to_what_all_languages_share(states: np.ndarray) -> None:
    means = (states + 3).mean(axis=0)
    basis = lsar_directions(means, LANGUAGES - 1)
    np.testing.assert_allclose(basis.T @ basis, np.eye(LANGUAGES - 1), atol=1e-12)
    # With full rank nothing is smoothed: the languages' means differ in just these directions and share the rest.
    left = means @ projection_away(basis)
    np.testing.assert_allclose(left - left[0], 0, atol=1e-9)
    assert np.linalg.norm(left[0]) > 1


def test_what_cannot_be_fitted_is_refused(states: np.ndarray) -> None:
    equal = np.repeat(states[:, :1], LANGUAGES, axis=1)
    for same in (equal, equal.astype(np.float32) * (1 + 1e-7 * np.sign(states))):
        with pytest.raises(ValueError, match="all states of each group are equal"):
            moments(same).refuse_equal()
    moments(states).refuse_equal()
    with pytest.raises(ValueError, match="rank 4 is more than the 3"):
        top_directions(moments(states[:1]).within_DD, 4)
    with pytest.raises(ValueError, match="shrinkage 0"):
        within_whitening(moments(states[:2]), 0.0)
    for directions in (language_mean_directions, lsar_directions):
        with pytest.raises(ValueError, match="rank 4 is more than the 3"):
            directions(states.mean(axis=0), 4)  # type: ignore[operator]
