"""Whole-data gradients against plain NumPy."""

from functools import cache

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import tree
from fljax.client import training_loss
from fljax.client.batch_gradients import gradient_variance
from fljax.client.finetune import adapt
from fljax.client.gradient import client_gradients
from fljax.client.sample import fresh_examples
from fljax.types import ClientData, Examples
from tests import oracle
from tests.oracle import rows_of
from tests.slow import slow


@cache
def gradients(model, batch_size):
    """Of one model for all five clients, compiled once."""

    def compute(key, params, data):
        keys = jax.random.split(key, 5)
        return client_gradients(keys, tree.everyone(params, 5), data, training_loss(model), batch_size)

    return jax.jit(compute)


@pytest.mark.parametrize("batch_size", [3, 64, None, *slow(1)])
def test_equals_numpy_whatever_the_batch(key, model, ragged, batch_size):
    params = jax.jit(model.init)(key)
    actual = jax.device_get(gradients(model, batch_size)(key, params, ragged).params)
    float64_params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for i in range(5):
        rows = rows_of(ragged, i)
        expected = oracle.gradient(
            float64_params, np.asarray(ragged.pool.x, np.float64)[rows], np.asarray(ragged.pool.y)[rows]
        )
        gradient = jax.tree.map(lambda leaf, i=i: leaf[i], actual)
        chex.assert_trees_all_close(gradient, expected, rtol=1e-5, atol=1e-6)


def test_a_non_finite_gradient_is_zero_and_not_ok(key, model, ragged):
    index = np.array(ragged.index)
    index[1, 0] = ragged.pool.y.shape[0] - 1
    gradient = jax.device_get(gradients(model, 3)(key, jax.jit(model.init)(key), ragged._replace(index=index)))
    np.testing.assert_array_equal(gradient.ok, [True, False, True, True, True])
    assert all(np.all(leaf[1] == 0) for leaf in jax.tree.leaves(gradient.params))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_gradients_of_narrow_parameters_are_summed_in_float32(key, dtype):
    """2000 batches: a sum in bfloat16 stands still at 256 of them, and one in float16 overflows."""
    n, expected = 20_000, np.array([10.0, 0.1, -3.0], np.float32)
    data = ClientData(Examples(jnp.ones((n, 1)), jnp.zeros(n)), jnp.arange(n)[None], jnp.full(1, n))

    def loss(params, batch, key):
        return (params.astype(jnp.float32) * expected).sum(), params

    gradient = client_gradients(jax.random.split(key, 1), jnp.ones((1, 3), dtype), data, loss, 10)
    assert bool(gradient.ok[0])
    assert gradient.params.dtype == dtype
    np.testing.assert_allclose(gradient.params[0].astype(np.float32), expected, rtol=4e-3)


def test_sizes_and_counts_that_are_none_are_refused(key, model, ragged):
    params = tree.everyone(jax.jit(model.init)(key), 5)
    with pytest.raises(ValueError, match="batch_size=0"):
        client_gradients(jax.random.split(key, 5), params, ragged, training_loss(model), 0)
    with pytest.raises(ValueError, match="batch_size=0"):
        adapt(key, params, ragged, training_loss(model), optax.sgd(0.1), 3, 0)
    with pytest.raises(ValueError, match="n_steps=-3"):
        adapt(key, params, ragged, training_loss(model), optax.sgd(0.1), -3, 4)
    with pytest.raises(ValueError, match="n_examples=-1"):
        fresh_examples(jax.random.split(key, 5), ragged, -1)


def test_squares_of_narrow_parameters_are_summed_in_float32():
    numbers = np.random.default_rng(0).normal(size=500) * 50
    params = {"fc": {"w": jnp.asarray(numbers, jnp.float16)}}
    rounded = np.asarray(params["fc"]["w"], np.float64)
    np.testing.assert_allclose(tree.squared_norm(params), (rounded**2).sum(), rtol=1e-5)  # beyond float16
    np.testing.assert_allclose(tree.dot(params, params), (rounded**2).sum(), rtol=1e-5)
    assert tree.squared_norm(params).dtype == jnp.float32


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_the_variance_of_narrow_gradients_is_that_of_float32(key, dtype):
    x = np.random.default_rng(0).normal(size=(8, 1)).astype(np.float32)
    data = ClientData(Examples(jnp.asarray(x), jnp.zeros(8, jnp.int32)), jnp.arange(8)[None], jnp.array([8], jnp.int32))

    def loss(params, batch, key):  # whose gradient, about 300, is a batch's mean 40 times and 300
        gradient_entry = (300 + 40 * batch.x.mean()).astype(dtype).astype(params["w"].dtype)
        return (gradient_entry * params["w"].sum()).astype(jnp.float32), params

    keys, models = jax.random.split(key, 1), {"w": jnp.ones((1, 500), dtype)}
    float32_models = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), models)
    actual, expected = (gradient_variance(keys, some_models, data, loss, 2) for some_models in (models, float32_models))
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
