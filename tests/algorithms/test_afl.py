"""AFL: rounds in NumPy, its limits, the saddle point of a game with a known solution, and what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import fljax
from fljax.algorithms.afl import afl, by_domain, risen
from fljax.rounds.cohort import everyone
from fljax.types import ClientData, Examples, Federation, State, Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.test_drift import DIMENSION, quadratic
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, assert_models, reference, run  # noqa: F401
from tests.oracle import rows_of
from tests.slow import slow, slow_rows

GROUPS = (0, 2, 0, 1, 1, 0, 2, 0)


def projected(point):
    """The nearest point of the simplex, by sorting: Wang and Carreira-Perpinan, arXiv 1309.1541, algorithm 1."""
    descending = np.sort(point)[::-1]
    excess = (np.cumsum(descending) - 1) / np.arange(1, len(point) + 1)
    return np.maximum(point - excess[descending > excess][-1], 0)


def exponentiated(lam, rise):
    return lam * np.exp(rise) / np.sum(lam * np.exp(rise))


@pytest.mark.parametrize(
    ("ascent", "domain"),
    [("projected", None), ("exponentiated", GROUPS), *slow_rows(("projected", GROUPS), ("exponentiated", None))],
)
def test_afl_in_numpy(key, model, federation, reference, ascent, domain):  # noqa: F811
    theta, data, gamma = reference.start, federation.train, 0.25
    of = np.arange(8) if domain is None else np.array(domain)
    lam = np.full(of.max() + 1, 1 / (of.max() + 1))
    n_absent = 0
    for cohort in reference.rounds():
        ids, size = [i for i, *_ in cohort], {i: n for i, _, n in cohort}
        losses = np.zeros_like(lam)
        models, weights = [], []
        for d in range(len(lam)):
            members = [i for i in ids if of[i] == d]
            n_absent += not members
            rows = np.concatenate([rows_of(data, i) for i in members]) if members else []
            losses[d] = oracle.training_loss(theta, reference.x[rows], reference.y[rows]) if members else 0
            for i, k, _ in (one for one in cohort if of[one[0]] == d):
                models.append(reference.train(theta, i, k))
                weights.append(lam[d] * size[i] / sum(size[j] for j in members))
        theta = oracle.average(models, weights)
        lam = projected(lam + gamma * losses) if ascent == "projected" else exponentiated(lam, gamma * losses)
    assert n_absent > 0  # the premises: some domains have no participant, and lambda is no longer equal
    assert np.ptp(lam) > 0.05
    algorithm, hyper = (
        afl(model, WORK, ascent=ascent, domain=domain),
        afl.Hyper(lr=LR, momentum=MOMENTUM, lambda_lr=gamma),
    )
    deployed, state = run(algorithm, hyper, federation, key)
    np.testing.assert_allclose(state.server.lam, lam, atol=1e-5)
    assert_models(deployed, [theta] * 8)


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["uniform", "size"])
def test_without_a_step_of_lambda_it_is_fedavg(key, model, federation, weighting):
    def final(method, **numbers):
        algorithm = method(model, WORK, weighting=weighting)
        return simulate(algorithm, method.Hyper(lr=LR, **numbers), federation, key, 3, participation=0.5)[0].server

    agnostic = final(afl, lambda_lr=0.0)
    chex.assert_trees_all_close(agnostic.own, final(fljax.fedavg), rtol=1e-5, atol=1e-6)
    n = np.asarray(federation.train.size)
    np.testing.assert_allclose(agnostic.lam, np.full(8, 1 / 8) if weighting == "uniform" else n / n.sum(), rtol=1e-6)


@pytest.mark.slow
def test_domains_weighted_by_their_examples_are_fedavg_if_all_participate(key, model, federation):
    agnostic = afl(model, WORK, domain=GROUPS, weighting="size")
    server = simulate(agnostic, afl.Hyper(lr=LR, lambda_lr=0.0), federation, key, 2)[0].server
    expected = simulate(fljax.fedavg(model, WORK), fljax.fedavg.Hyper(lr=LR), federation, key, 2)[0].server
    chex.assert_trees_all_close(server.own, expected, rtol=1e-5, atol=1e-6)


def game():
    """Three least-squares clients: two in conflict, and one whose loss is the smaller one wherever they are equal."""
    rng, n = np.random.default_rng(3), 12
    optimum = np.array([[1.0, -1.0, 0.5], [-1.0, 1.5, 0.0], [0.0, 0.2, 0.2]])
    x = rng.normal(size=(3, n, DIMENSION)) * np.array([1.6, 0.7, 0.5])[:, None, None]
    y = np.einsum("cnd,cd->cn", x, optimum) + np.array([0.3, 0.1, 0.1])[:, None] * rng.normal(size=(3, n))
    pool = Examples(jnp.asarray(x.reshape(-1, 1, DIMENSION, 1), jnp.float32), jnp.asarray(y.ravel(), jnp.float32))
    data = ClientData(pool, jnp.arange(3 * n, dtype=jnp.int32).reshape(3, n), jnp.full(3, n, jnp.int32))
    return Federation(data, None, data, None, None), x, y


def saddle_point(x, y):
    """w and lambda of ``min_w max_i F_i(w)``: the least t above all losses, and the multipliers of its constraints."""

    def losses(w):
        return np.square(x @ w - y).mean(axis=1)

    def gradients(w):
        return 2 * np.einsum("cn,cnd->cd", x @ w - y, x) / y.shape[1]

    above = {
        "type": "ineq",
        "fun": lambda v: v[-1] - losses(v[:-1]),
        "jac": lambda v: np.column_stack([-gradients(v[:-1]), np.ones(3)]),
    }
    options = {"ftol": 1e-15, "maxiter": 500}
    last = np.eye(DIMENSION + 1)[-1]
    v = minimize(lambda v: v[-1], last * 9, method="SLSQP", jac=lambda v: last, constraints=above, options=options).x
    w = v[:-1]
    is_tight = losses(w) > v[-1] - 1e-6
    lam = np.zeros(3)
    equations = np.vstack([gradients(w)[is_tight].T, np.ones(is_tight.sum())])
    lam[is_tight] = np.linalg.lstsq(equations, last, rcond=None)[0]
    np.testing.assert_allclose(lam @ gradients(w), 0, atol=1e-6)
    return w, lam


@pytest.mark.slow
@pytest.mark.parametrize("ascent", ["projected", *slow("exponentiated")])
def test_lambda_and_the_model_go_to_the_saddle_point_of_a_game(key, ascent):
    federation, x, y = game()
    w, lam = saddle_point(x, y)
    assert lam[2] == 0  # the premises: a mixture of two, neither of which is the middle
    assert 0.1 < lam[0] < 0.4
    model = fljax.regression(quadratic())  # mean squared errors
    algorithm = afl(model, Work(1, None), ascent=ascent)
    state, metrics = fljax.simulate(algorithm, afl.Hyper(lr=0.15, lambda_lr=0.05), federation, key, 1500)
    np.testing.assert_allclose(state.server.own["fc"]["w"], w, atol=1e-5)
    np.testing.assert_allclose(state.server.lam, lam, atol=1e-5)
    np.testing.assert_array_equal(metrics["lam"][-1], state.server.lam)


def test_exponentiated_weights_as_fedjax():
    """The numbers of ``test_update_domain_weights`` in ``fedjax/algorithms/agnostic_fed_avg_test.py``."""
    lam, losses = jnp.array([0.1, 0.2, 0.3, 0.4]), jnp.array([10.0, 0.0, 5.0, 0.0])
    expected = [0.198931, 0.14636526, 0.36197326, 0.2927305]
    np.testing.assert_allclose(risen("exponentiated", lam, 0.1 * losses), expected, rtol=1e-6)


@pytest.mark.parametrize("ascent", ["projected", "exponentiated"])
def test_lambda_stays_on_the_simplex_whatever_the_losses(ascent):
    lam = jnp.array([0.5, 0.0, 0.5])
    for rise in ([1e30, 0.0, 0.0], [np.inf, 1.0, 0.0], [np.nan, 5e3, 6e3], [3e38, 0.0, 3e38], [0.0, 0.0, 0.0]):
        new = np.asarray(jax.jit(risen, static_argnums=0)(ascent, lam, np.float32(rise)))
        np.testing.assert_allclose(new.sum(), 1, rtol=1e-6)
        assert new[np.nanargmax(rise)] >= 0.5
    np.testing.assert_allclose(new, lam, atol=1e-7)


@pytest.mark.slow
def test_participants_whose_lambda_is_small_or_0(key, model, federation):
    tiny, n = jnp.array([1.0, 1e-36, 2e-36]), jnp.array([0.0, 5.0, 3.0])
    weight, losses = jax.jit(by_domain)(tiny, jnp.arange(3), n, jnp.array([0.0, 0.7, 0.9]))
    np.testing.assert_allclose(weight, [0, 0.5, 1], rtol=1e-6)
    np.testing.assert_allclose(losses, [0, 0.7, 0.9], rtol=1e-6)
    # Client 0, which has all of lambda, is absent: the model stays, and lambda moves to the others.
    algorithm, hyper = afl(model, WORK), afl.Hyper(lr=LR, lambda_lr=0.1)
    first = jitted(algorithm.init)(key, hyper, federation.train)
    cohort = everyone(key, jnp.int32(0), federation.train)
    state = State(first.server._replace(lam=jax.nn.one_hot(0, 8)), ())
    new, _ = jitted(algorithm.round)(key, hyper, state, cohort._replace(active=cohort.ids > 0))
    chex.assert_trees_all_equal(new.server.own, first.server.own)
    assert 0 < new.server.lam[0] < 1
    assert (new.server.lam[1:] > 0).any()


def test_what_is_refused(key, model, federation):
    for domain in (3, (0, 1, 3), (0, 1, -1), (0.5, 0, 1), ("a", "b")):
        with pytest.raises(ValueError, match=r"domain=.* is not a tuple of numbers from 0, none left out"):
            afl(model, WORK, domain=domain)
    with pytest.raises(ValueError, match="domain has 3 entries, but the data has 8 clients; give one per client"):
        fljax.simulate(afl(model, WORK, domain=(0, 1, 0)), afl.Hyper(), federation, key, 1)
    with pytest.raises(ValueError, match="ascent='linear' is unknown; choose one of 'projected', 'exponentiated'"):
        afl(model, WORK, ascent="linear")
