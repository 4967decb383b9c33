"""Whole-data gradients against plain NumPy."""

from functools import cache

import chex
import jax
import numpy as np
import pytest

from fljax import tree
from fljax.client import training_loss
from fljax.client.gradient import client_gradients
from tests import oracle
from tests.slow import slow


@cache
def gradients(model, batch_size):
    """Of one model for all five clients, compiled once."""

    def found(key, params, data):
        keys = jax.random.split(key, 5)
        return client_gradients(keys, tree.everyone(params, 5), data, training_loss(model), batch_size)

    return jax.jit(found)


@pytest.mark.parametrize("batch_size", [3, 64, *slow(1)])
def test_equals_numpy_whatever_the_batch(key, model, ragged, batch_size):
    params = jax.jit(model.init)(key)
    sent = jax.device_get(gradients(model, batch_size)(key, params, ragged).params)
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    for i in range(5):
        rows = np.asarray(ragged.index)[i, : int(ragged.size[i])]
        expected = oracle.gradient(wide, np.asarray(ragged.pool.x, np.float64)[rows], np.asarray(ragged.pool.y)[rows])
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], sent)
        chex.assert_trees_all_close(mine, expected, rtol=1e-5, atol=1e-6)


def test_a_non_finite_gradient_is_zero_and_not_ok(key, model, ragged):
    index = np.array(ragged.index)
    index[1, 0] = ragged.pool.y.shape[0] - 1
    sent = jax.device_get(gradients(model, 3)(key, jax.jit(model.init)(key), ragged._replace(index=index)))
    np.testing.assert_array_equal(sent.ok, [True, False, True, True, True])
    assert all(np.all(leaf[1] == 0) for leaf in jax.tree.leaves(sent.params))
