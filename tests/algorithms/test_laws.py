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
from fljax.algorithms.fesem_ma import fesem_ma
from fljax.algorithms.ifca import IFCAHyper, ifca
from fljax.algorithms.standalone import StandaloneHyper, standalone
from fljax.client import training_loss, proximal
from fljax.data.synthetic import linear_groups
from fljax.rounds.sampling import sample_cohort
from fljax.run.simulate import as_traced, simulate, split_key
from fljax.types import Batch, State, Work
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
    plain = fedavg(model, work, weighting="uniform")
    start = tree.take(ifca(model, work, 1).init(split_key(key).init, IFCAHyper(0.1), federation.train).server, 0)
    begun = plain._replace(init=lambda *_: State(start, ()))
    averaged = server_of(begun, FedAvgHyper(0.1), federation, key, participation=0.5)
    chex.assert_trees_all_close(tree.take(clustered, 0), averaged, rtol=1e-5, atol=1e-6)


def test_ifca_with_a_shared_layer_averages_it_over_everybody(key, model, work, federation):
    shared, apart = ifca(model, work, 3, n_shared=1), ifca(model, work, 3)
    hyper, cohort = as_traced(IFCAHyper(0.1)), sample_cohort(key, jnp.int32(0), federation, 8, None)
    before = shared.init(key, hyper, federation.train)
    after, metrics = shared.round(key, hyper, before, cohort)
    theirs, _ = apart.round(key, hyper, before, cohort)
    base, members = after.server["fc1"]["kernel"], np.bincount(metrics["label"], minlength=3)
    assert (members > 0).sum() > 1
    np.testing.assert_array_equal(before.server["fc1"]["kernel"][0], before.server["fc1"]["kernel"][2])
    np.testing.assert_array_equal(base[0], base[2])
    mean = np.average(np.asarray(theirs.server["fc1"]["kernel"]), axis=0, weights=members)  # of the clusters' means
    np.testing.assert_allclose(base[0], mean, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(after.server["fc2"], theirs.server["fc2"], rtol=1e-6)


@pytest.mark.parametrize("n_shared", [-1, 2])
def test_ifca_leaves_the_clusters_a_layer(model, work, n_shared):
    with pytest.raises(ValueError, match=f"n_shared={n_shared} of 2 layers"):
        ifca(model, work, n_shared=n_shared)


def test_fedprox_whose_pull_undoes_a_step_returns_to_the_servers_model(key, model, work, federation):
    """eta mu = 1 and no gradient of the loss: w - eta mu (w - theta) = theta in one step."""
    theta = model.init(key)
    away = jax.tree.map(lambda leaf: leaf + 1.0, theta)
    batch = Batch(federation.train.pool.x[:4], federation.train.pool.y[:4], jnp.zeros(4))  # examples of weight 0
    gradient = jax.grad(lambda w: proximal(training_loss(model), 4.0)(w, batch, key, theta)[0])(away)
    chex.assert_trees_all_close(tree.subtract(away, jax.tree.map(lambda g: 0.25 * g, gradient)), theta, atol=1e-6)


def test_ifca_of_gradients_with_one_cluster_and_equal_sizes_is_fedsgd(key, model):
    federation = linear_groups(6, 2, examples=24)
    algorithm = ifca(model, Work(1, 8), 1, averaging="gradient")
    start = tree.take(algorithm.init(split_key(key).init, IFCAHyper(0.3), federation.train).server, 0)
    sgd = fedsgd(model, Work(1, 8))
    sgd = sgd._replace(init=lambda *_: State(start, ()))
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
    begun = prox._replace(init=lambda *_: State(start, ()))
    chex.assert_trees_all_close(
        tree.take(server_of(algorithm, hyper, federation, key).centers, 0),
        server_of(begun, FedProxHyper(0.1, mu), federation, key),
        rtol=1e-5,
        atol=1e-6,
    )


def test_fesem_with_a_center_each_is_everyone_alone(key, model, work, federation):
    algorithm, hyper = fesem(model, work, 8), as_traced(FeSEMHyper(0.1, mu=0.0))
    state = jax.jit(algorithm.init)(key, hyper, federation.train)
    cohort = sample_cohort(key, jnp.int32(0), federation, 8, None)
    alone = State((), tree.take(state.server.centers, state.server.label))
    # A small step, so that no model drifts nearer to another's center: the condition of this law.
    small = hyper._replace(lr=jnp.float32(1e-3))
    for _ in range(3):
        state, metrics = algorithm.round(key, small, state, cohort)
        assert metrics["n_clusters"] == 8
        alone, _ = standalone(model, work).round(key, as_traced(StandaloneHyper(1e-3)), alone, cohort)
        centers, models, label, _ = state.server
        chex.assert_trees_all_close(tree.take(centers, label), models, rtol=1e-6, atol=1e-7)
        chex.assert_trees_all_close(models, alone.clients, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("cluster_on", ["model", "last_kernel"])
@pytest.mark.parametrize("empty", ["keep", "reseed"])
def test_fesem_e_and_m_steps_are_numpys(key, model, work, federation, cluster_on, empty):
    def points(models):
        rows = {"kernel": models["fc2"]["kernel"]} if cluster_on == "last_kernel" else models
        return np.asarray(tree.flatten(rows), np.float64)

    algorithm, hyper = fesem(model, work, 3, cluster_on=cluster_on, empty=empty), as_traced(FeSEMHyper(0.3))
    state = jax.jit(algorithm.init)(key, hyper, federation.train)
    # The third center is so far away that nobody is near it.
    far = jax.tree.map(lambda leaf: leaf.at[2].add(100.0), state.server.centers)
    state = state._replace(server=state.server._replace(centers=far, label=jnp.minimum(state.server.label, 1)))
    for round in range(3):
        before = state.server.centers
        state, _ = algorithm.round(key, hyper, state, sample_cohort(key, jnp.int32(round), federation, 8, None))
        centers, models, label, _ = state.server
        distance = np.square(points(models)[:, None] - points(before)[None]).sum(axis=-1)
        np.testing.assert_array_equal(label, distance.argmin(axis=1))  # after E each client is nearest to its center
        farthest = distance.min(axis=1).argmax()
        for k in range(3):
            members = np.flatnonzero(np.asarray(label) == k)
            lone = tree.take(models, farthest) if empty == "reseed" else tree.take(before, k)
            mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), tree.take(models, members)) if members.size else lone
            chex.assert_trees_all_close(tree.take(centers, k), mean, rtol=1e-5, atol=1e-6)
        if round == 0:
            assert not (np.asarray(label) == 2).any()


def test_fesem_e_and_m_steps_never_raise_the_objective(key, model, work, federation):
    def objective(centers, models, label):
        own = tree.take(centers, label)
        return float(sum(jnp.square(a - b).sum() for a, b in zip(*map(jax.tree.leaves, (models, own)), strict=True)))

    algorithm, hyper = fesem(model, work, 3), as_traced(FeSEMHyper(0.3))
    state = jax.jit(algorithm.init)(key, hyper, federation.train)
    step = jax.jit(lambda s, r: algorithm.round(key, hyper, s, sample_cohort(key, r, federation, 8, None))[0])
    for round in range(6):
        previous, state = state.server, step(state, jnp.int32(round))
        now = state.server
        before = objective(previous.centers, now.models, previous.label)
        after = objective(now.centers, now.models, now.label)
        assert after <= before * (1 + 1e-6)


def test_fesem_at_its_start_is_a_fixed_point_of_k_means(key, model, work, federation):
    algorithm = fesem(model, work, 3)
    server = jax.jit(algorithm.init)(key, as_traced(FeSEMHyper(0.3)), federation.train).server
    models, centers = np.asarray(tree.flatten(server.models)), np.asarray(tree.flatten(server.centers))
    distance = np.square(models[:, None] - centers[None]).sum(axis=-1)
    np.testing.assert_array_equal(distance.argmin(axis=1), server.label)
    for k in range(3):
        np.testing.assert_allclose(centers[k], models[np.asarray(server.label) == k].mean(axis=0), rtol=1e-5, atol=1e-6)


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


@pytest.mark.parametrize(
    ("make", "hyper"),
    [(ifca, IFCAHyper(0.2, min_share=0.5)), (fesem, FeSEMHyper(0.2)), (fesem_ma, FeSEMHyper(0.2))],
)
def test_two_groups_of_opposite_targets_are_found(key, model, make, hyper):
    metrics = simulate(make(model, Work(2, 8), 2), hyper, linear_groups(8, 2, examples=60), key, 8)[1]
    assert metrics["ari"][-1] == 1
