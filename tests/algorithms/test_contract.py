"""What every algorithm promises, checked for all of them."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.run import simulate as simulate_module
from fljax.run.mesh import over_devices, replicated
from fljax.run.participation import sample_cohort
from fljax.run.simulate import as_traced, simulate, split_key
from fljax.run.train import run_chunk
from fljax.types import ClientData, Examples, State
from tests.algorithms.table import CASES

EACH = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def case(name, model, work):
    made = CASES[name]
    return made.make(model, work), as_traced(made.hyper)


def one_round(algorithm, hyper, federation, key, state=None, active=None):
    """(state before, state after, metrics, deployed) of one round with half of the clients."""
    state = algorithm.init(key, hyper, federation.train) if state is None else state
    cohort = sample_cohort(key, jnp.int32(0), federation, 4, None)
    if active is not None:
        cohort = cohort._replace(active=active)
    rows = State(state.server, tree.take(state.clients, cohort.ids))
    new, metrics = algorithm.round(key, hyper, rows, cohort)
    after = State(new.server, tree.put(state.clients, cohort.ids, new.clients))
    return state, after, metrics, algorithm.deploy(key, hyper, after, federation.train)


@EACH
def test_states_keep_their_structure(key, case, federation):
    before, after, metrics, deployed = jax.eval_shape(lambda k: one_round(*case, federation, k), key)
    chex.assert_trees_all_equal_shapes_and_dtypes(before, after)
    assert all(leaf.shape[0] == 8 for leaf in jax.tree.leaves(before.clients))
    assert all(value.shape in ((), (4,)) for value in metrics.values())
    assert {"loss", "ok", "uplink", "downlink"} <= metrics.keys()
    assert deployed.label.shape == (8,)


@EACH
def test_jit_and_no_jit_agree(key, case, federation):
    eager = one_round(*case, federation, key)
    compiled = jax.jit(lambda h, f, k: one_round(case[0], h, f, k))(case[1], federation, key)
    chex.assert_trees_all_close(compiled[1:], eager[1:], rtol=1e-5, atol=1e-6)


@EACH
def test_vmap_over_numbers_equals_single_runs(key, case, federation):
    algorithm, hyper = case
    both = jax.tree.map(lambda value: jnp.stack([value, value / 2]), hyper)
    run = jax.jit(lambda h: one_round(algorithm, h, federation, key)[1:])
    together = jax.jit(jax.vmap(lambda h: one_round(algorithm, h, federation, key)[1:]))(both)
    for point in range(2):
        alone = run(jax.tree.map(lambda value: value[point], both))
        chex.assert_trees_all_close(jax.tree.map(lambda v: v[point], together), alone, rtol=1e-5, atol=1e-6)


@EACH
def test_new_numbers_do_not_recompile(key, case, federation):
    algorithm, hyper = case
    simulate(algorithm, hyper, federation, key, 2)
    compiled = simulate_module._simulate._cache_size()
    simulate(algorithm, jax.tree.map(lambda value: 0.7 * value, hyper), federation, jax.random.key(5), 2)
    assert simulate_module._simulate._cache_size() == compiled


@EACH
def test_chunks_equal_the_whole_bit_for_bit(key, case, federation):
    algorithm, hyper = case

    def run(chunks):
        state, first, rows = jax.jit(algorithm.init)(split_key(key).init, hyper, federation.train), 0, []
        for count in chunks:
            arguments = (hyper, federation, key, None, jnp.int32(1), jnp.int32(5), state)
            state, metrics = run_chunk(algorithm, 4, 8, *arguments, jnp.int32(first), jnp.int32(count))
            rows.append(jax.tree.map(lambda value, count=count: np.asarray(value[:count]), metrics))
            first += count
        return jax.device_get(state), jax.tree.map(lambda *parts: np.concatenate(parts), *rows)

    chex.assert_trees_all_equal(run((5,)), run((1, 3, 1)))


@EACH
def test_two_devices_equal_one(key, case, federation):
    algorithm, hyper = case
    alone = jax.device_get(simulate(algorithm, hyper, federation, key, 3, participation=0.6))
    with over_devices() as mesh:
        both = simulate(algorithm, hyper, replicated(federation, mesh), key, 3, participation=0.6)
    chex.assert_trees_all_close(jax.device_get(both), alone, rtol=1e-5, atol=1e-5)


@EACH
def test_padding_never_matters(key, case, federation):
    def with_nan(data: ClientData) -> ClientData:
        pool = Examples(
            jnp.concatenate([data.pool.x, jnp.full_like(data.pool.x[:1], jnp.nan)]), jnp.pad(data.pool.y, (0, 1))
        )
        real = jnp.arange(data.index.shape[1])[None] < data.size[:, None]
        return ClientData(pool, jnp.where(real, data.index, data.pool.y.shape[0]), data.size)

    poisoned = federation._replace(train=with_nan(federation.train), test=with_nan(federation.test))
    chex.assert_trees_all_close(
        jax.device_get(simulate(*case, poisoned, key, 2, participation=0.5)),
        jax.device_get(simulate(*case, federation, key, 2, participation=0.5)),
        rtol=1e-6,
        atol=1e-7,
    )


@EACH
def test_a_dropped_client_never_matters(key, case, federation):
    algorithm, hyper = case
    state = algorithm.init(key, hyper, federation.train)
    active = jnp.asarray([True, False, True, True])
    absent = int(sample_cohort(key, jnp.int32(0), federation, 4, None).ids[1])
    rows = federation.train.index[absent, : int(federation.train.size[absent])]
    pool = federation.train.pool._replace(x=federation.train.pool.x.at[rows].set(jnp.nan))
    poisoned = federation._replace(train=federation.train._replace(pool=pool))
    clean = one_round(algorithm, hyper, federation, key, state, active)[1]
    dirty = one_round(algorithm, hyper, poisoned, key, state, active)[1]
    chex.assert_trees_all_close(dirty.server, clean.server, rtol=1e-6, atol=1e-7)


@EACH
def test_a_client_of_nan_is_counted_and_spoils_nothing(key, case, federation):
    rows = federation.train.index[2, :1]
    pool = federation.train.pool._replace(x=federation.train.pool.x.at[rows].set(jnp.nan))
    poisoned = federation._replace(train=federation.train._replace(pool=pool))
    state, metrics = simulate(*case, poisoned, key, 2)
    np.testing.assert_array_equal(metrics["ok"], np.tile(np.arange(8) != 2, (2, 1)))
    assert tree.all_finite(jax.tree.map(lambda leaf: leaf[None], jax.tree.map(jnp.asarray, state.server))).all() or (
        state.server == ()
    )


@EACH
def test_permuting_clients_permutes_results(key, name, model, work, federation):
    # Full batches: the order of a client's examples, the one thing that follows its id, then does not matter.
    algorithm = CASES[name].make(model, work._replace(batch_size=64))
    hyper, order = CASES[name].hyper, jnp.asarray([3, 7, 1, 0, 6, 2, 5, 4])

    def permuted(data: ClientData) -> ClientData:
        return data._replace(index=data.index[order], size=data.size[order])

    moved = federation._replace(
        train=permuted(federation.train), test=permuted(federation.test), group=federation.group[order]
    )
    _, straight = simulate(algorithm, hyper, federation, key, 3)
    _, shuffled = simulate(algorithm, hyper, moved, key, 3)
    np.testing.assert_allclose(shuffled["client_loss"], straight["client_loss"][:, order], rtol=1e-4, atol=1e-5)
    if "label" in straight:
        np.testing.assert_allclose(shuffled["ari"], straight["ari"], rtol=1e-6, atol=1e-6)


@EACH
def test_counters_of_communication(key, name, case, model, federation):
    metrics = one_round(*case, federation, key)[2]
    n_parameters = tree.size(model.init(key))
    assert metrics["uplink"] == CASES[name].uplink(n_parameters)
    assert metrics["downlink"] == CASES[name].downlink(n_parameters)
