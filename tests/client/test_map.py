"""The map over clients: chunks, padding and devices change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import tree
from fljax.client.local import train_clients
from fljax.client.map import AT_ONCE, MANY, SMALL_MODEL, SMALL_SPLIT, _chunk, longest_beside, map_clients
from fljax.client.objectives import training_loss
from fljax.devices.collectives import collectives
from fljax.devices.mesh import over_devices, replicated
from fljax.models import logistic_regression
from fljax.types import ClientData, Examples, ModelTable, Work


def describe(pool, index, size, key, row):
    """Something of everything that a client is handed."""
    return index.sum(), size, jax.random.key_data(key), row["w"] * 2, pool.y[0]


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 8, None])
@pytest.mark.parametrize("n_devices", [1, 2])
def test_every_client_gets_its_own_rows(key, ragged, at_once, n_devices):
    keys = jax.random.split(key, 5)
    rows = {"w": jax.random.normal(key, (5, 3))}
    expected = (ragged.index.sum(axis=1), ragged.size, jax.random.key_data(keys), rows["w"] * 2, ragged.pool.y[:1])
    with over_devices(jax.devices()[:n_devices]):
        actual = jax.jit(lambda d, k, r: map_clients(describe, d, k, r, at_once=at_once))(ragged, keys, rows)
    for actual_rows, expected_rows in zip(actual[:-1], expected[:-1], strict=True):
        np.testing.assert_array_equal(actual_rows, expected_rows)


@pytest.mark.parametrize("n_clients", [1, 2, 3, 4, 9])
def test_any_number_of_clients_spreads_over_two_devices(key, ragged, n_clients):
    # jaxlib's partitioner misplaces rows of an uneven concatenation; sizes came out wrong for 9 clients on 2 devices.
    data = ragged._replace(
        index=jnp.arange(n_clients * 2, dtype=jnp.int32).reshape(-1, 2), size=jnp.arange(1, n_clients + 1)
    )
    with over_devices():
        index, size = jax.jit(lambda d: map_clients(lambda pool, index, size: (index, size), d))(data)
    np.testing.assert_array_equal(index, data.index)
    np.testing.assert_array_equal(size, data.size)


@pytest.mark.parametrize(
    ("n_clients", "weights", "capacity", "chunk_on_cpu"),
    [
        (MANY, (SMALL_MODEL,), 4, AT_ONCE),
        (MANY, (2, SMALL_MODEL // 2), SMALL_SPLIT // 9, AT_ONCE),
        (MANY - 1, (4,), 4, 1),
        (MANY, (SMALL_MODEL + 1,), 4, 1),
        (MANY, (4,), SMALL_SPLIT // 9 + 1, 1),
        (MANY, (3, 3, 2, 2), 4, 1),  # a convolution's
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_many_small_clients_go_side_by_side(ragged, n_clients, weights, capacity, chunk_on_cpu, shared):
    data = jax.eval_shape(
        lambda d: ClientData(d.pool, jnp.zeros((n_clients, capacity), jnp.int32), jnp.zeros(n_clients, jnp.int32)),
        ragged,  # whose inputs have 9 numbers
    )
    rows = jax.ShapeDtypeStruct((1 if shared else n_clients, *weights), jnp.float32)
    models = ModelTable(rows, jax.ShapeDtypeStruct((n_clients,), jnp.int32)) if shared else rows
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), n_clients))
    if jax.default_backend() == "cpu":
        assert _chunk(data, (keys, models), None) == chunk_on_cpu
        assert _chunk(data, (keys,), None) == 1  # nothing is known of a model
    assert _chunk(data, (keys, models), 3) == 3


@pytest.mark.slow
def test_many_small_clients_train_as_they_do_one_by_one(key):
    rng, sizes = np.random.default_rng(0), np.arange(MANY, dtype=np.int32) % 7
    pool = Examples(*map(jnp.asarray, (rng.normal(size=(90, 3)).astype(np.float32), rng.integers(2, size=90))))
    data = ClientData(pool, jnp.asarray(rng.integers(90, size=(MANY, 6)), jnp.int32), jnp.asarray(sizes))
    model = logistic_regression((3,), 2)

    def train(at_once):
        work = Work(2, 4, at_once)
        start, keys = jax.vmap(model.init)(jax.random.split(key, MANY)), jax.random.split(key, MANY)
        return train_clients(keys, start, data, training_loss(model), optax.sgd(0.1), work)

    actual, expected = jax.jit(train, static_argnums=0)(None), jax.jit(train, static_argnums=0)(1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actual, expected)
    if jax.default_backend() == "cpu":
        sizes_of_chunks = longest_beside(data, expected.params)
        order = np.argsort(-sizes, kind="stable").reshape(-1, AT_ONCE)
        np.testing.assert_array_equal(sizes_of_chunks[order], np.repeat(sizes[order[:, :1]], AT_ONCE, axis=1))
        np.testing.assert_array_equal(longest_beside(data), sizes)


@pytest.mark.parametrize("at_once", [1, 3])
def test_assigned_models_are_looked_up(key, ragged, at_once):
    centers = {"w": jax.random.normal(key, (3, 4))}
    label = jnp.asarray([2, 0, 0, 1, 2])
    actual = map_clients(lambda pool, i, s, p: p["w"], ragged, ModelTable(centers, label), at_once=at_once)
    np.testing.assert_array_equal(actual, centers["w"][label])


def test_one_shared_model_stays_unbatched(key, ragged):
    params = {"w": jnp.ones((4, 2))}
    shapes = []

    def record_shape(pool, index, size, params):
        shapes.append(params["w"].shape)
        return params["w"] @ jnp.ones(2)

    jaxpr = jax.make_jaxpr(lambda d: map_clients(record_shape, d, tree.everyone(params, 5), at_once=5))(ragged)
    assert shapes == [(4, 2)]
    assert "f32[5,4,2]" not in str(jaxpr)  # five copies of the model would be


def test_labels_that_the_server_computes_are_no_exchange_between_devices():
    """Two gathers otherwise: XLA spreads the computation of what each device needs but its own clients' part of."""
    pool = Examples(np.ones((24, 3), np.float32), np.zeros(24, np.int32))
    data = ClientData(pool, np.arange(24, dtype=np.int32).reshape(12, 2), np.full(12, 2, np.int32))

    def labels_of_clients(data, score):
        order = jnp.argsort(score)
        label = jnp.cumsum(order)[order] % 3
        return map_clients(lambda pool, index, size, label: label, data, label), label

    with over_devices() as mesh:
        assert mesh is not None
        arguments = replicated((data, np.arange(12, dtype=np.float32)[::-1].copy()), mesh)
        program = jax.jit(labels_of_clients).lower(*arguments).compile()
        np.testing.assert_array_equal(*program(*arguments))
    assert collectives(program, mesh.size) == []


def test_a_row_by_itself_is_that_of_all_clients_models():
    params = {"own": jnp.arange(6.0).reshape(3, 2), "shared": jnp.ones((1, 2))}
    rows = jnp.array([2, 0, -1, 1])  # -1, of a client of no cluster, stands for the same model in both
    models = [jax.jit(tree.row)(params, row) for row in rows]
    jax.tree.map(np.testing.assert_array_equal, tree.stack(models), tree.stacked(ModelTable(params, rows)))


@pytest.mark.parametrize("at_once", [0, 1.5, "2", True])
def test_clients_at_once_are_a_whole_number(ragged, at_once):
    with pytest.raises(ValueError, match=rf"^at_once={at_once!r} is not a positive whole number; choose at_once >= 1"):
        map_clients(lambda pool, index, size: size, ragged, at_once=at_once)


@pytest.mark.parametrize("at_once", [1, 3])
def test_data_of_numpy_are_mapped_over(ragged, at_once):
    sums = lambda pool, index, size: pool.y[index].sum() + size  # noqa: E731
    data = jax.tree.map(np.asarray, ragged)
    np.testing.assert_array_equal(map_clients(sums, data, at_once=at_once), map_clients(sums, ragged))
