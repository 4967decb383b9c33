"""What the server makes of received models: against NumPy, for one model and for every cluster."""

from functools import cache
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.rounds import combine
from fljax.rounds.combine import as_combine, members_of, memory_of
from fljax.rounds.combine_parts import of_each_learner, on_layers
from fljax.rounds.extrapolation import extrapolated
from tests.slow import slow

HYPER = SimpleNamespace(
    trim=0.25, n_attackers=1, n_selected=3, server_lr=0.5, beta1=0.0, beta2=0.9, tau=1e-2, epsilon=0.05
)
ROWS, CLUSTERS = 9, 3


@pytest.fixture
def received():
    rng = np.random.default_rng(0)
    return {"a": np.float32(rng.normal(size=(ROWS, 2, 2))), "b": np.float32(rng.normal(size=(ROWS, 3)))}


@cache
def apply_rule(rule):
    """``(memory, shared, received, weight) -> (shared, memory)``, compiled once."""
    return jax.jit(lambda *arguments: as_combine(rule).apply(HYPER, *arguments))


@cache
def apply_rule_to_clusters(rule):
    return jax.jit(lambda *arguments: members_of(as_combine(rule), HYPER, *arguments))


def as_rows(params, n):
    return np.concatenate([np.asarray(leaf, np.float64).reshape(n, -1) for leaf in jax.tree.leaves(params)], axis=1)


def krum_of(x, n_selected):
    squared_distances = ((x[:, None] - x[None]) ** 2).sum(-1)
    n_near = max(1, len(x) - HYPER.n_attackers - 2)
    score = [np.sort(np.delete(row, i))[:n_near].sum() for i, row in enumerate(squared_distances)]
    return x[np.argsort(score, kind="stable")[:n_selected]].mean(0)


def trimmed_of(x):
    n_cut = max(1, int(HYPER.trim * len(x))) if len(x) >= 3 else 0
    n_cut = min(n_cut, (len(x) - 1) // 2)
    return np.sort(x, axis=0)[n_cut : len(x) - n_cut].mean(0)


def bulyan_of(x):
    f, remaining, chosen = HYPER.n_attackers, list(range(len(x))), []
    while len(chosen) < max(1, len(x) - 2 * f):
        squared_distances = ((x[remaining][:, None] - x[remaining][None]) ** 2).sum(-1)
        n_near = min(max(1, len(remaining) - f - 2), max(1, len(remaining) - 1))
        score = [np.sort(np.delete(row, i))[:n_near].sum() for i, row in enumerate(squared_distances)]
        best = min(
            range(len(remaining)), key=lambda i: (score[i], squared_distances[i].sum())
        )  # of two nearest each other, who is inside
        chosen.append(remaining.pop(best))
    n_kept = max(1, len(chosen) - 2 * f)
    entries = np.sort(x[chosen], axis=0)
    order = np.argsort(np.abs(entries - np.median(entries, axis=0)), axis=0, kind="stable")
    return np.take_along_axis(entries, order[:n_kept], axis=0).mean(0)


ORACLES = {
    "mean": lambda x, w: np.average(x, axis=0, weights=w),
    "median": lambda x, w: np.median(x, axis=0),
    "trimmed_mean": lambda x, w: trimmed_of(x),
    "krum": lambda x, w: krum_of(x, 1),
    "multi_krum": lambda x, w: krum_of(x, 3),
    "bulyan": lambda x, w: bulyan_of(x),
}


@pytest.mark.parametrize("name", ORACLES)
def test_one_model_equals_numpy_and_who_does_not_count_never_matters(name, received):
    weight = np.float32([1.0, 2, 0, 3, 1, 1, 0, 2, 1])
    is_counted = weight > 0
    with_nan, shared = jax.tree.map(np.copy, received), jax.tree.map(lambda leaf: leaf[0] + 5, received)
    for leaf in with_nan.values():
        leaf[2] = np.nan
    actual, memory = apply_rule(getattr(combine, name))((), shared, with_nan, weight)
    expected = ORACLES[name](as_rows(received, ROWS)[is_counted], weight[is_counted])
    np.testing.assert_allclose(as_rows(actual, 1)[0], expected, rtol=1e-5, atol=1e-6)
    assert memory == ()


@pytest.mark.parametrize("name", [*ORACLES, "geometric_median"])
def test_a_cluster_is_its_members_combined_and_an_empty_one_keeps_its_model(name, received):
    label = np.int32([0, 0, 0, 0, 0, 2, 2, 2, -1])  # cluster 1 is empty, the last row is in none
    weight = np.float32([1.0, 2, 1, 3, 1, 1, 2, 2, 9])
    centers = jax.tree.map(lambda leaf: leaf[:CLUSTERS] + 5, received)
    rule = getattr(combine, name)
    new_centers = jax.device_get(apply_rule_to_clusters(rule)((), centers, received, weight, label)[0])
    for k in range(CLUSTERS):
        center = jax.tree.map(lambda leaf, k=k: leaf[k], centers)
        expected, _ = apply_rule(rule)((), center, received, np.where(label == k, weight, np.float32(0)))
        chex.assert_trees_all_close(
            jax.tree.map(lambda leaf, k=k: leaf[k], new_centers), expected, rtol=1e-5, atol=1e-6
        )
    chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf: leaf[1], (new_centers, new_centers)),
        jax.tree.map(lambda leaf: leaf[1], (centers, centers)),
    )


@pytest.mark.parametrize("name", ["momentum", *slow("adagrad", "adam", "yogi")])
def test_clusters_step_each_by_its_own_optimiser_and_empty_ones_rest(name, received):
    rule = combine.by_optimizer(combine.median, name)
    label, weight = np.int32([0, 0, 0, 2, 2, 2, 2, 0, 0]), np.ones(ROWS, np.float32)
    centers = jax.tree.map(lambda leaf: leaf[:CLUSTERS] + 1, received)
    memory = jax.device_get(jax.jit(lambda centers: memory_of(rule, HYPER, centers))(centers))
    new_centers, new_memory = jax.device_get(apply_rule_to_clusters(rule)(memory, centers, received, weight, label))
    for k in (0, 2):
        center, memory_of_center = jax.tree.map(lambda leaf, k=k: leaf[k], (centers, memory))
        expected = apply_rule(rule)(memory_of_center, center, received, np.float32(label == k))
        chex.assert_trees_all_close(
            jax.tree.map(lambda leaf, k=k: leaf[k], (new_centers, new_memory)), expected, rtol=1e-5, atol=1e-6
        )
    empty_cluster = jax.tree.map(lambda leaf: leaf[1], (centers, memory))
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[1], (new_centers, new_memory)), empty_cluster)
    model, moments = jax.tree.map(lambda leaf: leaf[0], (new_centers, new_memory))
    result_of_nobody = apply_rule(rule)(moments, model, received, np.zeros(ROWS, np.float32))
    chex.assert_trees_all_equal(result_of_nobody, (model, moments))
    result_without_cluster_0 = apply_rule_to_clusters(rule)(
        new_memory, new_centers, received, weight, np.where(label == 0, np.int32(-1), label)
    )
    chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[0], result_without_cluster_0), (model, moments))


@pytest.mark.parametrize("distance", [1.0, 0.1])
def test_a_server_goes_beyond_the_mean_as_far_as_updates_point_apart(received, distance):
    """FedExP's step in NumPy, never less than the whole way; who does not count never matters."""
    weight = np.float32([1.0, 2, 0, 3, 1, 1, 0, 2, 1])
    shared = jax.tree.map(lambda leaf: leaf[0] + 5 * (1 - distance), received)
    models = jax.tree.map(lambda leaf, t: t + distance * (leaf - leaf.mean(0)) + np.float32(0.2), received, shared)
    for leaf in models.values():
        leaf[2] = np.nan
    actual, _ = apply_rule(extrapolated(combine.mean))((), shared, models, weight)
    updates, is_counted = as_rows(models, ROWS) - as_rows(shared, 1), weight > 0
    step = np.average(updates[is_counted], axis=0, weights=weight[is_counted])
    spread = np.average((updates[is_counted] ** 2).sum(1), weights=weight[is_counted])
    eta = spread / (2 * (step @ step + HYPER.epsilon))
    assert eta > 1 if distance == 1 else eta < 1
    np.testing.assert_allclose(as_rows(actual, 1)[0], as_rows(shared, 1)[0] + max(1, eta) * step, rtol=1e-5, atol=1e-5)


def test_part_of_the_way_and_some_layers_only(received):
    shared = jax.tree.map(lambda leaf: leaf[0] * 0, received)
    weight = np.ones(ROWS, np.float32)
    half_way, _ = apply_rule(combine.interpolated(combine.mean, share=lambda hyper, weight: 0.5))(
        (), shared, received, weight
    )
    chex.assert_trees_all_close(half_way, jax.tree.map(lambda leaf: leaf.mean(0) / 2, received), rtol=1e-5, atol=1e-6)
    only_a, _ = apply_rule(on_layers(combine.mean, ("a",)))((), shared, received, weight)
    chex.assert_trees_all_close(only_a, {"a": received["a"].mean(0), "b": shared["b"]}, rtol=1e-5, atol=1e-6)


def test_parts_keep_their_memory_and_know_whether_they_are_sums(received):
    """A server optimiser's step on one layer is that of a model of this layer; of each learner, that of one alone."""
    adam = combine.by_optimizer(combine.mean, "adam")
    shared, weight = jax.tree.map(lambda leaf: leaf[0] * 0, received), np.ones(ROWS, np.float32)
    alone = {"a": shared["a"]}, {"a": received["a"]}

    @jax.jit
    def steps(shared, received, alone):
        def step(rule, shared, received):
            return rule.apply(HYPER, rule.init(HYPER, shared), shared, received, weight)

        (shared_a, received_a), each = alone, of_each_learner(adam)
        learners = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), shared_a)
        copies = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf], axis=1), received_a)
        doubled = jax.tree.map(lambda leaf: 2 * leaf, received_a)
        of_learners = [step(adam, shared_a, of_one) for of_one in (received_a, doubled)]
        return step(on_layers(adam, ["a"]), shared, received), step(each, learners, copies), of_learners

    (params, memory), each, of_learners = steps(shared, received, alone)
    chex.assert_trees_all_equal(params["b"], shared["b"])
    chex.assert_trees_all_equal(({"a": params["a"]}, memory), of_learners[0])
    chex.assert_trees_all_equal(each, jax.tree.map(lambda *leaves: np.stack(leaves), *of_learners))
    for part in (lambda rule: on_layers(rule, ("a",)), of_each_learner):
        assert part(combine.mean).sums
        assert not part(combine.median).sums


def test_nothing_shared_stays_nothing():
    for name in (*ORACLES, "geometric_median"):
        assert as_combine(getattr(combine, name)).apply(HYPER, (), {}, {}, jnp.ones(3)) == ({}, ())
