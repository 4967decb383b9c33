"""What the theory allows of cosines, against clients of every kind and by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.server.bipartition import best_bipartition
from fljax.server.gradient_bounds import cross_bound, gamma_limit, intra_bound
from fljax.server.separation import separation_gap


def cosines(x):
    unit = x / np.linalg.norm(x, axis=-1, keepdims=True)
    return unit @ unit.T


def clients_of(rng, n_groups, gamma, n=12, n_dimensions=6):
    """Gradients of n clients near a stationary point of ``n_groups`` distributions, and their groups.

    The distributions' own gradients, weighted by their clients, cancel. Each client's is off by less than ``gamma``
    (n,) of its distribution's length, or by exactly that where the error is at right angles to the client's gradient.
    """
    group = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, n - n_groups)])
    group_gradients = rng.normal(size=(n_groups, n_dimensions)) * rng.exponential(size=(n_groups, 1))
    group_gradients -= np.bincount(group) @ group_gradients / n
    norms = np.linalg.norm(group_gradients, axis=1)[group]
    error = rng.normal(size=(n, n_dimensions))
    if rng.random() < 0.5:  # turned as far as an error of that length can turn it
        direction = group_gradients[group] / norms[:, None]
        normal = error - (error * direction).sum(1, keepdims=True) * direction
        normal /= np.linalg.norm(normal, axis=1, keepdims=True)
        angle = np.arcsin(gamma)[:, None]
        return norms[:, None] * np.cos(angle) * (np.cos(angle) * direction + np.sin(angle) * normal), group
    error *= (gamma * norms * rng.random(n) / np.linalg.norm(error, axis=1))[:, None]
    return group_gradients[group] + error, group


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 3, 4, 6]), st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9]))
def test_clients_whose_gradients_err_so_much_keep_the_bounds(seed, n_groups, gamma_max):
    rng = np.random.default_rng(seed)
    gamma = gamma_max * rng.random(12)
    if n_groups == 1:
        gradient, group = rng.normal(size=6) + np.zeros((12, 6)), np.zeros(12, int)
        error = rng.normal(size=(12, 6))
        gradient = gradient + error * (gamma * np.linalg.norm(gradient[0]) / np.linalg.norm(error, axis=1))[:, None]
    else:
        gradient, group = clients_of(rng, n_groups, gamma)
    alpha, is_same_group = cosines(gradient), group[:, None] == group[None, :]
    bound = np.asarray(intra_bound(jnp.asarray(gamma)[:, None], jnp.asarray(gamma)[None, :]))
    assert (alpha >= bound - 1e-5)[is_same_group].all()
    lower_bound = float(intra_bound(jnp.float32(gamma.max())))
    np.testing.assert_allclose(lower_bound, 1 - 2 * gamma.max() ** 2, rtol=1e-5, atol=1e-6)
    assert alpha[is_same_group].min() >= lower_bound - 1e-5
    if n_groups == 1:
        return
    cross = best_bipartition(jnp.asarray(alpha, jnp.float32), jnp.zeros(12, jnp.int32)).cross[0]
    assert cross <= cross_bound(jnp.float32(lower_bound), n_groups) + 1e-5
    if n_groups == 2:
        assert alpha[~is_same_group].max() <= -bound[~is_same_group].min() + 1e-5


@given(st.integers(0, 10_000), st.sampled_from([2, 3]), st.floats(0.01, 0.9))
def test_a_split_across_which_gamma_is_below_its_limit_is_right(seed, n_groups, gamma_max):
    gradient, group = clients_of(np.random.default_rng(seed), n_groups, np.full(12, gamma_max))
    alpha = jnp.asarray(cosines(gradient), jnp.float32)
    side, cross = best_bipartition(alpha, jnp.zeros(12, jnp.int32))
    if gamma_max < gamma_limit(cross[0]) - 1e-4:
        assert len(set(zip(group.tolist(), side.tolist(), strict=True))) == n_groups  # no group is on both sides


def test_the_bounds_are_reached():
    # Two distributions that pull against each other; clients turned by 30 degrees (gamma 1/2) to either side.
    angles = np.deg2rad([30, -30, 150, 210])
    alpha = cosines(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    gap = separation_gap(jnp.asarray(alpha), jnp.asarray([0, 0, 1, 1]))
    h = intra_bound(jnp.float32(0.5))
    np.testing.assert_allclose([alpha[0, 1], alpha[0, 2], gap], [h, cross_bound(h, 2), 2 * h], atol=1e-6)
    # Four distributions within a plane, 60 degrees apart but for the two ends: no better bipartition than one angle.
    angles_in_plane = np.deg2rad([0, 60, 120, 180])
    cosines_in_plane = cosines(np.stack([np.cos(angles_in_plane), np.sin(angles_in_plane)], axis=1))
    cross = best_bipartition(jnp.asarray(cosines_in_plane, jnp.float32), jnp.zeros(4, jnp.int32)).cross[0]
    np.testing.assert_allclose([cross, cross_bound(jnp.float32(1), 4)], 0.5, rtol=1e-6)


def test_bounds_by_hand():
    # arcsin 0.6 + arcsin 0.8 is a right angle.
    gamma, other_gamma = jnp.asarray([0.0, 0.6, 0.6, 1.0, 0.2]), jnp.asarray([0.0, 0.8, 0.6, 0.0, 1.5])
    np.testing.assert_allclose(intra_bound(gamma, other_gamma), [1, 0, 0.28, -1, -1], atol=1e-6)
    np.testing.assert_allclose(intra_bound(gamma[:3]), [1, 0.28, 0.28], rtol=1e-6)
    # cos(90 degrees - arccos 0.8) = sin(arccos 0.8) = 0.6; below cos(60 degrees) = 0.5 nothing is promised for k = 4.
    h = jnp.asarray([1.0, 0.8, 0.5, 0.49, -1.0])
    np.testing.assert_allclose(cross_bound(h, 2), -h, atol=1e-6)
    np.testing.assert_allclose(cross_bound(h, 3)[:2], [0, 0.6], atol=1e-6)
    np.testing.assert_allclose(cross_bound(h, 4)[2:], [1, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(gamma_limit(jnp.asarray([-2.0, -1, 0, 0.5, 1, 2])), [1, 1, 0.5**0.5, 0.5, 0, 0])


def test_bounds_refuse_what_has_no_meaning():
    with pytest.raises(ValueError, match="n_groups=1 cannot be separated"):
        cross_bound(jnp.float32(0.5), 1)
