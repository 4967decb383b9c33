"""FedMGDA+: against SciPy in double precision, in closed form, and what its step promises every participant."""

from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
from scipy.optimize import minimize

import fljax
from fljax.rounds.common_descent import common_descent
from fljax.server.min_norm import min_norm_weights
from tests import oracle
from tests.algorithms.conftest import federation, model  # noqa: F401
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, reference, run  # noqa: F401

STEP, ROWS = 0.7, 6


def shortest(x, least, most):
    """SLSQP's weights of the rows of ``x``."""
    product = x @ x.T
    sums_to_one = {"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(len(x))}
    return minimize(
        lambda a: a @ product @ a,
        (least + most) / (least + most).sum(),
        method="SLSQP",
        jac=lambda a: 2 * product @ a,
        bounds=list(zip(least, most, strict=True)),
        constraints=sums_to_one,
        options={"ftol": 1e-15, "maxiter": 1000},
    ).x


def factors(updates, weight, epsilon):
    """What the server of FedMGDA+ multiplies each update by."""
    norm, p = np.linalg.norm(updates, axis=1), weight / weight.sum()
    return STEP * shortest(updates / norm[:, None], np.maximum(p - epsilon, 0), np.minimum(p + epsilon, 1)) / norm


@jax.jit
def combined(epsilon, shared, received, weight):
    return common_descent(SimpleNamespace(mgda_epsilon=epsilon, mgda_step=STEP), shared, received, weight)


@pytest.fixture
def models():
    """(the server's model, the received ones): unequal lengths and directions, and running statistics beside them."""
    rng = np.random.default_rng(0)
    shared = {"a": np.float32(rng.normal(size=(2, 3))), "batch_stats": {"a": np.ones(3, np.float32)}}
    moves = np.float32(rng.normal(size=(ROWS, 2, 3)) + 0.5) * np.float32([0.01, 1, 2, 1, 5, 1]).reshape(-1, 1, 1)
    statistics = np.arange(ROWS, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    return shared, {"a": shared["a"] + moves, "batch_stats": {"a": statistics}}


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2, 1.0])
def test_a_step_equals_scipys_and_who_does_not_count_never_matters(models, epsilon):
    shared, received = models
    weight = np.float32([1, 2, 0, 3, 1, 2])
    received = jax.tree.map(np.copy, received)
    for leaf in jax.tree.leaves(received):
        leaf[2] = np.nan
    received["a"][3] = shared["a"]  # has not moved
    received["a"][0] = 1e25  # its square is no float32
    actual = combined(np.float32(epsilon), shared, received, weight)
    counts = np.array([1, 4, 5])
    updates = np.float64(received["a"][counts] - shared["a"]).reshape(3, -1)
    expected = factors(updates, weight[counts], epsilon) @ updates
    np.testing.assert_allclose(np.ravel(actual["a"] - shared["a"]), expected, atol=1e-4)
    if epsilon == 0:
        mean = np.average(received["batch_stats"]["a"][counts], axis=0, weights=weight[counts])
        np.testing.assert_allclose(actual["batch_stats"]["a"], mean, rtol=1e-5)


def test_free_weights_lower_every_loss(models):
    """To first order: the step's product with each direction is at least its squared length, divided by eta."""
    shared, received = models
    step, mean = (
        np.ravel(combined(np.float32(epsilon), shared, received, np.ones(ROWS, np.float32))["a"] - shared["a"])
        for epsilon in (1.0, 0.0)
    )
    updates = (received["a"] - shared["a"]).reshape(ROWS, -1)
    directions = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    assert (directions @ step).min() >= step @ step / STEP - 1e-5
    assert step @ step > 0.01
    assert (directions @ mean).min() < mean @ mean / STEP - 0.1


def test_one_participant_and_two_and_none(models):
    shared, received = models
    unit = lambda i: np.ravel(received["a"][i] - shared["a"]) / np.linalg.norm(received["a"][i] - shared["a"])  # noqa: E731
    weights = np.eye(ROWS, dtype=np.float32)
    for weight, expected in (
        (weights[1], STEP * unit(1)),
        (weights[1] + 3 * weights[4], STEP * (unit(1) + unit(4)) / 2),  # in the middle the chord is nearest to 0
        (np.zeros(ROWS, np.float32), np.zeros(6)),
    ):
        actual = combined(np.float32(1), shared, received, weight)
        np.testing.assert_allclose(np.ravel(actual["a"] - shared["a"]), expected, atol=1e-5)
    chex.assert_trees_all_equal(actual, shared)
    still = combined(np.float32(1), shared, jax.tree.map(lambda leaf: np.stack([leaf] * ROWS), shared), weights.sum(0))
    chex.assert_trees_all_equal(still, shared)


@pytest.mark.parametrize(("n", "d", "room"), [(5, 3, 0.1), (5, 3, 1.0), (5, 40, 0.02)])
def test_weights_between_bounds_are_scipys(n, d, room):
    rng = np.random.default_rng(d)
    x, middle = rng.normal(size=(n, d)) * rng.uniform(0.2, 2, (n, 1)), rng.dirichlet(np.ones(n))
    least, most = np.maximum(middle - room, 0), np.minimum(middle + rng.uniform(0.5, 1, n) * room, 1)
    weights = min_norm_weights(*map(np.float32, (x @ x.T, least, most)))
    np.testing.assert_allclose(weights, shortest(x, least, most), atol=2e-3)
    np.testing.assert_allclose(weights.sum(), 1, atol=1e-6)


def test_weights_inside_their_bounds_have_the_derivatives_of_the_closed_form():
    """There ``a = G^-1 1 / 1' G^-1 1``, so that ``G a`` is the same for all; a fourth vector may have no weight."""
    x = np.random.default_rng(1).normal(size=(3, 8))
    product, change, most = x @ x.T, np.diag([1.0, -0.5, 0.2]), np.float32([1, 1, 1, 0])
    weights, derivative = (
        np.asarray(result)[:3]
        for result in jax.jvp(
            lambda product: min_norm_weights(product, 0 * most, most, 1e-7),
            (np.float32(np.pad(product, (0, 1))),),
            (np.float32(np.pad(change, (0, 1))),),
        )
    )
    inverse, ones = np.linalg.inv(product), np.ones(3)
    expected = inverse @ ones / (ones @ inverse @ ones)
    assert expected.min() > 0.1
    free = -inverse @ change @ expected
    np.testing.assert_allclose(weights, expected, atol=1e-4)
    np.testing.assert_allclose(derivative, free - free.sum() * expected, atol=1e-3)


def test_bounds_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match=r"least has shape \(2,\)"):
        min_norm_weights(np.eye(3, dtype=np.float32), np.zeros(2, np.float32), np.ones(3, np.float32))


def test_rounds_in_numpy(key, model, federation, reference):  # noqa: F811
    """FedAvg with the brick, over three rounds from which some drop out."""
    theta = reference.start
    for cohort in reference.rounds():
        sent = [reference.train(theta, i, k) for i, k, _ in cohort]
        rows = np.stack([np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(w)]) for w in (theta, *sent)])
        c = factors(rows[1:] - rows[0], np.array([size for *_, size in cohort]), 0.1)
        theta = oracle.combine(
            lambda t, *w, c=c: t + sum(f * (w_i - t) for f, w_i in zip(c, w, strict=True)), theta, *sent
        )
    method = fljax.compose("fedavg+mgda")
    hyper = method.Hyper(lr=LR, momentum=MOMENTUM, mgda_epsilon=0.1, mgda_step=STEP)
    deployed, _ = run(method(model, WORK), hyper, federation, key)
    chex.assert_trees_all_close(jax.tree.map(lambda leaf: leaf[0], deployed), theta, rtol=1e-3, atol=1e-4)
