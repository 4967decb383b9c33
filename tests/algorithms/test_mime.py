"""Mime against NumPy in float64, and what it is in the limit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax
from fljax import tree
from fljax.algorithms.mime import centred
from fljax.rounds import Sampling
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import simulate
from tests.algorithms.test_oracles import LR, WORK, assert_models, reference, run  # noqa: F401
from tests.oracle import examples_of
from tests.slow import slow_rows

BETA, STEP = 0.8, 0.7


@pytest.mark.parametrize(("variant", "weighting"), [("mime", "uniform"), *slow_rows(("lite", "size"))])
def test_mime_in_numpy(variant, weighting, key, model, federation, reference):  # noqa: F811
    """Momentum by hand: m stays while clients train, and its update is that of the mean full gradient."""
    theta = reference.start
    moment = oracle.combine(np.zeros_like, theta)
    for cohort in reference.rounds():
        sizes = [size if weighting == "size" else 1 for *_, size in cohort]
        full = [oracle.gradient(theta, *examples_of(federation.train, i)) for i, *_ in cohort]
        c, sent = oracle.average(full, sizes), []
        for i, client_key, _ in cohort:
            w = theta
            for x, y in reference.batches(i, client_key):
                g = oracle.gradient(w, x, y)
                if variant == "mime":
                    g = oracle.combine(lambda g, at_theta, c: g - at_theta + c, g, oracle.gradient(theta, x, y), c)
                w = oracle.combine(lambda w, g, m: w - LR * (g + BETA * m), w, g, moment)
            sent.append(w)
        goal = oracle.average(sent, sizes)
        theta = oracle.combine(lambda t, goal: t + STEP * (goal - t), theta, goal)
        moment = oracle.combine(lambda m, c: BETA * m + c, moment, c)
    hyper = fljax.mime.Hyper(lr=LR, momentum=BETA, step=STEP)
    deployed, state = run(fljax.mime(model, WORK, variant=variant, weighting=weighting), hyper, federation, key)
    assert_models(deployed, [theta] * 8)
    n = tree.size(state.server.shared)
    _, metrics = simulate(fljax.mime(model, WORK, variant=variant, weighting=weighting), hyper, federation, key, 1)
    received = 3 * n if variant == "mime" else 2 * n  # the model, its moment, and c
    assert (metrics["uplink"][0, 0], metrics["downlink"][0, 0]) == (2 * n, received)
    (kept,) = (part.trace for part in jax.tree.leaves(state.server.moments, is_leaf=_is_trace) if _is_trace(part))
    chex.assert_trees_all_close(kept, moment, rtol=1e-4, atol=1e-5)


def _is_trace(part):
    return isinstance(part, optax.TraceState)


def test_both_gradients_of_a_step_draw_alike():
    """At theta the step is by c, whatever dropout or augmentation draws."""
    noisy = lambda params, batch, key: (params["w"] @ jax.random.normal(key, (3,)), params)  # noqa: E731
    theta, c = {"w": jnp.ones(3)}, {"w": jnp.arange(3.0)}
    step = jax.jit(jax.grad(lambda w, key: centred(noisy)(w, None, key, theta, c)[0]))
    np.testing.assert_allclose(step(theta, jax.random.key(3))["w"], c["w"], atol=1e-6)


@pytest.mark.slow
def test_a_round_of_nobody_changes_neither_the_model_nor_the_moments(key, model, federation):
    """Otherwise momentum would fade."""
    algorithm, hyper = fljax.mime(model, WORK), fljax.mime.Hyper(lr=LR, momentum=BETA, step=STEP)
    nobody = Sampling(
        lambda key, round, size, n: (jnp.arange(n), jnp.arange(n) < jnp.where(round < 1, n, 0)), lambda n: n
    )
    once, _ = simulate(algorithm, hyper, federation, key, 1, sampling=nobody)
    twice, _ = simulate(algorithm, hyper, federation, key, 2, sampling=nobody)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(once.server.moments))
    chex.assert_trees_all_equal(twice, once)


def test_without_moments_the_lite_one_is_fedavg(key, model, federation, reference):  # noqa: F811
    theta = reference.start
    for cohort in reference.rounds():
        sent = [oracle.local_sgd(theta, reference.batches(i, client_key), LR) for i, client_key, _ in cohort]
        theta = oracle.average(sent, [size for *_, size in cohort])
    hyper = fljax.mime.Hyper(lr=LR, momentum=0.0, step=1.0)  # the program from above
    assert_models(run(fljax.mime(model, WORK, variant="lite"), hyper, federation, key)[0], [theta] * 8)


def test_one_step_of_everyone_is_a_step_of_the_optimiser_on_all_examples(key, model, federation):
    """With Adam too: full batches and one epoch make central training of both variants."""
    decay = 0.3  # a term of the loss
    work, hyper = Work(1, None, optimizer="adam"), fljax.mime.Hyper(lr=0.02, weight_decay=decay)
    state, metrics = simulate(fljax.mime(model, work), hyper, federation, key, 3)
    assert metrics["downlink"][0, 0] == 2 * metrics["uplink"][0, 0]  # theta, c and two moments; the model and c
    params = simulate(fljax.mime(model, work), hyper.replace(lr=1e-30), federation, key, 1)[0].server.shared
    theta = oracle.as_float64(params)
    data = [examples_of(federation.train, i) for i in range(8)]
    x, y = (np.concatenate(part) for part in zip(*data, strict=True))
    m = v = oracle.combine(np.zeros_like, theta)
    for t in range(1, 4):
        g = oracle.combine(lambda g, w: g + decay * w, oracle.gradient(theta, x, y), theta)
        m = oracle.combine(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = oracle.combine(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)
        theta = oracle.combine(
            lambda w, m, v, t=t: w - 0.02 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8), theta, m, v
        )
    chex.assert_trees_all_close(state.server.shared, theta, rtol=1e-4, atol=1e-4)
