"""FLC: FedAvg until the groups form, the groups themselves, FedAvg in each afterwards."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import KMeans

from fljax import rounds, tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.flc import flc, scaled_layers
from fljax.data.synthetic import linear_groups
from fljax.rounds import interpolated
from fljax.rounds.one_shot import unseen_to_largest
from fljax.types import Work
from tests.algorithms.round_by_round import simulate


def final(algorithm, hyper, federation, key, n_rounds=3):
    return simulate(algorithm, hyper, federation, key, n_rounds, participation=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("n_clusters", "warmup"), [(1, 2.0), (2, np.inf)])
def test_before_groups_form_and_with_one_group_it_is_fedavg(key, model, work, federation, n_clusters, warmup):
    server = final(flc(model, work, n_clusters), flc.Hyper(lr=0.1, warmup=warmup), federation, key)[0].server
    averaged = final(fedavg(model, work), fedavg.Hyper(lr=0.1), federation, key)[0].server
    assert not server.label.any()
    chex.assert_trees_all_close(tree.take(server.centers, 0), averaged, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_groups_start_from_the_model_that_all_had(key, model, work, federation):
    """They go half of the way to their members' means: together they give FedAvg's model of such a round."""
    hyper, half_way = flc.Hyper(lr=0.1, warmup=3.0), interpolated(rounds.mean, share=lambda hyper, weight: 0.5)
    choices = {"weighting": "uniform", "combine": half_way}
    server, metrics = simulate(flc(model, work, **choices), hyper, federation, key, 3)
    expected = simulate(fedavg(model, work, **choices), fedavg.Hyper(lr=0.1), federation, key, 3)[0].server
    members = np.bincount(metrics["label"][-1], minlength=2)
    assert (members > 0).all()
    mean = jax.tree.map(lambda leaf: np.average(leaf, axis=0, weights=members), server.server.centers)
    chex.assert_trees_all_close(mean, expected, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def runs(model):
    """Seven rounds of eight clients in two hidden groups, which form in the third, as two and a half are over then."""
    federation = linear_groups(8, 2, examples=60)
    clustered_run = simulate(flc(model, Work(2, 8)), flc.Hyper(lr=0.2, warmup=2.5), federation, jax.random.key(0), 7)
    averaged_run = simulate(fedavg(model, Work(2, 8)), fedavg.Hyper(lr=0.2), federation, jax.random.key(0), 7)
    return federation, clustered_run, averaged_run


@pytest.mark.slow
def test_hidden_groups_are_found_once_and_fedavg_is_beaten(runs):
    _, (_, metrics), (_, averaged_metrics) = runs
    np.testing.assert_array_equal(metrics["n_clusters"], [1, 1, 2, 2, 2, 2, 2])
    np.testing.assert_array_equal(metrics["ari"][2:], 1)
    assert metrics["accuracy_macro"][-1] > averaged_metrics["accuracy_macro"][-1] + 0.2


def test_groups_equal_those_of_scikit_learn_on_scaled_layers(runs):
    federation, (state, _), _ = runs
    update = state.server.kept
    rows = {name: [np.reshape(leaf, (8, -1)) for leaf in jax.tree.leaves(update[name])] for name in update}
    for layer in rows.values():
        np.testing.assert_allclose(np.linalg.norm(np.concatenate(layer, axis=1), axis=1), 1, rtol=1e-5)
    updates = np.concatenate([leaf for layer in rows.values() for leaf in layer], axis=1)
    expected = KMeans(2, n_init=20, random_state=0).fit(updates).labels_
    np.testing.assert_array_equal(state.server.label, expected ^ expected[0])
    np.testing.assert_array_equal(state.server.label, federation.group)


@pytest.mark.slow
def test_who_has_no_update_joins_the_largest_group(key, model, work):
    """Of eight clients some drop out until the groups form: these, whose updates are 0, are in the larger one."""
    federation = linear_groups(8, 2, examples=60)
    algorithm, hyper = flc(model, work), flc.Hyper(lr=0.2, warmup=1.0)
    state, metrics = simulate(algorithm, hyper, federation, key, 1, dropout=0.4)
    is_seen = np.isin(np.arange(8), metrics["ids"][0][metrics["active"][0]])
    assert not is_seen.all()
    is_changed = [np.abs(leaf).reshape(8, -1).max(axis=1) > 0 for leaf in jax.tree.leaves(state.server.kept)]
    np.testing.assert_array_equal(np.any(is_changed, axis=0), is_seen)
    largest = np.bincount(state.server.label[is_seen]).argmax()
    np.testing.assert_array_equal(state.server.label[~is_seen], largest)
    assert set(state.server.label[is_seen].tolist()) == {0, 1}


def test_the_largest_group_is_that_of_most_who_came():
    label, is_seen = jnp.array([1, 1, 0, 0, 0, 0]), jnp.array([True, True, True, False, False, False])
    np.testing.assert_array_equal(jax.jit(unseen_to_largest)(label, is_seen), [1, 1, 0, 1, 1, 1])


def test_a_layer_that_did_not_move_stays():
    update = {"a": {"kernel": jnp.array([[3.0, 4.0]]), "bias": jnp.zeros((1, 1))}, "b": {"bias": jnp.zeros((1, 2))}}
    unit_layers = jax.jit(scaled_layers)(update)
    np.testing.assert_allclose(unit_layers["a"]["kernel"], [[0.6, 0.8]], rtol=1e-6)
    np.testing.assert_array_equal(unit_layers["b"]["bias"], [[0, 0]])


def test_what_cannot_be_is_refused(model, work):
    with pytest.raises(ValueError, match="n_clusters=0"):
        flc(model, work, 0)
