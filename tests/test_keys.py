"""Keys derived in one loop are those of JAX's own functions, one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.data.synthetic import linear_groups
from fljax.keys import descend, uniforms
from fljax.run.one_round import Keys, round_keys, split_key
from fljax.run.simulate import simulate


def assert_same(keys: jax.Array, expected: jax.Array) -> None:
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(expected))


@pytest.fixture(scope="module", params=["threefry2x32", "rbg"])  # those of unsafe_rbg vary with what is beside them
def any_key(request):
    return jax.random.key(7, impl=request.param)


def test_a_path_is_folded_in_step_by_step(any_key):
    ids = jnp.array([[5, 0, 2], [9, 1, 5]], jnp.int32)
    keys = jax.jit(lambda key, r: descend(key, 3, r, ids))(any_key, jnp.int32(4))
    assert keys.shape == ids.shape
    parent = jax.random.fold_in(jax.random.fold_in(any_key, 3), 4)
    for position, i in np.ndenumerate(np.asarray(ids)):
        assert_same(keys[position], jax.random.fold_in(parent, i))


def test_a_path_without_an_axis_is_one_key(any_key):
    descended = descend(any_key, 2, 2**32 - 1)
    assert descended.shape == ()
    assert_same(descended, jax.random.fold_in(jax.random.fold_in(any_key, 2), 2**32 - 1))


def test_each_path_may_end_earlier(any_key):
    keys = descend(any_key, jnp.array([1, 1, 1]), jnp.array([4, 5, 6]), 2, depth=jnp.array([0, 1, 3]))
    first = jax.random.fold_in(any_key, 1)
    assert_same(keys, jnp.stack([any_key, first, jax.random.fold_in(jax.random.fold_in(first, 6), 2)]))


def test_raw_keys_give_raw_ones(key):
    raw = jax.random.PRNGKey(7)
    descended = jax.jit(lambda key: descend(key, 3, jnp.arange(4)))(raw)
    np.testing.assert_array_equal(descended, jax.random.key_data(descend(jax.random.key(7), 3, jnp.arange(4))))
    np.testing.assert_array_equal(
        round_keys(raw, jnp.int32(2)).server, jax.random.key_data(round_keys(jax.random.key(7), jnp.int32(2)).server)
    )


def test_it_maps_over_keys(key):
    keys = jax.random.split(key, 3)
    assert_same(
        jax.vmap(lambda key: descend(key, 1, jnp.arange(2)))(keys),
        jnp.stack([descend(k, 1, jnp.arange(2)) for k in keys]),
    )


def test_with_threefry_the_last_step_is_a_split(key):
    assert_same(descend(key, 6, jnp.arange(5)), jax.random.split(jax.random.fold_in(key, 6), 5))


def test_the_keys_of_a_round_are_the_runs_split_by_use(key):
    keys, round = split_key(key), jnp.int32(11)
    assert_same(jnp.stack(keys), jax.random.split(key, len(Keys._fields)))
    of_round = jax.jit(round_keys)(key, round)
    assert_same(jnp.stack(of_round.cohort), jax.random.split(jax.random.fold_in(keys.cohort, round), 3))
    assert_same(of_round.server, jax.random.fold_in(keys.server, round))


@pytest.mark.parametrize("shape", [(), (3, 2)])
def test_each_row_of_random_numbers_is_of_its_own_key(key, shape):
    keys = jax.random.split(key, 4)
    expected = [jax.random.uniform(one, shape, jnp.float32) for one in keys]
    np.testing.assert_array_equal(jax.jit(lambda keys: uniforms(keys, *shape))(keys), expected)


def test_no_key_is_used_twice(key):
    model, federation = fljax.MODELS["logistic_regression"]((4, 4, 1), 4), linear_groups(9, 3, examples=30)
    fedavg = fljax.fedavg(model, fljax.Work(1, 6))
    with jax.debug_key_reuse(True):
        _, metrics = simulate(fedavg, fljax.fedavg.Hyper(lr=0.1), federation, key, 2, participation=0.5, dropout=0.2)
    assert np.isfinite(metrics["loss"]).any()
