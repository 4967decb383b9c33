"""Local training against plain NumPy, and the promises about raggedness, keys and non-finite clients."""

from functools import cache, partial
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fljax
from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.client import Elementwise, local_optimizer, proximal, train_clients, training_loss
from fljax.client.gradient import client_gradients
from fljax.client.local import useful_steps
from fljax.client.minibatches import batch_rows, shuffled
from fljax.client.steps import n_steps, passes_of
from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.devices.mesh import over_devices
from fljax.models import from_linen, mlp
from fljax.numbers import LocalHyper
from fljax.types import ClientData, Examples, ModelTable, Work
from tests import oracle
from tests.oracle import as_float64
from tests.slow import slow, slow_rows


@jax.jit
def keys_of(key):
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(5))


order_of, rows_of = jax.jit(shuffled), jax.jit(batch_rows, static_argnums=3)


@cache
def _init(model):
    return jax.jit(model.init)


def start_params(model, key):
    return jax.device_get(_init(model)(key))


def row(params, i):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[i], params)


@cache
def trainer(model, work, lr=0.1, momentum=None, mu=None):
    """``(keys, params, data) -> trained``, compiled once: SGD from one model for all five clients."""
    loss = training_loss(model) if mu is None else proximal(training_loss(model), jnp.float32(mu))

    def train(keys, params, data):
        start = tree.everyone(params, 5)
        anchor = () if mu is None else (start,)
        return train_clients(keys, start, data, loss, optax.sgd(lr, momentum), work, *anchor)

    return jax.jit(train)


def batches_of_client(key, data, i, work):
    """The batches of client i, as the library draws them, without the filling."""
    batches, size = [], np.asarray(data.size)[i]
    for key_epoch in jax.random.split(key, work.epochs or work.local_steps):
        order = order_of(jax.random.split(key_epoch)[0], np.asarray(data.index)[i], size)
        for step in range(-(-int(size) // work.batch_size)):
            rows, weight = rows_of(order, size, np.int32(step), work.batch_size)
            rows = np.asarray(rows)[np.asarray(weight) > 0]
            if work.drop_last and len(rows) < work.batch_size:
                continue
            batches.append((np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.y)[rows]))
    return batches[: work.local_steps]


@pytest.mark.parametrize(("momentum", "drop_last"), [(None, False), (0.9, False), (None, True)])
def test_equals_numpy(key, model, ragged, momentum, drop_last):
    work, keys = Work(epochs=3, batch_size=4, drop_last=drop_last), keys_of(key)
    trained = trainer(model, work, momentum=momentum)(keys, start_params(model, key), ragged)
    for i in range(5):
        batches = batches_of_client(keys[i], ragged, i, work)
        expected = oracle.local_sgd(as_float64(start_params(model, key)), batches, 0.1, momentum or 0.0)
        chex.assert_trees_all_close(row(trained.params, i), expected, rtol=1e-5, atol=1e-6)
    assert trained.ok.all()


@pytest.mark.parametrize("drop_last", [False, True])
def test_local_steps_are_as_many_for_all_clients(key, model, ragged, drop_last):
    """Five steps of clients with one to five batches, or without any: whole passes, and one that ends halfway."""
    work, keys = Work(epochs=None, batch_size=4, drop_last=drop_last, local_steps=5), keys_of(key)
    trained = trainer(model, work)(keys, start_params(model, key), ragged)
    n_taken = []
    for i in range(5):
        batches, params, total = batches_of_client(keys[i], ragged, i, work), as_float64(start_params(model, key)), 0.0
        for x, y in batches:
            total += oracle.training_loss(params, x, y) * len(y)
            params = oracle.local_sgd(params, [(x, y)], 0.1)
        chex.assert_trees_all_close(row(trained.params, i), params, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(trained.loss[i], total / max(sum(len(y) for _, y in batches), 1), rtol=1e-5)
        n_taken.append(len(batches))
    assert set(n_taken) == ({0, 5} if drop_last else {5})
    np.testing.assert_array_equal(n_steps(ragged.size, work), n_taken)


def test_as_many_local_steps_as_epochs_have_are_the_same_training(key, model, ragged):
    """All clients have the batches of one size, so that both end together; half the work ends halfway."""
    alike, start = ragged._replace(size=jnp.full(5, 7)), tree.everyone(start_params(model, key), 5)
    index = jnp.arange(35, dtype=jnp.int32).reshape(5, 7) % ragged.pool.y.shape[0]

    @partial(jax.jit, static_argnums=0)
    def train(work, effort):
        data, loss = alike._replace(index=index), training_loss(model)
        return train_clients(keys_of(key), start, data, loss, optax.sgd(0.1, 0.9), work, effort=effort)

    for effort in (None, jnp.asarray([0.1, 0.5, 0.6, 0.9, 1.0])):
        of_epochs, of_steps = (train(work, effort) for work in (Work(3, 4), Work(None, 4, 2, local_steps=6)))
        chex.assert_trees_all_close(of_steps, of_epochs, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_bfloat16_parameters_are_trained_with_momentum(key, model, ragged):
    work, start = Work(epochs=2, batch_size=4), start_params(model, key)

    @jax.jit
    def train(params, momentum):  # traced, as every number of a method is
        optimizer = optax.sgd(0.1, momentum)
        return train_clients(keys_of(key), tree.everyone(params, 5), ragged, training_loss(model), optimizer, work)

    with jax.numpy_dtype_promotion("standard"):
        trained = train(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), start), jnp.float32(0.9))
    assert {leaf.dtype for leaf in jax.tree.leaves(trained.params)} == {jnp.dtype("bfloat16")}
    expected = trainer(model, work, momentum=0.9)(keys_of(key), start, ragged)
    chex.assert_trees_all_close(as_float64(trained.params), as_float64(expected.params), atol=0.05)


def test_proximal_equals_numpy(key, model, ragged):
    work, keys = Work(epochs=2, batch_size=4), keys_of(key)
    trained = trainer(model, work, mu=0.7)(keys, start_params(model, key), ragged)
    for i in range(5):
        batches = batches_of_client(keys[i], ragged, i, work)
        expected = oracle.local_sgd(as_float64(start_params(model, key)), batches, 0.1, mu=0.7)
        chex.assert_trees_all_close(row(trained.params, i), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("drop_last", [False, True])
def test_reported_loss_is_the_mean_over_examples(key, model, ragged, drop_last):
    work, keys = Work(epochs=1, batch_size=4, drop_last=drop_last), keys_of(key)
    trained = trainer(model, work)(keys, start_params(model, key), ragged)
    params, total = as_float64(start_params(model, key)), 0.0
    for x, y in batches_of_client(keys[0], ragged, 0, work):
        total += oracle.training_loss(params, x, y) * len(y)
        params = oracle.local_sgd(params, [(x, y)], 0.1)
    np.testing.assert_allclose(trained.loss[0], total / (4 if drop_last else 7), rtol=1e-5)


@pytest.mark.parametrize(("at_once", "n_devices"), [(3, 2), (5, 1), *slow_rows((1, 2), (3, 1), (None, 2))])
def test_chunks_and_devices_change_nothing(key, model, ragged, at_once, n_devices):
    def run(at_once, n_devices):
        start = tree.everyone(start_params(model, key), 5)
        work = Work(2, 4, at_once)
        with over_devices(jax.devices()[:n_devices]):
            train = jax.jit(lambda k, d: train_clients(k, start, d, training_loss(model), optax.sgd(0.1), work))
            return jax.device_get(train(keys_of(key), ragged))

    expected = trainer(model, Work(2, 4))(keys_of(key), start_params(model, key), ragged)
    chex.assert_trees_all_close(run(at_once, n_devices), jax.device_get(expected), rtol=1e-5, atol=1e-6)


def test_permuting_clients_permutes_results(key, model, ragged):
    order, start = np.asarray([3, 0, 4, 1, 2]), start_params(model, key)
    train = trainer(model, Work(2, 4, 2))
    permuted_data = ragged._replace(index=np.asarray(ragged.index)[order], size=np.asarray(ragged.size)[order])
    a, b = jax.device_get((train(keys_of(key)[order], start, permuted_data), train(keys_of(key), start, ragged)))
    chex.assert_trees_all_close(a, row(b, order), rtol=1e-6, atol=1e-7)


def test_capacity_never_matters(key, model, ragged):
    longer_data = ragged._replace(index=np.pad(ragged.index, ((0, 0), (0, 9)), constant_values=2**30))
    train, arguments = trainer(model, Work(2, 4)), (keys_of(key), start_params(model, key))
    chex.assert_trees_all_equal(train(*arguments, longer_data), train(*arguments, ragged))


def test_steps_are_the_clients_own():
    sizes = jnp.asarray([0, 1, 4, 5, 20])
    np.testing.assert_array_equal(n_steps(sizes, Work(epochs=3, batch_size=4)), [0, 3, 3, 6, 15])
    np.testing.assert_array_equal(n_steps(sizes, Work(epochs=3, batch_size=None)), [0, 3, 3, 3, 3])
    np.testing.assert_array_equal(n_steps(sizes, Work(epochs=3, batch_size=4, drop_last=True)), [0, 0, 3, 3, 15])
    np.testing.assert_array_equal(n_steps(sizes, Work(None, 4, local_steps=7)), [0, 7, 7, 7, 7])
    np.testing.assert_array_equal(n_steps(sizes, Work(None, 4, drop_last=True, local_steps=7)), [0, 0, 7, 7, 7])


def test_passes_are_the_uses_of_an_example():
    sizes = np.asarray([0, 4, 8])
    assert passes_of(Work(3, 4), sizes) == 3
    assert passes_of(Work(None, 4, local_steps=6), sizes) == (6 * 4 + 6 * 4) / 12
    assert passes_of(Work(None, None, local_steps=6), sizes) == 6


def test_a_part_of_the_work_is_of_whole_batches_if_others_are_dropped(key, model, ragged):
    """Half of two epochs is the first one, whose loss is the mean over the examples of its whole batches."""
    half = jnp.full(5, 0.5)
    loss, optimizer = training_loss(model), optax.sgd(0.1)
    start = tree.everyone(start_params(model, key), 5)

    @partial(jax.jit, static_argnums=0)
    def train(work, keys, effort):
        return train_clients(keys, start, ragged, loss, optimizer, work, effort=effort)

    part = train(Work(2, 4, drop_last=True), keys_of(key), half)
    for i in np.flatnonzero(np.asarray(ragged.size) >= 4):
        first_epoch = batches_of_client(keys_of(key)[i], ragged, i, Work(2, 4, drop_last=True))
        first_epoch = first_epoch[: len(first_epoch) // 2]
        params, total = as_float64(start_params(model, key)), 0.0
        for x, y in first_epoch:
            total += oracle.training_loss(params, x, y) * len(y)
            params = oracle.local_sgd(params, [(x, y)], 0.1)
        chex.assert_trees_all_close(row(part.params, i), params, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(part.loss[i], total / (4 * len(first_epoch)), rtol=1e-5)


@pytest.mark.parametrize("n_devices", [1, 2])
@pytest.mark.parametrize("at_once", [1, 2, 3, None])
def test_useful_steps_by_hand(ragged, at_once, n_devices):
    size, batch_size = np.asarray(ragged.size), 4
    steps = -(-size // batch_size)
    chunk = min(at_once or 1, -(-5 // n_devices))
    share = -(-5 // (n_devices * chunk)) * chunk  # clients of the first device
    n_executed = 0
    for steps_of_device in (steps[:share], steps[share:]):
        sorted_steps = np.sort(steps_of_device)[::-1]
        n_executed += sum(
            len(steps_of_chunk) * steps_of_chunk.max()
            for i in range(0, len(sorted_steps), chunk)
            if (steps_of_chunk := sorted_steps[i : i + chunk]).size
        )
    with over_devices(jax.devices()[:n_devices]):
        actual = jax.jit(lambda data: useful_steps(data, Work(2, batch_size, at_once)))(ragged)
    assert float(actual) == pytest.approx(steps.sum() / n_executed)
    assert at_once not in (1, None) or float(actual) == 1  # on a CPU no client waits for another


@pytest.mark.parametrize(
    ("partition", "at_once", "least"),
    [("dirichlet", None, 1.0), ("log_normal", None, 1.0), ("dirichlet", 2, 0.95), ("log_normal", 2, 0.95)],
)
def test_ragged_partitions_waste_little(partition, at_once, least):
    train, test = load("digits")
    options = {"dirichlet": {"beta": 0.2, "min_size": 1}, "log_normal": {}}[partition]
    data = PARTITIONS[partition](train, test, 30, **options).train
    size = np.asarray(data.size)
    assert size.max() > 2 * size.mean()  # padding to the longest would waste half
    assert float(jax.jit(useful_steps, static_argnums=1)(data, Work(1, 4, at_once))) >= least


def test_each_epoch_sees_every_example_once(key):
    index, size = np.arange(100, 130, dtype=np.int32), np.int32(23)
    order = order_of(key, index, size)
    all_rows = []
    for step in range(6):
        rows, weight = rows_of(order, size, np.int32(step), 4)
        all_rows += np.asarray(rows)[np.asarray(weight) > 0].tolist()
    assert sorted(all_rows) == list(range(100, 123))
    assert all_rows != list(range(100, 123))
    other_order = order_of(jax.random.key(1), index, size)
    assert not np.array_equal(np.asarray(order)[:23], np.asarray(other_order)[:23])


@pytest.mark.parametrize("capacity", [40, 513, 5000, *slow(512)])
def test_the_order_is_that_of_one_uniform_number_an_entry(key, capacity):
    # 5,000 numbers of 23 bits tie now and then; a table's length and its rest never matter.
    index = np.arange(capacity, dtype=np.int32)[::-1]
    numbers = np.asarray(jax.random.uniform(key, (capacity,)))
    for size in (0, 1, 37, capacity):
        order = np.asarray(order_of(key, index, np.int32(size)))[:size]
        np.testing.assert_array_equal(order, index[np.argsort(numbers[:size], kind="stable")])


@pytest.mark.parametrize("work", [Work(5, None), Work(1, 2)])
def test_every_step_of_every_epoch_draws_for_itself(key, ragged, work):
    """Each step adds its draw to the first parameter, and the square of it to the second."""

    def loss(params, batch, key):
        number = jax.random.uniform(key, (), jnp.float32)
        return -params @ jnp.stack([number, number**2]), params

    start = jnp.zeros((5, 2))
    train = jax.jit(lambda keys: train_clients(keys, start, ragged, loss, optax.sgd(1.0), work).params)
    mean, mean_square = np.asarray(train(keys_of(key))).T / n_steps(np.asarray(ragged.size), work)
    has_several_steps = np.asarray(ragged.size) > (2 if work.epochs == 1 else 0)
    assert (mean_square - mean**2 > 1e-3)[has_several_steps].all()
    assert len(set(mean.tolist())) == 5


def test_a_client_without_examples_stays_as_it_started(key, model, ragged):
    data = ragged._replace(size=np.where(np.arange(5) == 2, 0, ragged.size).astype(np.int32))
    trained = trainer(model, Work(2, 4))(keys_of(key), start_params(model, key), data)
    chex.assert_trees_all_equal(row(trained.params, 2), start_params(model, key))
    assert trained.ok[2]
    assert trained.loss[2] == 0


def test_a_non_finite_client_comes_back_as_it_started(key, model, ragged):
    data_with_nan = ragged._replace(index=np.array(ragged.index))
    data_with_nan.index[2, 0] = ragged.pool.y.shape[0] - 1  # a row of NaN
    train, arguments = trainer(model, Work(2, 4)), (keys_of(key), start_params(model, key))
    trained_with_nan, trained = train(*arguments, data_with_nan), train(*arguments, ragged)
    np.testing.assert_array_equal(trained_with_nan.ok, [True, True, False, True, True])
    chex.assert_trees_all_equal(row(trained_with_nan.params, 2), start_params(model, key))
    other_clients = [0, 1, 3, 4]
    chex.assert_trees_all_equal(row(trained_with_nan.params, other_clients), row(trained.params, other_clients))


def test_a_diverging_learning_rate_is_caught(key, model, ragged):
    trained = trainer(model, Work(4, 4), lr=1e38)(keys_of(key), start_params(model, key), ragged)
    # The client with one example may fit it in one step, dead units and all; those with several cannot.
    assert not np.asarray(trained.ok)[np.asarray(ragged.size) > 1].any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained.params))


def test_a_loss_that_is_no_number_is_no_result_though_the_parameters_are(key, ragged):
    def loss(params, batch, key):
        return params.sum() + jnp.where(batch.x[0].sum() < 0, jnp.inf, 0.0), params

    start, data = jnp.zeros((5, 2)), ragged._replace(size=jnp.ones(5, jnp.int32))
    trained = jax.jit(lambda keys: train_clients(keys, start, data, loss, optax.sgd(1.0), Work(1, 2)))(keys_of(key))
    is_finite = np.asarray(ragged.pool.x)[np.asarray(ragged.index)[:, 0]].sum(axis=(1, 2, 3)) >= 0
    assert 0 < is_finite.sum() < 5
    np.testing.assert_array_equal(trained.ok, is_finite)
    np.testing.assert_array_equal(trained.params, np.where(is_finite, -1.0, 0.0)[:, None] * np.ones(2))


def test_weight_decay_enters_the_gradient_after_its_clip_and_before_the_momentum():
    lr, momentum, decay, max_norm = 0.1, 0.5, 0.3, 2.0
    numbers = {"lr_of": lambda round: lr, "momentum": momentum, "weight_decay": decay, "max_norm": max_norm}
    optimizer = local_optimizer(SimpleNamespace(**numbers), Work(1, 4), jnp.int32(0))
    params, expected, velocity = jnp.asarray([4.0, -2.0]), np.array([4.0, -2.0]), np.zeros(2)
    state = optimizer.init(params)
    for gradient in (np.array([3.0, 4.0]), np.array([0.1, -0.2])):  # longer than the norm, and shorter
        updates, state = optimizer.update(jnp.asarray(gradient, jnp.float32), state, params)
        params = optax.apply_updates(params, updates)
        velocity = momentum * velocity + gradient * min(1, max_norm / np.linalg.norm(gradient)) + decay * expected
        expected = expected - lr * velocity
        np.testing.assert_allclose(params, expected, rtol=1e-6)


def test_numbers_of_numpy_are_work(key, model, ragged):
    work = Work(np.int64(1), np.int32(4))
    trained = trainer(model, work)(keys_of(key), start_params(model, key), ragged)
    chex.assert_trees_all_equal(trained, trainer(model, Work(1, 4))(keys_of(key), start_params(model, key), ragged))


@pytest.mark.parametrize("batch_size", [64, None])
def test_a_full_batch_is_gradient_descent(key, model, ragged, batch_size):
    trained = trainer(model, Work(2, batch_size))(keys_of(key), start_params(model, key), ragged)
    for i, size in enumerate(ragged.size):
        rows = np.asarray(ragged.index)[i, :size]
        full_batch = (np.asarray(ragged.pool.x, np.float64)[rows], np.asarray(ragged.pool.y)[rows])
        expected = oracle.local_sgd(as_float64(start_params(model, key)), [full_batch] * 2, 0.1)
        chex.assert_trees_all_close(row(trained.params, i), expected, rtol=1e-5, atol=1e-6)


def test_a_batch_without_a_size_has_as_many_places_as_the_longest_client():
    rows, weight = rows_of(np.arange(7, dtype=np.int32), np.int32(3), np.int32(0), None)
    np.testing.assert_array_equal(rows, [0, 1, 2, 0, 1, 2, 0])
    np.testing.assert_array_equal(weight, [1, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize("field", ["epochs", "batch_size", "at_once", "local_steps"])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_work_out_of_range_is_refused(key, model, ragged, field, value):
    work = Work(1, 4)._replace(**{field: value})
    with pytest.raises(ValueError, match=rf"{field}={value} is not a positive whole number"):
        train_clients(
            keys_of(key), tree.everyone(start_params(model, key), 5), ragged, training_loss(model), optax.sgd(0.1), work
        )


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Work(1, 4, drop_last=1), "drop_last=1 of work is neither True nor False"),
        (Work(1, None, drop_last=True), "drop_last=True has no effect with batch_size=None"),
        (Work(1, 4, local_steps=2), "epochs=1 and local_steps=2 of work: .*; give one, and None for the other"),
        (Work(None, 4), "epochs=None and local_steps=None of work"),
    ],
)
def test_work_that_contradicts_itself_is_refused(model, work, message):
    with pytest.raises(ValueError, match=message):
        fedavg(model, work)


@pytest.mark.parametrize("method", [fljax.fedrep, fljax.pflda, fljax.fedpac])
def test_methods_of_phases_count_epochs(model, method):
    with pytest.raises(ValueError, match=r"local_steps=2: \S+ counts epochs; give a number of epochs instead"):
        method(model, Work(None, 4, local_steps=2))
    assert method(model, Work(None, 4, local_steps=2).for_epochs(3)).about.work == Work(3, 4)


def test_clients_that_all_lack_a_batch_are_refused(model):
    federation = PARTITIONS["iid"](*load("digits"), n_clients=90, seed=0)
    algorithm, hyper = fedavg(mlp((8, 8, 1), (4,), 10), Work(1, 64, drop_last=True)), LocalHyper(lr=0.1)
    largest = int(federation.train.size.max())
    with pytest.raises(ValueError, match=f"no client a batch of batch_size=64: the largest has {largest} examples"):
        fljax.simulate(algorithm, hyper, federation, jax.random.key(0), 1)


@partial(jax.jit, static_argnums=0)
def _step_by_hand(optimizer, kernel, x, y):
    """One step of ``optimizer`` on the mean squared error of a linear model, the kernel as it is."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.square(x @ w - y).mean())(kernel)
    optimizer = optax.with_extra_args_support(optimizer)
    with jax.numpy_dtype_promotion("standard"):
        updates, _ = optimizer.update(gradient, optimizer.init(kernel), kernel, value=loss)
    return optax.apply_updates(kernel, updates)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.adaptive_grad_clip(0.01), optax.sgd(0.1)),
        optax.contrib.muon(0.1),
        optax.chain(optax.stateless(lambda g, w: g * (jnp.arange(24.0)[:, None] > 3)), optax.sgd(0.1)),
        Elementwise(*optax.adam(0.1)),
        *slow(
            optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()),
            Elementwise(*optax.sgd(0.1)),
            Elementwise(*optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())),
        ),
    ],
    ids=["clipped by unit", "muon", "masked rows", "adam", "on a plateau", "sgd", "sgd on a plateau"],
)
def test_an_optimizer_sees_the_rows_and_columns_of_narrow_kernels(optimizer):
    rng = np.random.default_rng(0)
    x, y, kernel = (rng.normal(size=shape).astype(np.float32) for shape in ((6, 24), (6, 2), (24, 2)))
    rows = np.arange(6, dtype=np.int32)[None]
    data = jax.tree.map(jnp.asarray, ClientData(Examples(x, y), rows, np.full(1, 6, np.int32)))

    def loss(params, batch, key):
        return jnp.square(batch.x @ params - batch.y).mean(), params

    train = jax.jit(lambda keys, start: train_clients(keys, start, data, loss, optimizer, Work(1, 6)))
    with jax.numpy_dtype_promotion("standard"):
        trained = jax.device_get(train(jax.random.split(jax.random.key(0), 1), kernel[None]))
    np.testing.assert_allclose(trained.params[0], _step_by_hand(optimizer, kernel, x, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_adam_trains_parameters_of_float16(ragged, optimizer):
    model = mlp((3, 3, 1), (6,), 4, dtype=jnp.float16)
    hyper = fedavg.Hyper(lr=0.01)
    start = jax.tree.map(lambda leaf: leaf.astype(jnp.float16), start_params(model, jax.random.key(0)))

    @jax.jit
    def train(keys, start):
        float16_adam = local_optimizer(hyper, Work(1, 4, optimizer=optimizer), jnp.int32(0))
        return train_clients(keys, tree.everyone(start, 5), ragged, training_loss(model), float16_adam, Work(3, 4))

    with jax.numpy_dtype_promotion("standard"):
        trained = train(keys_of(jax.random.key(1)), start)
    assert np.asarray(trained.ok).all()
    change = np.asarray(trained.params["fc2"]["kernel"], np.float32) - np.asarray(start["fc2"]["kernel"], np.float32)
    assert 0.005 < np.abs(change).max() < 0.5


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_derivative_of_adams_step_is_finite_where_the_gradient_is_zero(optimizer):
    """The step is ``lr g / (|g| + 1e-8)``, whose derivative in g is 0 away from g = 0: a pixel that is always empty."""
    gradient = np.array([0.0, 2.0], np.float32)

    @jax.jit
    def slope(lr):
        def step(lr):
            adam = local_optimizer(LocalHyper(lr=lr), Work(1, 4, optimizer=optimizer), jnp.int32(0))
            return adam.update(lr * gradient, adam.init(gradient), np.zeros(2, np.float32))[0]

        return jax.jvp(step, (lr,), (jnp.ones_like(lr),))

    with jax.numpy_dtype_promotion("standard"):  # optax's derivative raises a float to an int count
        steps, slopes = slope(np.float32(0.1))
    np.testing.assert_allclose(steps, [0, -0.1], atol=1e-6)
    np.testing.assert_allclose(slopes, [0, -1], atol=1e-5)


def test_running_statistics_of_two_axes_are_left_as_they_lie():
    class Counts(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            count = self.variable("batch_stats", "seen", jnp.zeros, (16, 2))
            if train and not self.is_initializing():
                count.value = count.value + 1
            return nn.Dense(2)(x)

    model = from_linen(Counts(), (24,))
    x = np.random.default_rng(0).normal(size=(6, 24)).astype(np.float32)
    rows, size = np.arange(6, dtype=np.int32)[None], np.full(1, 6, np.int32)
    data = jax.tree.map(jnp.asarray, ClientData(Examples(x, np.zeros(6, np.int32)), rows, size))

    @jax.jit
    def train(keys):
        start, loss = tree.everyone(model.init(jax.random.key(1)), 1), training_loss(model)
        return train_clients(keys, start, data, loss, Elementwise(*optax.sgd(0.1)), Work(2, 2))

    trained = train(jax.random.split(jax.random.key(0), 1))
    np.testing.assert_array_equal(trained.params["batch_stats"]["seen"], np.full((1, 16, 2), 6.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": "one"}, r"\['fc1'\]\['bias'\] has shape \(6,\) for 5 clients; .* fljax.tree.everyone\(params, 5\)"),
        ({"key": "one"}, r"an array has shape \(\) for 5 clients"),
        ({"key": "three"}, r"an array has shape \(3,\) for 5 clients"),
        ({"key": "numbers"}, r"^key has dtype int32; give a random key for each client, as jax.random.split"),
        ({"key": "none"}, "^key is of type NoneType; give a random key for each client"),
        ({"optimizer": "sgd"}, "optimizer is 'sgd', not a GradientTransformation; make one by fljax.client"),
        ({"loss": "model"}, "loss is of type Model, not a function; give fljax.client.training_loss"),
        (
            {"loss": "outputs"},
            r"loss does not take \(params, batch, key\), .*; give fljax.client.training_loss\(model\)",
        ),
        ({"loss": "labels"}, r"loss does not take \(params, batch, key\)"),
        ({"data": "all"}, "data is of type Federation, not a ClientData; give a split, such as federation.train"),
        ({"start": "table"}, r"a ModelTable with leaves of \[\(4,\), .* give params \(rows, ...\) or \(1, ...\)"),
        ({"own": "one"}, r"\['fc1'\]\['bias'\] has shape \(6,\) for 5 clients"),
        ({"own": "four"}, r"the row of a ModelTable has shape \(4,\) for 5 clients"),
    ],
)
def test_arguments_that_are_not_for_every_client_are_refused(key, model, ragged, change, message):
    params = start_params(model, key)
    wrong_values = {
        "start": {"one": params, "table": ModelTable(params, np.zeros(5, np.int32))},
        "key": {"one": key, "three": jax.random.split(key, 3), "numbers": jnp.arange(5, dtype=jnp.int32), "none": None},
        "optimizer": {"sgd": "sgd"},
        "loss": {"model": model, "outputs": model.loss, "labels": fljax.multi_label(model).loss},
        "data": {"all": fljax.Federation(ragged, None, ragged, None, None)},
        "own": {"one": params, "four": tree.everyone(params, 4)},
    }
    right_arguments = {"start": tree.everyone(params, 5), "key": keys_of(key), "optimizer": optax.sgd(0.1), "own": ()}
    right_arguments |= {"loss": training_loss(model), "data": ragged}
    arguments = right_arguments | {name: wrong_values[name][kind] for name, kind in change.items()}
    state = arguments["own"] if arguments["own"] == () else (arguments["own"],)
    for at_once in (1, 3):
        with pytest.raises(ValueError, match=message):
            train_clients(
                arguments["key"],
                arguments["start"],
                arguments["data"],
                arguments["loss"],
                arguments["optimizer"],
                Work(1, 4, at_once),
                *state,
            )


@pytest.mark.parametrize("wrap", [lambda loss: loss, lambda loss: proximal(loss, 0.1)], ids=["loss", "proximal"])
def test_a_loss_without_its_params_is_refused(key, model, ragged, wrap):
    loss_without_params = wrap(lambda params, batch, key, *state: tree.squared_norm(params))
    start, keys = tree.everyone(start_params(model, key), 5), keys_of(key)
    with pytest.raises(ValueError, match=r"^a loss returned an array of shape \(\); return a pair \(loss, params\)"):
        train_clients(keys, start, ragged, loss_without_params, optax.sgd(0.1), Work(1, 4), start)
    with pytest.raises(ValueError, match=r"^a loss returned an array of shape \(\); return a pair \(loss, params\)"):
        client_gradients(
            keys, start, ragged, lambda params, batch, key: loss_without_params(params, batch, key, params), 4
        )
    losses = lambda params, batch, key: (batch.weight, params)  # noqa: E731
    with pytest.raises(
        ValueError, match=r"^a loss returned an array of shape \(4,\); return one number, the batch's mean"
    ):
        client_gradients(keys, start, ragged, losses, 4)


@pytest.mark.parametrize("at_once", [1, *slow(3)])
def test_data_of_numpy_are_trained_on(key, model, ragged, at_once):
    data, start = jax.tree.map(np.asarray, ragged), tree.everyone(start_params(model, key), 5)
    trained = train_clients(
        keys_of(key), start, data, training_loss(model), optax.sgd(0.1), Work(3, 4, at_once=at_once)
    )
    expected = trainer(model, Work(3, 4))(keys_of(key), start_params(model, key), ragged)
    chex.assert_trees_all_close(trained, expected, rtol=1e-5, atol=1e-6)


def test_work_is_no_pair_of_numbers(key, model, ragged):
    with pytest.raises(ValueError, match=r"^work is \(1, 4\), not a Work; give one, as fljax.Work\("):
        train_clients(keys_of(key), tree.everyone(start_params(model, key), 5), ragged, max, optax.sgd(0.1), (1, 4))


def test_a_finished_optimizer_is_refused_with_what_to_give():
    with pytest.raises(ValueError, match=r"^optimizer is a finished transformation, .* such as optax.adam or lambda"):
        local_optimizer(LocalHyper(), Work(1, 4, optimizer=optax.adam(1e-3)), jnp.int32(0))


@pytest.mark.parametrize("make", [lambda lr: optax.lookahead(optax.sgd(lr), 5, 0.5), optax.lbfgs])
@pytest.mark.filterwarnings("ignore")  # of optax, about the same
def test_an_optimizer_that_asks_for_more_than_a_gradient_is_refused(key, model, ragged, make):
    with pytest.raises(ValueError, match=r"^the optimizer asks for more than a gradient, .* such as optax.adam"):
        jax.eval_shape(lambda lr: trained_by(make(lr), key, model, ragged), jnp.float32(0.1))


def test_the_error_of_an_optimizer_of_ones_own_is_its_own(key, model, ragged):
    def update(updates, state, params=None):
        raise TypeError("of my own")

    with pytest.raises(TypeError, match="of my own"):
        trained_by(optax.chain(optax.GradientTransformation(lambda params: (), update)), key, model, ragged)


def trained_by(optimizer, key, model, ragged):
    start = tree.everyone(start_params(model, key), 5)
    return train_clients(keys_of(key), start, ragged, training_loss(model), optimizer, Work(1, 4))


@pytest.mark.parametrize("effort", [[0.5, 0.0], [1.5, 1.0], [-1.0, 1.0], [float("nan"), 1.0]])
def test_an_effort_of_nothing_or_of_more_than_all_is_refused(key, effort):
    model = fljax.MODELS["logistic_regression"]((2,), 2)
    data = ClientData(
        Examples(jnp.zeros((4, 2)), jnp.zeros(4, jnp.int32)),
        jnp.arange(4, dtype=jnp.int32).reshape(2, 2),
        jnp.full(2, 2, jnp.int32),
    )
    start, loss = tree.everyone(model.init(key), 2), training_loss(model)
    with pytest.raises(ValueError, match=r"effort has .*; give shares of the steps in"):
        train_clients(jax.random.split(key, 2), start, data, loss, optax.sgd(0.1), Work(1, 2), effort=jnp.array(effort))


def test_data_of_no_client_are_refused():
    pool = Examples(np.zeros((3, 2), np.float32), np.zeros(3, np.int32))
    empty_data = fljax.ClientData(pool, np.zeros((0, 1), np.int32), np.zeros(0, np.int32))
    model = fljax.MODELS["logistic_regression"]((2,), 2)
    with pytest.raises(ValueError, match="data has 0 clients"):
        fljax.client_loss(model, tree.everyone(model.init(jax.random.key(0)), 0), empty_data)
