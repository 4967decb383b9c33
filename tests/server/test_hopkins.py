from functools import partial

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fljax.server.hopkins import hopkins
from tests.slow import slow, slow_rows


@partial(jax.jit, static_argnums=(2, 3))
def _draws(x, masks, n_probes, n_draws):
    keys = jax.random.split(jax.random.key(0), len(x))
    return jax.vmap(lambda key, x, m: hopkins(key, x, n_probes, n_draws, m))(keys, x, masks)


def draws(x, n_probes, n_draws=20, where=None):
    return np.asarray(_draws(x, np.ones(x.shape[:2], bool) if where is None else where, n_probes, n_draws))


def numpy_hopkins(rng, x, n_probes):
    """One draw, written from the definition."""
    probes = rng.permutation(len(x))[:n_probes]
    distance = np.linalg.norm(x[:, None] - x[None], axis=-1) + np.diag(np.full(len(x), np.inf))
    uniform_points = rng.uniform(x.min(axis=0), x.max(axis=0), (n_probes, x.shape[1]))
    uniform_sum = np.linalg.norm(uniform_points[:, None] - x[None], axis=-1).min(axis=1).sum()
    return uniform_sum / (uniform_sum + distance[probes].min(axis=1).sum())


@pytest.mark.parametrize("kind", ["uniform", "blobs", "line"])
@pytest.mark.parametrize(("n", "n_probes"), [(20, 4), *slow_rows((6, 2), (20, 20))])
def test_same_distribution_as_numpy(kind, n, n_probes):
    """Random numbers differ, so mean and spread over 1,000 draws are compared, within 5 standard errors."""
    rng = np.random.default_rng(n)
    x = {
        "uniform": rng.random((n, 3)),
        "blobs": 10 * rng.integers(0, 2, (n, 1)) + rng.random((n, 3)),
        "line": np.arange(n)[:, None] * np.ones((1, 3)),
    }[kind].astype(np.float32)
    actual = draws(np.broadcast_to(x, (1000, n, x.shape[1])), n_probes, n_draws=1)
    expected = np.array([numpy_hopkins(rng, x.astype(float), n_probes) for _ in range(1000)])
    error = np.hypot(actual.std(), expected.std()) / np.sqrt(1000)
    assert abs(actual.mean() - expected.mean()) <= 5 * error
    assert abs(actual.std() - expected.std()) <= 5 * error + 1e-6


def test_uniform_is_half_and_blobs_are_near_one():
    rng = np.random.default_rng(0)
    uniform_x, group = rng.random((50, 200, 2)).astype(np.float32), rng.integers(0, 2, (50, 200, 1))
    assert abs(draws(uniform_x, 20).mean() - 0.5) < 0.05  # edges of the box make it a little more than a half
    blobs_x = (100 * group + rng.normal(size=(50, 200, 2))).astype(np.float32)
    assert draws(blobs_x, 20).min() > 0.95


def test_hand_value():
    """Two points: each is the other's nearest, v = 1 each; a place in the box is at most half a diagonal from one."""
    value = draws(np.broadcast_to(np.float32([[0], [1]]), (500, 2, 1)), 2, n_draws=1)
    assert (value < 1 / 3 + 1e-6).all()  # z <= 1/2 each, so H <= 1 / (1 + 2)
    np.testing.assert_allclose(value.mean(), 0.2, atol=0.01)  # z is 1/4 each on average, H about (1/2) / (5/2)


@pytest.mark.parametrize("n", [2, *slow(1, 5)])
def test_edges(n):
    key = jax.random.key(0)
    x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
    assert float(hopkins(key, np.full_like(x, 2), 2, where=np.ones(n, bool))) == 0.5
    assert float(hopkins(key, x, 2, where=np.zeros(n, bool))) == 0.5
    assert float(hopkins(key, x, 2, where=np.arange(n) == 0)) == 0.5
    assert 0 <= float(hopkins(key, x, 10 * n)) <= 1
    with pytest.raises(ValueError, match="n_probes=0 is not positive"):
        hopkins(key, x, 0)


def test_masked_points_never_matter():
    rng = np.random.default_rng(0)
    x, where = rng.random((400, 12, 3)).astype(np.float32), rng.random((400, 12)) < 0.5
    with_nan, with_large_numbers = (draws(np.where(where[..., None], x, fill), 4, 5, where) for fill in (np.nan, 1e9))
    np.testing.assert_array_equal(with_nan, with_large_numbers)
    assert ((with_nan >= 0) & (with_nan <= 1)).all()


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_scale_and_shift_change_nothing(seed, scale):
    x, key = np.random.default_rng(seed).random((10, 4)).astype(np.float32), jax.random.key(seed)
    statistic, of_scaled, of_shifted = (
        np.asarray(hopkins(key, points, 3, 5)) for points in (x, x * np.float32(scale), x + 1)
    )
    np.testing.assert_allclose(of_scaled, statistic, rtol=1e-4)  # distances of shrunken floats
    np.testing.assert_allclose(of_shifted, statistic, rtol=1e-3)


def test_one_program_inside_scan_and_for_pytrees(traced_once):
    x, keys = np.random.default_rng(0).random((8, 6)).astype(np.float32), jax.random.split(jax.random.key(0), 3)
    step = lambda c, arguments: (c, hopkins(arguments[0], x, 3, 4, arguments[1]))  # noqa: E731
    traced = traced_once(lambda keys, where: jax.lax.scan(step, 0, (keys, where))[1])
    is_counted = np.ones((3, 8), bool)
    statistics = np.asarray(traced(keys, is_counted))
    assert (np.asarray(traced(keys, is_counted & (np.arange(8) > 3))) != statistics).all()
    stacked = {"a": x[:, :2], "b": x[:, 2:].reshape(8, 2, 2), "batch_stats": {"a": np.full(8, np.nan, np.float32)}}
    np.testing.assert_allclose(hopkins(keys[0], stacked, 3, 4), statistics[0], rtol=1e-6)
