"""Limit laws: where one method must equal another."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.algorithms.fedprox import FedProxHyper, fedprox
from fljax.algorithms.fedsgd import FedSGDHyper, fedsgd
from fljax.algorithms.fesem import FeSEMHyper, fesem
from fljax.algorithms.ifca import IFCAHyper, ifca
from fljax.algorithms.standalone import StandaloneHyper, standalone
from fljax.data.synthetic import linear_groups
from fljax.run.simulate import simulate, split_key
from fljax.types import Work
from tests import oracle

ROUNDS = 3


def server_of(algorithm, hyper, federation, key, n_rounds=ROUNDS, **options):
    return simulate(algorithm, hyper, federation, key, n_rounds, **options)[0].server


def as_float64(params):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


def test_fedprox_without_pull_is_fedavg_exactly(key, model, work, federation):
    prox = server_of(fedprox(model, work), FedProxHyper(0.1, mu=0.0), federation, key)
    chex.assert_trees_all_equal(prox, server_of(fedavg(model, work), FedAvgHyper(0.1), federation, key))


def test_the_pull_of_fedprox_holds_clients_back(key, model, work, federation):
    start = model.init(split_key(key).init)
    moved = [
        float(
            tree.squared_norm(
                tree.subtract(server_of(fedprox(model, work), FedProxHyper(0.1, mu), federation, key, 1), start)
            )
        )
        for mu in (0.0, 0.5, 2.0, 5.0)
    ]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.7 * moved[0]


def test_fedavg_of_one_full_batch_step_is_fedsgd(key, model, federation):
    averaged = server_of(fedavg(model, Work(1, 64)), FedAvgHyper(0.3), federation, key)
    stepped = server_of(fedsgd(model, Work(1, 5)), FedSGDHyper(0.3), federation, key)
    chex.assert_trees_all_close(averaged, stepped, rtol=1e-5, atol=1e-6)


def test_fedsgd_on_everyone_is_gradient_descent_on_the_pooled_data(key, model, federation):
    theta = as_float64(model.init(split_key(key).init))
    data = federation.train
    rows = np.concatenate([np.asarray(data.index[i, : int(data.size[i])]) for i in range(8)])
    x, y = np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.y)[rows]
    theta = oracle.local_sgd(theta, [(x, y)] * ROUNDS, 0.3)
    chex.assert_trees_all_close(
        server_of(fedsgd(model, Work(1, 8)), FedSGDHyper(0.3), federation, key), theta, rtol=1e-5, atol=1e-6
    )


def test_ifca_with_one_cluster_is_uniform_fedavg(key, model, work, federation):
    clustered = server_of(ifca(model, work, 1), IFCAHyper(0.1), federation, key, participation=0.5)
    # IFCA draws its model from a split of the initial key, so FedAvg starts from that model.
    algorithm = fedavg(model, work, weighting="uniform")
    start = tree.take(ifca(model, work, 1).init(split_key(key).init, IFCAHyper(0.1), federation.train).server, 0)
    algorithm = algorithm._replace(init=lambda *_: algorithm.init(*_)._replace(server=start))
    averaged = server_of(algorithm, FedAvgHyper(0.1), federation, key, participation=0.5)
    chex.assert_trees_all_close(tree.take(clustered, 0), averaged, rtol=1e-5, atol=1e-6)


def test_ifca_of_gradients_with_one_cluster_and_equal_sizes_is_fedsgd(key, model):
    federation = linear_groups(6, 2, examples=24)
    algorithm = ifca(model, Work(1, 8), 1, averaging="gradient")
    start = tree.take(algorithm.init(split_key(key).init, IFCAHyper(0.3), federation.train).server, 0)
    sgd = fedsgd(model, Work(1, 8))
    sgd = sgd._replace(init=lambda *_: fedsgd(model, Work(1, 8)).init(*_)._replace(server=start))
    chex.assert_trees_all_close(
        tree.take(server_of(algorithm, IFCAHyper(0.3), federation, key), 0),
        server_of(sgd, FedSGDHyper(0.3), federation, key),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_fesem_with_one_center_is_uniform_fedprox_from_its_first_center(key, model, work, federation, mu):
    algorithm, hyper = fesem(model, work, 1, pull="plain"), FeSEMHyper(0.1, mu)
    first = algorithm.init(split_key(key).init, hyper, federation.train).server
    prox = fedprox(model, work, weighting="uniform")
    start = tree.take(first.centers, 0)
    begun = prox._replace(init=lambda *_: prox.init(*_)._replace(server=start))
    chex.assert_trees_all_close(
        tree.take(server_of(algorithm, hyper, federation, key).centers, 0),
        server_of(begun, FedProxHyper(0.1, mu), federation, key),
        rtol=1e-5,
        atol=1e-6,
    )


def test_fesem_with_a_center_each_is_everyone_alone(key, model, work, federation):
    algorithm, hyper = fesem(model, work, 8), FeSEMHyper(0.1, mu=0.0)
    server = server_of(algorithm, hyper, federation, key)
    assert len(set(np.asarray(server.label).tolist())) == 8
    chex.assert_trees_all_close(tree.take(server.centers, server.label), server.models, rtol=1e-6, atol=1e-7)


def test_fesem_e_and_m_steps_never_raise_the_objective(key, model, work, federation):
    def objective(centers, models, label):
        own = tree.take(centers, label)
        return float(sum(jnp.square(a - b).sum() for a, b in zip(*map(jax.tree.leaves, (models, own)), strict=True)))

    algorithm, hyper = fesem(model, work, 3), FeSEMHyper(0.3)
    previous = algorithm.init(split_key(key).init, hyper, federation.train).server
    for n_rounds in range(1, 5):
        now = server_of(algorithm, hyper, federation, key, n_rounds)
        before = objective(previous.centers, now.models, previous.label)
        after = objective(now.centers, now.models, now.label)
        assert after <= before * (1 + 1e-6)
        previous = now


def test_fesem_after_the_e_step_every_center_is_the_nearest(key, model, work, federation):
    server = server_of(fesem(model, work, 3), FeSEMHyper(0.1), federation, key)
    flat, centers = tree.flatten(server.models), tree.flatten(server.centers)
    distance = np.square(np.asarray(flat)[:, None] - np.asarray(centers)[None]).sum(axis=-1)
    # Labels are of the E step, centers of the M step after it: at a fixed point both agree.
    assert (
        np.take_along_axis(distance, np.asarray(server.label)[:, None], 1)[:, 0] <= distance.min(axis=1) * 1.5
    ).all()


def test_standalone_clients_do_not_know_of_each_other(key, model, work, federation):
    state, _ = simulate(standalone(model, work), StandaloneHyper(0.1), federation, key, ROUNDS)
    rows = federation.train.index[0, : int(federation.train.size[0])]
    x = federation.train.pool.x.at[rows].add(1.0)
    changed = federation._replace(train=federation.train._replace(pool=federation.train.pool._replace(x=x)))
    other, _ = simulate(standalone(model, work), StandaloneHyper(0.1), changed, key, ROUNDS)
    rest = jnp.arange(1, 8)
    chex.assert_trees_all_equal(tree.take(state.clients, rest), tree.take(other.clients, rest))
    assert not np.array_equal(state.clients["fc1"]["kernel"][0], other.clients["fc1"]["kernel"][0])


def test_fedavg_with_no_learning_rate_stays(key, model, work, federation):
    ours = server_of(fedavg(model, work), FedAvgHyper(lr=0.0), federation, key)
    chex.assert_trees_all_close(ours, model.init(split_key(key).init), rtol=1e-6)


def test_identical_clients_average_to_a_single_run(key, model):
    federation = linear_groups(4, 1, examples=24)
    same = federation.train._replace(index=jnp.tile(federation.train.index[:1], (4, 1)))
    shared = federation._replace(train=same)
    work = Work(2, 64)  # full batches: a client's key then decides nothing
    averaged = server_of(fedavg(model, work), FedAvgHyper(0.1), shared, key)
    alone = simulate(standalone(model, work), StandaloneHyper(0.1), shared, key, ROUNDS)[0].clients
    chex.assert_trees_all_close(averaged, tree.take(alone, 0), rtol=1e-5, atol=1e-6)
