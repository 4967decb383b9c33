"""What the server computes of spread clients: whole on every device, so that no loop of it is an exchange a step."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax.devices.collectives import collectives
from fljax.devices.mesh import over_devices
from fljax.server import (
    best_bipartition,
    blocks,
    cluster_mean,
    coordinate_median,
    cross_squared_l2,
    dbscan,
    kmeans,
    linkage,
    mix,
    model_discrepancy,
    pairwise_cosine,
    pairwise_l2,
    trimmed_mean,
    weighted_mean,
)
from tests.slow import slow, slow_rows

N = 12


def tree(models):
    return linkage(pairwise_l2(models), "average")


def halves(models):
    return best_bipartition(pairwise_cosine(models), jnp.zeros(N, jnp.int32))


def density(models):
    return dbscan(1 - pairwise_cosine(models), 0.4, 2)


def on_spread(function, models):
    """What ``function`` returns for models spread over all devices, and its exchanges."""
    with over_devices() as mesh:
        assert mesh is not None
        sharding = NamedSharding(mesh, PartitionSpec("clients"))
        # A constraint, for arguments cannot be spread unevenly.
        program = (
            jax.jit(lambda models: function(jax.lax.with_sharding_constraint(models, sharding))).lower(models).compile()
        )
        return program(models), collectives(program, mesh.size)


def times(exchanges):
    return sum(exchange.times for exchange in exchanges)


@pytest.mark.parametrize(("function", "n_most"), [(tree, 20), (halves, 4), (density, 4)])
def test_clusters_of_spread_models_are_found_without_an_exchange_a_step(function, n_most):
    """Left to XLA they are 284, 288 and 14 exchanges, for it spreads what is computed of spread rows."""
    models = np.random.default_rng(0).normal(size=(N, 40)).astype(np.float32)
    actual, exchanges = on_spread(function, models)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), jax.jit(function)(models), actual)
    assert 0 < times(exchanges) <= n_most  # the models themselves are spread


@pytest.mark.parametrize(("n_clusters", "dtype"), [(1, "float32"), (3, "float32"), (1, "bfloat16")])
def test_a_mean_of_spread_models_is_one_exchange(n_clusters, dtype):
    """Left to XLA it is one in each step of the loop over columns."""
    rng = np.random.default_rng(0)
    models = jnp.asarray(rng.normal(size=(N, 2 * blocks.width(N // 2) + 5)), dtype).at[3].set(jnp.nan)
    weight = jnp.asarray(rng.integers(1, 9, N).astype(np.float32)).at[3].set(0)
    label, empty = jnp.arange(N, dtype=jnp.int32) % n_clusters, jnp.zeros((n_clusters, models.shape[1]), dtype)

    def means(models):
        return inspect.unwrap(cluster_mean)(models, weight, label, empty)

    spread_means, exchanges = on_spread(means, models)
    float64_models, tolerance = np.asarray(models, np.float64), 1e-2 if dtype == "bfloat16" else 1e-5
    weight = np.asarray(weight, np.float64)
    for cluster in range(n_clusters):
        rows = (np.asarray(label) == cluster) & (weight > 0)
        expected = np.average(float64_models[rows], axis=0, weights=weight[rows])
        for actual in (jax.jit(means)(models), spread_means):
            np.testing.assert_allclose(actual[cluster].astype(float), expected, rtol=tolerance, atol=tolerance)
    assert times(exchanges) <= (2 if dtype == "bfloat16" else 1)


def in_tight_pairs(models):
    """Models in pairs that are much closer to each other than to zero, so that distances are computed once more."""
    return models[jnp.arange(len(models)) // 2 * 2] + 1e-3 * models


@pytest.mark.slow
@pytest.mark.parametrize("n", [N, N + 1])
def test_k_means_and_close_distances_of_spread_models_have_no_exchange_a_step(n):
    """Left to XLA they are up to eight a step of Lloyd's algorithm and ten of the second look at close pairs."""
    models = np.random.default_rng(0).normal(size=(n, 40)).astype(np.float32)

    def labels_and_distances(models):
        return kmeans(jax.random.key(0), models, 3, n_init=4).label, pairwise_l2(in_tight_pairs(models))

    actual, exchanges = on_spread(labels_and_distances, models)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), jax.jit(labels_and_distances)(models), actual
    )
    assert exchanges
    assert not any(exchange.in_loop for exchange in exchanges)


WIDE = 2 * blocks.width(N) + 5
"""Columns of more than one block of each walk, no multiple of the devices."""

WALKS = {
    "pairwise_cosine": pairwise_cosine,
    "pairwise_l2": pairwise_l2,
    "model_discrepancy": model_discrepancy,
    "cross_squared_l2": lambda models: cross_squared_l2(models, jnp.arange(3 * WIDE).reshape(3, WIDE) / WIDE),
    "coordinate_median": coordinate_median,
    "trimmed_mean": lambda models: trimmed_mean(models, 0.2),
    "mix": lambda models: mix(jnp.arange(len(models) ** 2).reshape(2 * [len(models)]) / len(models) ** 2, models),
    "weighted_mean": lambda models: weighted_mean(models, jnp.arange(float(len(models)))),
}


@pytest.mark.parametrize(
    ("name", "n"),
    [
        *((name, N + 1) for name in WALKS if name != "trimmed_mean"),  # whose walk is the median's
        ("mix", N),
        *slow_rows(("trimmed_mean", N + 1), ("pairwise_l2", N)),
    ],
)
def test_a_walk_over_columns_of_spread_models_has_no_exchange_a_step(name, n):
    """Left to XLA they are hundreds: a median has one in each step of a loop over bits within that over columns."""
    models = np.random.default_rng(0).normal(size=(n, WIDE)).astype(np.float32)
    actual, exchanges = on_spread(WALKS[name], models)
    np.testing.assert_allclose(actual, jax.jit(WALKS[name])(models), rtol=2e-5, atol=1e-5)
    assert {exchange.times for exchange in exchanges} <= {1}


@pytest.mark.parametrize("name", ["mix", *slow("pairwise_cosine", "model_discrepancy", "coordinate_median")])
def test_gradients_of_a_walk_over_spread_models_are_those_of_one_device(name):
    models = np.random.default_rng(0).normal(size=(N + 1, WIDE)).astype(np.float32)
    gradient = jax.grad(lambda models: jnp.sin(WALKS[name](models)).sum())
    np.testing.assert_allclose(on_spread(gradient, models)[0], jax.jit(gradient)(models), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "width"), [(N, 40), (N + 1, WIDE)])
def test_gradients_of_a_mean_of_spread_models_are_those_of_one_device(n, width):
    """A sum over devices has a transpose of its own, which must not count a device's part twice."""
    models = np.random.default_rng(0).normal(size=(n, width)).astype(np.float32)
    weight = jnp.arange(n, dtype=jnp.float32)
    gradient = jax.grad(lambda models, weight: jnp.square(weighted_mean(models, weight)).sum(), (0, 1))
    gradient_of_models = lambda models: gradient(models, weight)  # noqa: E731
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7),
        gradient_of_models(models),
        on_spread(gradient_of_models, models)[0],
    )
