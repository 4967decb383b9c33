"""FedDrift: its choice of models against SciPy and loops, FedAvg as its limit, and a federation that drifts."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.hierarchy
from scipy.spatial.distance import squareform

import fljax
from fljax import drift, tree
from fljax.algorithms.feddrift import Known, chosen, feddrift
from fljax.data.synthetic import linear_groups
from fljax.rounds import Clusters
from fljax.rounds.joining import everyone
from fljax.run.one_round import as_traced
from tests.algorithms.round_by_round import jitted, simulate
from tests.slow import slow_rows

DELTA, HEIGHT = 0.3, 0.4
LABEL = np.array([0, 0, 2, 2, 3, 3, 4, 4])
LOSS = np.array(  # clients of 0 and 2 do as well with each other's model; 3 has drifted for both, 4 for the last client
    [
        [0.5, 9.0, 0.6, 1.9, 1.8, 9.0],
        [0.4, 9.0, 0.5, 1.8, 1.7, 9.0],
        [0.6, 9.0, 0.4, 1.7, 1.9, 9.0],
        [0.6, 9.0, 0.5, 1.9, 1.6, 9.0],
        [1.9, 9.0, 1.8, 1.5, 1.7, 9.0],
        [1.8, 9.0, 1.7, 1.4, 1.9, 9.0],
        [1.7, 9.0, 1.9, 1.8, 0.3, 9.0],
        [1.9, 9.0, 1.7, 1.6, 1.5, 9.0],
    ]
)


@pytest.fixture
def choice(key, federation):
    """The clusters after the first round of clients that had the models ``label`` and have these losses."""

    @jax.jit
    def next_clusters(hyper, label, loss):
        last_loss = jnp.asarray([0.5, 0.5, 0.5, 0.5, 0.4, np.inf, 0.4, 0.4], jnp.float32)
        kept = Known(last_loss, {"w": jnp.float32(-1)}, jnp.float32(0), jnp.zeros(6, bool))
        clusters = Clusters({"w": jnp.arange(6, dtype=jnp.float32)}, label, kept)
        return chosen(hyper, clusters, everyone(key, jnp.int32(0), federation.train), loss)

    def choose(hyper, label, loss=LOSS):
        return jax.device_get(next_clusters(as_traced(hyper), np.int32(label), loss.astype(np.float32)))

    return choose


def test_drifted_clients_get_new_models_and_similar_models_merge(choice, federation):
    clusters = choice(feddrift.Hyper(rise=DELTA, merge=HEIGHT), LABEL)
    size = np.asarray(federation.train.size)
    # Clients 4 and 7 have drifted and take the two free models; client 5 chooses for the first time.
    chosen_models = np.array([0, 0, 2, 2, 1, 3, 4, 5])
    models_in_use, distance = [0, 2, 3, 4], np.zeros((4, 4))
    mean_loss = lambda i, j: np.average(LOSS[chosen_models == j, i], weights=size[chosen_models == j])  # noqa: E731
    for a, i in enumerate(models_in_use):
        for b, j in enumerate(models_in_use):
            distance[a, b] = max(mean_loss(i, j) - mean_loss(i, i), mean_loss(j, i) - mean_loss(j, j), 0)
    tree_of_models = scipy.cluster.hierarchy.linkage(squareform(distance, checks=False), "complete")
    groups = scipy.cluster.hierarchy.fcluster(tree_of_models, HEIGHT, "distance")
    expected = [
        models_in_use[list(groups).index(groups[models_in_use.index(k)])] if k in models_in_use else k
        for k in chosen_models
    ]
    np.testing.assert_array_equal(clusters.label, expected)
    assert len(set(expected)) == 5
    merged_sizes = size[:4]
    mean = (merged_sizes[:2].sum() * 0.0 + merged_sizes[2:].sum() * 2.0) / merged_sizes.sum()
    np.testing.assert_allclose(clusters.centers["w"][[0, 3, 4]], [mean, 3.0, 4.0], rtol=1e-5)
    np.testing.assert_array_equal(clusters.centers["w"][[1, 5]], -1)  # new models
    np.testing.assert_allclose(clusters.kept.loss, LOSS[:, models_in_use].min(1), rtol=1e-6)
    assert float(clusters.kept.asked) == 4
    assert clusters.kept.renewed.tolist() == [True, True, False, False, False, True]  # merged, and the new ones
    numbers_of_models = set()
    for height in np.linspace(0.05, 3.0, 60):
        groups = list(scipy.cluster.hierarchy.fcluster(tree_of_models, height, "distance"))
        expected = [
            models_in_use[groups.index(groups[models_in_use.index(k)])] if k in models_in_use else k
            for k in chosen_models
        ]
        np.testing.assert_array_equal(choice(feddrift.Hyper(rise=DELTA, merge=height), LABEL).label, expected)
        numbers_of_models.add(len(set(expected)))
    assert len(numbers_of_models) == 4  # from all that there are to one, besides the new ones


def test_a_model_without_a_loss_is_chosen_by_nobody(choice):
    loss = LOSS.copy()
    loss[:, 3] = np.nan  # held by clients 4 and 5
    clusters = choice(feddrift.Hyper(rise=np.inf, merge=0.0), LABEL, loss)
    models_in_use = [0, 2, 4]
    np.testing.assert_array_equal(clusters.label, np.array(models_in_use)[LOSS[:, models_in_use].argmin(1)])
    np.testing.assert_allclose(clusters.kept.loss, LOSS[:, models_in_use].min(1), rtol=1e-6)


def test_without_a_free_model_a_client_keeps_the_best(choice):
    clusters = choice(feddrift.Hyper(rise=DELTA, merge=0.0), [0, 1, 2, 3, 4, 5, 4, 4])
    np.testing.assert_array_equal(clusters.label, LOSS.argmin(1))


@pytest.mark.slow
def test_feddrift_that_sees_no_drift_is_fedavg(key, model, work, federation):
    hyper = feddrift.Hyper(lr=0.1, rise=np.inf, every=2.0)
    state, metrics = simulate(feddrift(model, work, n_models=3), hyper, federation, key, 3, evaluate_every=3)
    expected, _ = simulate(fljax.fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), federation, key, 3, evaluate_every=3)
    chex.assert_trees_all_close(tree.take(state.server.centers, jnp.int32(0)), expected.server, rtol=1e-5, atol=1e-6)
    assert not np.asarray(state.server.label).any()
    n_losses = np.asarray(metrics["uplink"]).reshape(3, -1)[:, 0] - tree.size(model.init(key))
    np.testing.assert_array_equal(n_losses, [1, 0, 1])


@pytest.mark.slow
def test_a_new_model_has_no_momentum_of_the_forgotten_one_in_its_place(key, model, work, federation):
    method = fljax.compose("feddrift+momentum")
    algorithm, hyper = method(model, work, n_models=3), as_traced(method.Hyper(lr=0.1, rise=0.1, server_lr=1.0))
    start = jitted(algorithm.init)(key, hyper, federation.train)
    kept = start.server.kept._replace(loss=start.server.kept.loss.at[5].set(0.0))  # client 5 drifts
    cohort = everyone(key, jnp.int32(0), federation.train)

    def next_server(remembered):
        memory = jax.tree.map(lambda leaf: leaf.at[1:].set(remembered), start.server.memory)
        state = start._replace(server=start.server._replace(kept=kept, memory=memory))
        return jax.device_get(jitted(algorithm.round)(key, hyper, state, cohort)[0].server)

    server = next_server(0.0)
    np.testing.assert_array_equal(server.label, np.where(np.arange(8) == 5, 1, 0))
    chex.assert_trees_all_equal(next_server(1.0), server)


@pytest.mark.slow
def test_clients_whose_labels_are_swapped_part_from_the_others(key, model, work, federation):
    """One group at first; from round 20 on half of the clients call two classes by each other's name."""
    one_group = linear_groups(8, 1, examples=48, noise=0.1)
    drifting = drift.drifting(one_group, drift.swap_labels(start=20, share=0.5))
    hyper = feddrift.Hyper(lr=0.3, rise=0.3, merge=0.3, every=5.0)
    _, metrics = fljax.simulate(feddrift(model, work), hyper, drifting, key, 60, evaluate_every=5)
    assert (np.asarray(metrics["n_clusters"])[10:20] == 1).all()
    assert float(metrics["ari"][-1]) == 1
    assert float(metrics["accuracy_macro"][-1]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("merge", "n_received"), [*slow_rows((1e9, 3)), (0.0, 2)])
def test_who_is_in_a_merged_model_is_sent_it_beside_those_it_chose_among(
    key, model, work, federation, merge, n_received
):
    method, hyper = (
        feddrift(model, work, n_models=3),
        as_traced(feddrift.Hyper(lr=0.1, every=1.0, rise=1e9, merge=merge)),
    )
    data = federation.train
    cohort, state = everyone(key, jnp.int32(0), data), jitted(method.init)(key, hyper, data)
    n_clients, n_parameters = data.n_clients, tree.size(model.init(key))
    other_params = jax.jit(model.init)(jax.random.fold_in(key, 1))
    centers = jax.tree.map(lambda leaf, new_leaf: leaf.at[1].set(new_leaf), state.server.centers, other_params)
    losses = np.asarray(fljax.cross_loss(model, centers, data))
    label = losses[:, :2].argmin(1).astype(np.int32)
    assert 0 < label.sum() < n_clients  # the premise: each is somebody's best
    server = state.server._replace(centers=centers, label=jnp.asarray(label))
    _, metrics = jitted(method.round)(key, hyper, state._replace(server=server), cohort)
    np.testing.assert_array_equal(np.broadcast_to(metrics["downlink"], n_clients), n_received * n_parameters)
    np.testing.assert_array_equal(np.broadcast_to(metrics["uplink"], n_clients), n_parameters + 2)
