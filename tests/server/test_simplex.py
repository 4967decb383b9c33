import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

from fljax.server import simplex_weights
from fljax.server.simplex import onto_simplex
from tests.slow import slow_rows


def value(a, i, h, v):
    return np.square(h[i] - a @ h).sum() + (a * a * v).sum()


def by_scipy(i, h, v):
    """SLSQP from the middle of the simplex, float64."""
    n = len(h)
    gradient = lambda a: 2 * (h @ (a @ h - h[i]) + a * v)  # noqa: E731
    sums_to_one = {"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n)}
    return minimize(
        value,
        np.full(n, 1 / n),
        (i, h, v),
        "SLSQP",
        lambda a, *_: gradient(a),
        bounds=[(0, 1)] * n,
        constraints=sums_to_one,
        options={"ftol": 1e-14, "maxiter": 1000},
    ).x


@pytest.mark.parametrize(
    ("n", "d", "offset", "variance"), [(6, 4, 0.0, 0.5), (12, 3, 30.0, 0.05), *slow_rows((20, 50, 1.0, 2.0))]
)
def test_as_scipy(n, d, offset, variance):
    rng = np.random.default_rng(n)
    h, v = rng.normal(size=(n, d)) + offset, variance * rng.uniform(0.2, 2.0, n)
    weights = np.asarray(simplex_weights(jnp.asarray(h, jnp.float32), jnp.asarray(v, jnp.float32)), np.float64)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
    assert weights.min() >= 0
    scale = (np.square(h - h.mean(0)).sum(1) + v).mean()
    for i in range(n):
        expected = by_scipy(i, h, v)
        assert value(weights[i], i, h, v) <= value(expected, i, h, v) + 2e-5 * scale
        np.testing.assert_allclose(weights[i], expected, atol=5e-3)


def test_of_estimates_of_one_thing_each_counts_by_its_precision():
    v = np.array([1.0, 2.0, 4.0], np.float32)
    weights = simplex_weights(jnp.ones((3, 5)), jnp.asarray(v))
    np.testing.assert_allclose(weights, [v**-1 / (v**-1).sum()] * 3, atol=1e-3)


def test_who_knows_its_own_exactly_takes_from_nobody():
    h = jax.random.normal(jax.random.key(0), (5, 8))
    np.testing.assert_allclose(simplex_weights(h, jnp.zeros(5)), np.eye(5), atol=1e-6)


def test_rows_that_may_not_be_taken_from_never_matter():
    rng = np.random.default_rng(0)
    h, v = rng.normal(size=(6, 3)).astype(np.float32), np.full(6, 0.3, np.float32)
    where = np.array([1, 1, 0, 1, 1, 0], bool)
    weights = np.asarray(simplex_weights(h, v, jnp.asarray(where)))
    assert (weights[:, ~where] == 0).all()
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
    expected = np.asarray(simplex_weights(h[where], v[where]))
    np.testing.assert_allclose(weights[np.ix_(where, where)], expected, atol=5e-3)
    h_with_nan, v_with_nan = h.copy(), v.copy()
    h_with_nan[2], v_with_nan[5] = np.nan, np.nan
    weights_with_nan = np.asarray(simplex_weights(h_with_nan, v_with_nan, jnp.asarray(where)))
    np.testing.assert_array_equal(weights_with_nan[[0, 1, 3, 4, 5]], weights[[0, 1, 3, 4, 5]])
    np.testing.assert_array_equal(simplex_weights(h, v, jnp.zeros(6, bool)), np.eye(6))


def test_names_what_does_not_fit():
    with pytest.raises(ValueError, match=r"points has shape \(4,\); expected \(rows, d\)"):
        simplex_weights(jnp.ones(4), jnp.ones(4))
    with pytest.raises(ValueError, match=r"variance has shape \(3,\)"):
        simplex_weights(jnp.ones((4, 2)), jnp.ones(3))
    with pytest.raises(ValueError, match=r"where has shape \(2,\)"):
        simplex_weights(jnp.ones((4, 2)), jnp.ones(4), jnp.ones(2, bool))


@pytest.mark.parametrize("spread", [0.02, 0.3, 5.0])
def test_the_nearest_point_of_the_simplex_as_scipy(spread):
    """A quadratic programme by SLSQP: all entries positive, some 0, and mostly one alone."""
    rng = np.random.default_rng(0)
    point = rng.normal(0, spread, 7).astype(np.float32)
    nearest = minimize(
        lambda a: np.square(a - point).sum(),
        np.full(7, 1 / 7),
        method="SLSQP",
        jac=lambda a: 2 * (a - point),
        bounds=[(0, 1)] * 7,
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        options={"ftol": 1e-15, "maxiter": 1000},
    ).x
    np.testing.assert_allclose(onto_simplex(jnp.asarray(point)), nearest, atol=1e-6)
