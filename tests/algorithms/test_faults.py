"""Degenerate clients, in every method: metrics are finite or ``ok`` is False, and nobody else is moved.

All faults that leave a federation's shapes alone share one compiled program a method.
"""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.data.synthetic import linear_groups
from fljax.rounds.named_samplings import uniform
from fljax.run.one_round import as_traced, split_key
from fljax.run.train import run_chunk
from fljax.types import Examples
from tests.algorithms.round_by_round import drawn_cohort, jitted
from tests.algorithms.table import CASES
from tests.algorithms.test_contract import FIRST, jitted_init, of

QUICK = ("fedavg",)
EACH = of(QUICK, FIRST)
BAD, ROUNDS = 2, 5


@cache
def algorithm_and_hyper(name, model, work):
    """A method, made once: its tests share its compiled program."""
    return CASES[name].make(model, work), as_traced(CASES[name].hyper)


@pytest.fixture
def case(name, model, work):
    return algorithm_and_hyper(name, model, work)


def rows_of(federation, client):
    return np.asarray(federation.train.index[client, : int(federation.train.size[client])])


def with_pixels(value):
    """The training examples of one client all have this value."""

    def fault(federation):
        pool = federation.train.pool
        x = pool.x.at[rows_of(federation, BAD)].set(value)
        return federation._replace(train=federation.train._replace(pool=pool._replace(x=x)))

    return fault


def with_labels(federation):
    """One client has one class."""
    pool = federation.train.pool
    y = pool.y.at[rows_of(federation, BAD)].set(0)
    return federation._replace(train=federation.train._replace(pool=pool._replace(y=y)))


def with_sizes(clients, size):
    def fault(federation):
        return federation._replace(train=federation.train._replace(size=federation.train.size.at[clients].set(size)))

    return fault


def constant(federation):
    pool = federation.train.pool
    train = federation.train._replace(pool=Examples(jnp.ones_like(pool.x), pool.y))
    return federation._replace(train=train, test=federation.test._replace(pool=train.pool))


def identical(federation):
    """All clients have the examples of the first."""
    train = federation.train
    same_rows = train._replace(index=jnp.broadcast_to(train.index[:1], train.index.shape))
    return federation._replace(train=same_rows._replace(size=jnp.broadcast_to(train.size[:1], train.size.shape)))


ALL, MILLION = slice(None), "a learning rate of a million"
FAULTS = {
    "NaN": with_pixels(jnp.nan),
    "infinite": with_pixels(jnp.inf),
    "huge": with_pixels(1e30),
    "zero": with_pixels(0.0),
    "constant": constant,
    "one class": with_labels,
    "one example": with_sizes(BAD, 1),
    "one example each": with_sizes(ALL, 1),
    "no example": with_sizes(BAD, 0),
    "no example at all": with_sizes(ALL, 0),
    "identical": identical,
    "most drop out": lambda federation: federation,
    "all drop out": lambda federation: federation,
    MILLION: lambda federation: federation,
}

DROPOUT = {"most drop out": 0.8, "all drop out": 0.999999}


def run(case, federation, key, dropout=0.0, cohort=None, start=None, **numbers):
    """(state, metrics) of a few rounds, on the host, from the method's first state or from ``start``."""
    algorithm, hyper = case
    own_numbers = {name: jnp.float32(value) for name, value in numbers.items() if hasattr(hyper, name)}
    hyper = type(hyper)(**({name: getattr(hyper, name) for name in hyper.__dataclass_fields__} | own_numbers))
    n = federation.train.n_clients
    draw = uniform(1.0).of(n) if cohort is None else cohort
    state = start or jitted_init(algorithm)(split_key(key).init, hyper, federation.train)
    arguments = (hyper, federation, key, jnp.float32(dropout), jnp.int32(1), jnp.int32(ROUNDS), state)
    state, metrics = run_chunk(algorithm, draw, ROUNDS, *arguments, jnp.int32(0), jnp.int32(ROUNDS))
    return jax.device_get(state), jax.device_get(metrics)


TESTED = ("client_", "test_")
"""Of metrics of tests: a model may fail them by the last step of a round, and the next round is then not ``ok``."""


def faults_of(metrics, fine_tuned=False):
    """What is not finite in rounds whose active participants are all ``ok``; ``cross`` is +inf where nothing is cut.

    The tests of the fifth round, which no other follows, are not judged; nor are the losses of models that were
    ``fine_tuned`` for a test alone, of which no round says whether they left float32's range.
    """
    counted = metrics["active"] & metrics["ok"]
    trained = (metrics["ok"] | ~metrics["active"]).all(axis=1)
    next_trained = trained & np.append(trained[1:], False)
    messages = []
    for name, value in metrics.items():
        if fine_tuned and name in ("client_loss", "test_loss"):
            continue
        is_judged = next_trained if name.startswith(TESTED) else trained
        is_finite = np.isfinite(value) if value.dtype.kind == "f" else np.ones(value.shape, bool)
        if name == "cross":
            is_finite = is_finite | np.isposinf(value)
        if value.ndim == 2 and not name.startswith("client_"):
            is_finite = is_finite | ~counted  # a participant that dropped out or was not finite says nothing
        is_finite = is_finite.reshape(len(value), -1).all(axis=1)
        messages += [f"{name} in round {i}: {value[i]}" for i in np.flatnonzero(~is_finite & is_judged)]
    return messages


@EACH
def test_metrics_are_finite_or_not_ok(key, name, case, federation):
    messages = []
    for fault, change in FAULTS.items():
        numbers = {"lr": 1e6} if fault == MILLION else {}
        _, metrics = run(case, change(federation), key, DROPOUT.get(fault, 0.0), **numbers)
        fine_tuned = fault == MILLION and "ft_epochs" in dict(case[0].about.choices)
        messages += [f"{fault}: {message}" for message in faults_of(metrics, fine_tuned)]
        if fault in ("NaN", "infinite"):
            np.testing.assert_array_equal(metrics["ok"], metrics["ids"] != BAD, err_msg=fault)
    assert not messages, f"{name}:\n" + "\n".join(messages)


@EACH
def test_a_client_that_is_not_finite_moves_nobody(key, case, federation):
    (state_nan, metrics_nan), (state_infinite, metrics_infinite) = (
        run(case, FAULTS[fault](federation), key) for fault in ("NaN", "infinite")
    )
    is_other = np.arange(8) != BAD
    for a, b in zip(jax.tree.leaves(state_nan.server), jax.tree.leaves(state_infinite.server), strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_array_equal(a, b)
    for name in (name for name in metrics_nan if name.startswith("client_")):
        np.testing.assert_array_equal(metrics_nan[name][:, is_other], metrics_infinite[name][:, is_other], err_msg=name)


GONE = jax.random.key(77), 0.5
"""A key and a rate of dropout with which client BAD is out of all rounds, and everybody else is in one of them."""


@of(QUICK, [name for name in FIRST if name != "ccvr"])  # which asks all clients before a test
def test_what_one_that_drops_out_has_moves_nobody(case, federation):
    """Of a client that drops out from some round on: with other examples from then on nothing else differs."""
    is_other, start = np.arange(8) != BAD, run(case, federation, GONE[0])[0]
    state, metrics = run(case, federation, *GONE, start=start)
    assert BAD in metrics["ids"]
    assert set(metrics["ids"][metrics["active"]].tolist()) == set(np.flatnonzero(is_other).tolist())
    for fault in ("zero", "one class", "NaN"):
        faulty_state, faulty_metrics = run(case, FAULTS[fault](federation), *GONE, start=start)
        chex.assert_trees_all_equal(faulty_state.server, state.server)
        chex.assert_trees_all_equal(
            *(jax.tree.map(lambda leaf: leaf[is_other], some_state.clients) for some_state in (faulty_state, state))
        )
        for name in (name for name in metrics if name.startswith("client_")):
            np.testing.assert_array_equal(faulty_metrics[name][:, is_other], metrics[name][:, is_other], err_msg=name)


@of(("feddyn",), [name for name in FIRST if name != "flexcfl"])
def test_a_round_of_nobody_leaves_what_is_deployed(key, name, case, federation):
    """As Poisson sampling has them; the round before was of everyone. FlexCFL's groups draw each other in any round."""
    algorithm, hyper = case
    cohort = drawn_cohort(federation, key, 0, 1.0, None)
    round = jitted(algorithm.round)
    state = round(key, hyper, jitted_init(algorithm)(key, hyper, federation.train), cohort)[0]
    empty_cohort = cohort._replace(round=jnp.int32(1), active=jnp.zeros(8, bool))
    next_state = round(key, hyper, state, empty_cohort)[0]._replace(
        clients=state.clients
    )  # who is absent keeps its own
    deployed, next_deployed = (
        jitted(algorithm.deploy)(key, hyper, some_state, federation.train) for some_state in (state, next_state)
    )
    chex.assert_trees_all_close(tree.stacked(deployed), tree.stacked(next_deployed), rtol=1e-5, atol=1e-6)


@of((), FIRST)
@pytest.mark.parametrize("n_clients", [1, 2])
def test_one_client_and_fewer_clients_than_clusters(key, name, model, work, federation, n_clients):
    small_federation = linear_groups(n_clients, 1, examples=24)._replace(public=federation.public)
    try:
        _, metrics = run(algorithm_and_hyper(name, model, work), small_federation, key)
    except ValueError as error:  # more clusters than clients may be refused
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert not faults_of(metrics), f"{name}:\n" + "\n".join(faults_of(metrics))


@of((), FIRST)
def test_a_cohort_of_one(key, name, case, federation):
    _, metrics = run(case, federation, key, cohort=1)
    assert not faults_of(metrics), f"{name}:\n" + "\n".join(faults_of(metrics))


HOLDS_WHAT_IS_SENT = ("fedtsdp", "dcpfl", "fedcps", "fedsoft", "dpsgd")
"""A client of these holds what it received last, from the server or from its neighbours."""


@pytest.mark.slow
@of(("pfedme",), [name for name in (*FIRST, "gpfl-trained") if name not in HOLDS_WHAT_IS_SENT])
def test_a_client_whose_training_never_ends_well_keeps_what_it_had(key, case, federation):
    algorithm, hyper = case
    faulty_federation = FAULTS["NaN"](federation)
    start = jax.device_get(jitted_init(algorithm)(split_key(key).init, hyper, faulty_federation.train))
    state, _ = run(case, faulty_federation, key)
    for (path, next_leaf), leaf in zip(
        jax.tree_util.tree_leaves_with_path(state.clients), jax.tree.leaves(start.clients), strict=True
    ):
        np.testing.assert_array_equal(next_leaf[BAD], leaf[BAD], err_msg=jax.tree_util.keystr(path))
