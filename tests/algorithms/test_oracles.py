"""Methods against plain NumPy in float64, over three rounds on the same batches.

The reference in `tests.oracle` works one client, one batch and one layer at a time; only the cohorts and the order of
the examples are the library's. float32 against float64 over some twenty steps: 1e-5.
"""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedbabu import fedbabu
from fljax.algorithms.fedper import fedper
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fedrep import HEAD_PHASE, fedrep
from fljax.algorithms.fesem import fesem
from fljax.algorithms.hypcluster import hypcluster
from fljax.algorithms.ifca import ifca
from fljax.algorithms.lg_fedavg import lg_fedavg
from fljax.client.minibatches import shuffled
from fljax.run.one_round import split_key
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import drawn_cohort, jitted, simulate
from tests.slow import slow

ROUNDS = 3
PLACES, DROPOUT = 6, 0.3
"""Clients that are drawn for a round, of 8, and how likely each of them drops out: who does must not matter."""
LR, MOMENTUM = 0.2, 0.5
WORK = Work(epochs=2, batch_size=8)
BODY, HEAD = ("fc1",), ("fc2",)
LAYERS = BODY + HEAD


@partial(jax.jit, static_argnums=3)
def epoch_orders(key, index, size, epochs):
    """A client's rows in each epoch's order, the one thing that the reference takes from the library."""
    keys = jax.vmap(lambda key: jax.random.split(key)[0])(jax.random.split(key, epochs))
    return jax.vmap(shuffled, (0, None, None))(keys, index, size)


class Reference:
    """The same start, cohorts and batches as the library's run."""

    def __init__(self, key, model, federation):
        self.key, self.keys, self.data, self.federation = key, split_key(key), federation.train, federation
        self.start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), model.init(self.keys.init))
        self.index, self.size = np.asarray(self.data.index), np.asarray(self.data.size)
        self.x, self.y = np.asarray(self.data.pool.x, np.float64), np.asarray(self.data.pool.y)

    def rounds(self, size=PLACES, dropout=DROPOUT):
        """Each round's participants as (id, key, size): those of ``size`` drawn ones who do not drop out."""
        for round in range(ROUNDS):
            cohort = drawn_cohort(self.federation, self.key, round, size / self.data.n_clients, dropout)
            ids, is_active = np.asarray(cohort.ids).tolist(), np.asarray(cohort.active)
            yield [
                (i, cohort.key[position], float(self.size[i])) for position, i in enumerate(ids) if is_active[position]
            ]

    def batches(self, i, key, epochs=WORK.epochs):
        """Client i's minibatches of (x, y), in the order in which the library meets them."""
        size, batches = int(self.size[i]), []
        for order in np.asarray(epoch_orders(key, self.index[i], size, epochs)):
            for first_row in range(0, size, WORK.batch_size):
                rows = order[first_row : min(first_row + WORK.batch_size, size)]
                batches.append((self.x[rows], self.y[rows]))
        return batches

    def train(self, params, i, key, lr=LR, **options):
        return oracle.local_sgd(params, self.batches(i, key), lr, MOMENTUM, **options)

    def everyone(self):
        return [dict(self.start) for _ in range(self.data.n_clients)]


@pytest.fixture
def reference(key, model, federation):
    return Reference(key, model, federation)


def without_a_class(federation):
    """The federation whose clients have no example of the last of four classes."""
    pool = federation.train.pool
    return federation._replace(train=federation.train._replace(pool=pool._replace(y=jnp.minimum(pool.y, 2))))


def rounds_of(algorithm, hyper, federation, key):
    """(final state, metrics) of the library; what has been run is not compiled again."""
    return simulate(algorithm, hyper, federation, key, ROUNDS, participation=PLACES / 8, dropout=DROPOUT)


def run(algorithm, hyper, federation, key):
    """(deployed models, a row per client; final state) of the library, as NumPy."""
    state, _ = rounds_of(algorithm, hyper, federation, key)
    models = jitted(algorithm.deploy)(split_key(key).deploy, hyper, state, federation.train)
    return jax.tree.map(lambda leaf: np.asarray(leaf[models.row]), models.params), state


def assert_sent(metrics, metric, expected):
    """That participants have sent so many floats: ``expected`` has those of each round by client."""
    floats = [
        {int(i): floats for i, floats, is_active in zip(*round, strict=True) if is_active}
        for round in zip(metrics["ids"], metrics[metric], metrics["active"], strict=True)
    ]
    assert floats == expected


def assert_models(actual, expected):
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *expected)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weighting", ["size", *slow("uniform")])
@pytest.mark.parametrize("mu", [0.4, *slow(0.0)])
def test_fedavg_and_fedprox(key, model, federation, reference, weighting, mu):
    theta = reference.start
    assert min(map(len, reference.rounds())) < PLACES  # the premise of all: some drop out
    for cohort in reference.rounds():
        sent = [reference.train(theta, i, k, mu=mu) for i, k, _ in cohort]
        theta = oracle.average(sent, [size if weighting == "size" else 1.0 for *_, size in cohort])
    if mu:
        algorithm, hyper = (
            fedprox(model, WORK, weighting=weighting),
            fljax.fedprox.Hyper(lr=LR, mu=mu, momentum=MOMENTUM),
        )
    else:
        algorithm, hyper = fedavg(model, WORK, weighting=weighting), fljax.fedavg.Hyper(lr=LR, momentum=MOMENTUM)
    assert_models(run(algorithm, hyper, federation, key)[0], [theta] * 8)


def test_ditto(key, model, federation, reference):
    theta, personal = reference.start, reference.everyone()
    for cohort in reference.rounds():
        for i, k, _ in cohort:
            personal[i] = reference.train(personal[i], i, k, mu=0.7, anchor=theta)
        theta = oracle.average([reference.train(theta, i, k) for i, k, _ in cohort], [size for *_, size in cohort])
    models, state = run(ditto(model, WORK), fljax.ditto.Hyper(lr=LR, lam=0.7, momentum=MOMENTUM), federation, key)
    assert_models(models, personal)
    chex.assert_trees_all_close(state.server, theta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["fedper", "lg_fedavg"])
def test_fedper_and_lg_fedavg(key, model, federation, reference, name):
    shared_layers = BODY if name == "fedper" else HEAD
    shared, models = reference.start, reference.everyone()
    for cohort in reference.rounds():
        for i, k, _ in cohort:
            models[i] = reference.train(models[i] | {n: shared[n] for n in shared_layers}, i, k)
        weights = [size if name == "fedper" else 1.0 for *_, size in cohort]
        shared = oracle.average([models[i] for i, *_ in cohort], weights)
    if name == "fedper":
        algorithm, hyper = fedper(model, WORK), fljax.fedper.Hyper(lr=LR, momentum=MOMENTUM)
    else:
        algorithm, hyper = lg_fedavg(model, WORK), fljax.lg_fedavg.Hyper(lr=LR, momentum=MOMENTUM)
    expected = [model | {n: shared[n] for n in shared_layers} for model in models]
    assert_models(run(algorithm, hyper, federation, key)[0], expected)


def test_fedrep(key, model, federation, reference):
    body, models = reference.start, reference.everyone()
    for cohort in reference.rounds():
        for i, k, _ in cohort:
            head_batches = reference.batches(i, jax.random.fold_in(k, HEAD_PHASE), epochs=1)
            body_batches = reference.batches(i, k, epochs=1)
            with_fitted_head = oracle.local_sgd(
                models[i] | {"fc1": body["fc1"]}, head_batches, LR, MOMENTUM, moving=HEAD
            )
            models[i] = oracle.local_sgd(with_fitted_head, body_batches, LR, MOMENTUM, moving=BODY)
        body = oracle.average([models[i] for i, *_ in cohort], [size for *_, size in cohort])
    algorithm = fedrep(model, WORK, body_epochs=1, ft_epochs=0)
    expected = [model | {"fc1": body["fc1"]} for model in models]
    assert_models(run(algorithm, fljax.fedrep.Hyper(lr=LR, momentum=MOMENTUM), federation, key)[0], expected)


@pytest.mark.parametrize("ft_epochs", [2, *slow(0)])
def test_fedbabu(key, model, federation, reference, ft_epochs):
    """Clients' learning rate falls from round to round, that of fine-tuning does not."""
    theta = reference.start
    for r, cohort in enumerate(reference.rounds()):
        sent = [reference.train(theta, i, k, LR * 0.8**r, moving=BODY) for i, k, _ in cohort]
        theta = oracle.average(sent, [1.0] * len(sent)) | {"fc2": reference.start["fc2"]}
    expected = [theta] * 8
    if ft_epochs:
        key_of = [jax.random.fold_in(reference.keys.deploy, i) for i in range(8)]
        batches = [reference.batches(i, key_of[i], ft_epochs) for i in range(8)]
        expected = [oracle.local_sgd(theta, batches[i], 0.1, MOMENTUM) for i in range(8)]
    algorithm, hyper = (
        fedbabu(model, WORK, ft_epochs=ft_epochs),
        fljax.fedbabu.Hyper(lr=LR, lr_decay=0.8, ft_lr=0.1, momentum=MOMENTUM),
    )
    assert_models(run(algorithm, hyper, federation, key)[0], expected)


@pytest.mark.parametrize("proximal_weight", ["objective", *slow("uniform")])
def test_fesem(key, model, federation, reference, proximal_weight):
    """From the library's first clusters: held near its center, each is then in the nearest, which moves to their mean.

    The objective's weight is mu over alpha_i, relative to clients of equal sizes: n_i / sum n of m clients.
    """
    algorithm, mu = fesem(model, WORK, 2, proximal_weight=proximal_weight), 0.4
    hyper = fesem.Hyper(lr=LR, momentum=MOMENTUM, mu=mu)
    first_state = jax.device_get(jitted(algorithm.init)(reference.keys.init, hyper, federation.train))
    server = first_state.server
    centers, models = (
        [jax.tree.map(lambda leaf, i=i: np.float64(leaf[i]), stacked) for i in range(n)]
        for stacked, n in ((server.centers, 2), (server.kept.models, 8))
    )
    label, alpha = np.asarray(server.label), reference.size / reference.size.sum()
    for cohort in reference.rounds():
        for i, k, _ in cohort:
            weight_of_term = mu / (8 * alpha[i]) if proximal_weight == "objective" else mu
            models[i] = reference.train(centers[label[i]], i, k, mu=weight_of_term)
        label = np.array([np.argmin([squared_distance(w, center) for center in centers]) for w in models])
        members = [[w for w, j in zip(models, label, strict=True) if j == k] for k in range(2)]
        assert all(members)
        centers = [oracle.average(models_of_cluster, [1.0] * len(models_of_cluster)) for models_of_cluster in members]
    deployed, state = run(algorithm._replace(init=lambda *_: first_state), hyper, federation, key)
    np.testing.assert_array_equal(state.server.label, label)
    assert_models(state.server.kept.models, models)
    assert_models(deployed, [centers[k] for k in label])


@pytest.mark.parametrize("name", ["ifca", *slow("hypcluster")])
def test_ifca_and_hypcluster(key, model, federation, reference, name):
    """From the library's first models; all are tested with that of least loss on their training data, as it is last.

    HypCluster's weigh members by size, and each has momentum of its own.
    """
    if name == "ifca":
        algorithm, hyper, step, beta = ifca(model, WORK, 2), ifca.Hyper(lr=LR, momentum=MOMENTUM), 1.0, 0.0
    else:
        algorithm, step, beta = hypcluster(model, WORK, 2, server_optimizer="momentum"), 0.7, 0.6
        hyper = hypcluster.Hyper(lr=LR, momentum=MOMENTUM, server_lr=step, beta1=beta)
    first_state = jax.device_get(jitted(algorithm.init)(reference.keys.init, hyper, federation.train))
    centers = [jax.tree.map(lambda leaf, j=j: np.float64(leaf[j]), first_state.server.centers) for j in range(2)]
    moments = [oracle.combine(np.zeros_like, theta) for theta in centers]

    def best_cluster(i):
        rows = reference.index[i, : reference.size[i]]
        return int(np.argmin([oracle.training_loss(theta, reference.x[rows], reference.y[rows]) for theta in centers]))

    for cohort in reference.rounds():
        sent, sizes = [[], []], [[], []]
        for i, k, size in cohort:
            sent[best_cluster(i)].append(reference.train(centers[best_cluster(i)], i, k))
            sizes[best_cluster(i)].append(1.0 if name == "ifca" else size)
        for j in range(2):
            if sent[j]:
                mean = oracle.average(sent[j], sizes[j])
                moments[j] = oracle.combine(
                    lambda m, t, mean_leaf: beta * m + t - mean_leaf, moments[j], centers[j], mean
                )
                centers[j] = oracle.combine(lambda t, m: t - step * m, centers[j], moments[j])
    deployed, state = run(algorithm._replace(init=lambda *_: first_state), hyper, federation, key)
    assert_models(state.server.centers, centers)
    assert_models(deployed, [centers[best_cluster(i)] for i in range(8)])
    assert len({best_cluster(i) for i in range(8)}) == 2


def squared_distance(a, b):
    return sum(np.square(leaf).sum() for leaf in jax.tree.leaves(oracle.combine(np.subtract, a, b)))
