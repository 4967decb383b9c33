"""What methods with a way of their own make of new clients, against NumPy: three rounds of one full batch each."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.data.synthetic import linear_groups
from fljax.rounds.joining import train_new_clients
from fljax.rounds.local import local_of
from fljax.run.newcomers import new_models
from fljax.run.one_round import as_traced, split_key
from fljax.types import State, Work
from tests import oracle
from tests.algorithms.round_by_round import simulate
from tests.algorithms.test_oracles import WORK, Reference, assert_models
from tests.slow import slow

LR, ROUNDS = 0.3, 3


def trained_by_full_batches(w, x, y, n=ROUNDS, **options):
    return oracle.local_sgd(w, [(x, y)] * n, LR, **options)


def float64_row(stacked, i):
    return jax.tree.map(lambda leaf: np.float64(leaf[i]), stacked)


def of_least_loss(models, label, x, y):
    """Among those that somebody has."""
    clusters = sorted(set(np.asarray(label).tolist()))
    assert len(clusters) > 1
    return min((float64_row(models, k) for k in clusters), key=lambda w: oracle.training_loss(w, x, y))


def of_fedsoft(server, clients, x, y):
    """Held near the mean of the centers by its importances, where it begins."""
    centers = [float64_row(server, s) for s in range(2)]
    best = np.argmin([oracle.losses(center, x, y) for center in centers], axis=0)
    share = np.array([(best == s).mean() or 1e-4 for s in range(2)])
    anchor = oracle.average(centers, list(share))
    return trained_by_full_batches(anchor, x, y, mu=0.5)


def of_clusterfl(server, clients, x, y):
    """Near a cluster's mean, which does not move: 2 alpha w - 2 beta mean."""
    mean = w = of_least_loss(server.means, server.label, x, y)
    for _ in range(ROUNDS):
        g = oracle.combine(lambda g, w, m: g + 0.4 * w - 0.2 * m, oracle.gradient(w, x, y), w, mean)
        w = oracle.combine(lambda w, g: w - LR * g, w, g)
    return w


def of_fedtsdp(server, clients, x, y):
    """The shared layer is a center's, one is its own."""
    center = w = of_least_loss(server.centers, server.label, x, y)
    for _ in range(ROUNDS):
        w = {"fc1": center["fc1"], "fc2": trained_by_full_batches(w, x, y, 1)["fc2"]}
    return w


def of_fedpac(server, clients, x, y):
    """The server's body under everyone's mean head, fitted for two epochs a round."""
    head = jax.tree.map(lambda leaf: np.float64(leaf).mean(0), clients)
    body = jax.tree.map(np.float64, server["body"])
    return trained_by_full_batches(body | head, x, y, 2 * ROUNDS, moving=("fc2",))


def of_apple(server, clients, x, y):
    """Alone from the mixture of cores by examples."""
    cores = [float64_row(server["core"], i) for i in range(8)]
    return trained_by_full_batches(oracle.average(cores, list(np.float64(server["p0"]))), x, y)


def of_ditto(server, clients, x, y):
    """Held near the server's model, which does not move, from there."""
    return trained_by_full_batches(jax.tree.map(np.float64, server), x, y, mu=0.7)


def of_fedclust(server, clients, x, y):
    """The cluster whose mean last layer is nearest to that of the model which it trains alone."""
    last = trained_by_full_batches(jax.tree.map(np.float64, server.kept.initial), x, y, 2)["fc2"]
    means, clusters = server.kept.means, sorted(set(np.asarray(server.label).tolist()))
    assert len(clusters) > 1
    return float64_row(server.centers, min(clusters, key=lambda k: l2(float64_row(means, k)["fc2"], last)))


def of_cgpfl(server, clients, x, y):
    """Three steps from the context of least loss, held near it: each round begins there anew."""
    theta = context = of_least_loss(server.centers["global"], server.label, x, y)
    for _ in range(3):
        g = oracle.gradient(theta, x, y)
        theta = oracle.combine(lambda t, g, c: t - 0.1 * (g + 2.0 * (t - c)), theta, g, context)
    return theta


def l2(a, b):
    return sum(np.square(a[name] - b[name]).sum() for name in a)


WAYS = {
    "ditto": (of_ditto, {}, {"lam": 0.7}),
    "fedsoft": (of_fedsoft, {}, {"lam": 0.5}),
    "clusterfl": (of_clusterfl, {}, {"alpha": 0.2, "beta": 0.1}),
    "fedtsdp": (of_fedtsdp, {"public_batch": 10}, {"threshold": -1.0, "psi": 0.75, "eps_outputs": 0.01}),
    "fedpac": (of_fedpac, {"head_epochs": 2}, {}),
    "apple": (of_apple, {}, {}),
    "cgpfl": (of_cgpfl, {"personal_steps": 3}, {"lam": 2.0, "personal_lr": 0.1}),
    "fedclust": (of_fedclust, {"alone_epochs": 2}, {"threshold": 0.3}),
}


@pytest.mark.parametrize(
    "name", ["ditto", *slow("cgpfl", "fedclust", "fedtsdp", "fedsoft", "clusterfl", "fedpac", "apple")]
)
def test_newcomers_in_numpy(key, model, federation, name):
    (expected, choices, numbers), method = WAYS[name], fljax.ALGORITHMS[name]
    algorithm, hyper = method(model, Work(1, 64), **choices), method.Hyper(lr=LR, **numbers)
    state = jax.device_get(simulate(algorithm, hyper, federation, key, 2, participation=0.5)[0])
    data = linear_groups(3, 2, examples=24, seed=1).train
    joined = jax.jit(new_models, static_argnums=0)(algorithm, as_traced(hyper), state, data, key, jnp.int32(ROUNDS))
    rows = [np.asarray(index)[:size] for index, size in zip(data.index, np.asarray(data.size), strict=True)]
    pool = np.asarray(data.pool.x, np.float64), np.asarray(data.pool.y)
    models = tree.split_statistics(tree.stacked(joined))[0]
    assert_models(
        models,
        [expected(state.server, state.clients, *(value[rows_of_client] for value in pool)) for rows_of_client in rows],
    )


def test_newcomers_meet_other_batches_in_every_round_at_rates_that_fall(key, model, federation):
    """Client i draws from the key, the round and i, as participants do."""
    reference, decay = Reference(key, model, federation), 0.5
    train = partial(local_of(WORK, model), as_traced(fljax.fedavg.Hyper(lr=LR, lr_decay=decay)))
    start = tree.broadcast(model.init(split_key(key).init), 8)
    train_newcomers = jax.jit(lambda start, data: train_new_clients(key, start, data, jnp.int32(ROUNDS), train))
    expected = reference.everyone()
    for r in range(ROUNDS):
        round_key = jax.random.fold_in(jax.random.fold_in(key, r), 1)
        for i, w in enumerate(expected):
            batches = reference.batches(i, jax.random.fold_in(round_key, i))
            expected[i] = oracle.local_sgd(w, batches, LR * decay**r)
    assert_models(train_newcomers(start, federation.train), expected)


OWN_PARTS = {
    "apfl": (lambda held: held, lambda server: server),
    "superfed": (lambda held: held, lambda server: server),
    "fedrod": (lambda held: held["personal"], lambda server: server["fc2"]),
    "fedcp": (lambda held: held["fc2"], lambda server: server["global_head"]),
}
"""What a new client holds -> its own part; the server's model -> that part's counterpart."""


@pytest.mark.parametrize("name", ["apfl", *slow("fedrod", "fedcp", "superfed")])
def test_own_parts_of_newcomers_begin_as_those_of_the_server(key, model, federation, name):
    """Which has been trained since, not as before the first round."""
    (own, counterpart), method = OWN_PARTS[name], fljax.ALGORITHMS[name]
    algorithm, hyper = method(model, Work(1, 64)), as_traced(method.Hyper(lr=LR))
    server, clients = jax.device_get(jax.jit(algorithm.init)(split_key(key).init, hyper, federation.train))
    trained = State(jax.tree.map(lambda leaf: leaf + np.float32(1), server), clients)
    join = jax.jit(new_models, static_argnums=0)
    joined = join(algorithm, hyper, trained, federation.train, key, jnp.int32(0))
    for i in range(federation.train.n_clients):
        jax.tree.map(np.testing.assert_array_equal, own(fljax.client_model(joined, i)), counterpart(trained.server))
    if name == "apfl":  # the mixture is the own model alone if alpha starts as 1
        joined = join(algorithm, as_traced(method.Hyper(lr=LR, alpha=1)), trained, federation.train, key, jnp.int32(1))
        start = oracle.as_float64(trained.server)
        examples = [oracle.examples_of(federation.train, i) for i in range(federation.train.n_clients)]
        assert_models(tree.stacked(joined), [trained_by_full_batches(start, x, y, 1) for x, y in examples])
