"""Losses and sums over clients against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.client import client_loss, client_sums, cross_loss, predictor
from fljax.run.mesh import over_devices
from fljax.types import ModelTable
from tests import oracle
from tests.slow import slow


def expected_loss(params, data, i):
    rows = np.asarray(data.index)[i, : int(data.size[i])]
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    return oracle.training_loss(params, np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.y)[rows])


@pytest.fixture
def centers(key, model):
    return jax.vmap(model.init)(jax.random.split(key, 3))


@pytest.mark.parametrize("n_devices", [2, *slow(1)])
def test_cross_loss_equals_numpy(model, ragged, centers, n_devices):
    with over_devices(jax.devices()[:n_devices]):
        loss = np.asarray(jax.jit(lambda c, d: cross_loss(model, c, d))(centers, ragged))
    expected = [[expected_loss(tree.take(centers, k), ragged, i) for k in range(3)] for i in range(5)]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.parametrize("n_devices", [1, 2])
@pytest.mark.parametrize("batch_size", [3, *slow(1, 100)])
def test_shared_cluster_and_personal_models_agree(model, ragged, centers, n_devices, batch_size):
    label = jnp.asarray([2, 0, 0, 1, 2])

    def score(params, batch):
        return predictor(model)(params, batch.x)

    with over_devices(jax.devices()[:n_devices]):
        sums = jax.jit(lambda models: client_sums(score, models, ragged, batch_size))
        by_cluster, by_client = sums(ModelTable(centers, label)), sums(tree.own(tree.take(centers, label)))
    np.testing.assert_allclose(by_cluster, by_client, rtol=1e-5, atol=1e-5)


def test_personal_losses_equal_numpy(key, model, ragged):
    personal = jax.vmap(model.init)(jax.random.split(key, 5))
    expected = [expected_loss(tree.take(personal, i), ragged, i) for i in range(5)]
    np.testing.assert_allclose(client_loss(model, personal, ragged), expected, rtol=1e-5)


def test_a_client_without_examples_has_loss_zero(model, ragged, centers):
    data = ragged._replace(size=jnp.zeros(5, jnp.int32))
    np.testing.assert_array_equal(cross_loss(model, centers, data), 0)


def test_a_leaf_of_one_row_belongs_to_all(key, model, ragged):
    heads = jax.vmap(model.init)(jax.random.split(key, 5))
    first, *_ = model.layers
    shared = ModelTable(heads | {first: jax.tree.map(lambda leaf: leaf[:1], heads[first])}, jnp.arange(5))
    copied = heads | {first: jax.tree.map(lambda leaf: jnp.repeat(leaf[:1], 5, axis=0), heads[first])}
    losses = jax.jit(lambda models: client_loss(model, models, ragged))
    np.testing.assert_allclose(losses(shared), losses(copied), rtol=1e-6)
    one = ModelTable(jax.tree.map(lambda leaf: leaf[:1], heads), jnp.arange(5))  # nothing but leaves of one row
    np.testing.assert_allclose(losses(one), losses(tree.everyone(tree.row(heads, 0), 5)), rtol=1e-6)
    few = ModelTable(jax.tree.map(lambda leaf: leaf[:3], shared.params), jnp.asarray([2, 0, 1, 1, 2]))
    np.testing.assert_allclose(losses(few), losses(tree.take(copied, few.row)), rtol=1e-5)
