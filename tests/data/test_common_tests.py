"""One test set for all clients: each client's model on all of it, whatever it trained on."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.client.map import map_clients
from fljax.client.measure import client_loss, client_sums
from fljax.data.common_tests import training_on_tests
from fljax.data.holdout import clients_of
from fljax.data.validation import validate
from fljax.devices.hosts import at_home
from fljax.devices.mesh import over_devices
from fljax.drift import drifting
from fljax.metrics.confusion import confusion_matrices
from fljax.metrics.evaluate import evaluate
from fljax.metrics.predictions import predictions
from fljax.types import ClientData, ModelTable
from tests.slow import slow, slow_rows

WORK = fljax.Work(epochs=1, batch_size=8)
EXAMPLES = fljax.Examples(
    np.random.default_rng(0).normal(size=(30, 4, 4, 1)).astype(np.float32), np.arange(30, dtype=np.int32) % 4
)


def last_test(method, model, federation, key):
    algorithm, hyper = method(model, WORK), method.Hyper(lr=0.1)
    state, metrics = fljax.simulate(algorithm, hyper, federation, key, 2, evaluate_every=2, compile="fast")
    return algorithm, hyper, state, {name: np.asarray(value[-1]) for name, value in metrics.items()}


@pytest.mark.slow
def test_each_model_is_with_common_test_all_examples(model, federation, key):
    federation_of_all = fljax.with_common_test(federation, EXAMPLES)
    algorithm, hyper, state, metrics = last_test(fljax.standalone, model, federation_of_all, key)
    models = fljax.deployed(algorithm, hyper, state, federation_of_all, key)
    for i in range(9):
        logits = algorithm.predict(fljax.client_model(models, i), jnp.asarray(EXAMPLES.x))
        expected = (np.asarray(logits).argmax(1) == EXAMPLES.y).mean()
        np.testing.assert_allclose(metrics["client_accuracy"][i], expected, rtol=1e-6)
    _, _, untouched, _ = last_test(fljax.standalone, model, federation, key)
    chex.assert_trees_all_equal(untouched, state)  # training is the same


@pytest.mark.slow
def test_one_client_is_enough_for_one_model(model, federation, key):
    *_, of_all = last_test(fljax.fedavg, model, fljax.with_common_test(federation, EXAMPLES), key)
    *_, of_one = last_test(fljax.fedavg, model, fljax.with_common_test(federation, EXAMPLES, [4]), key)
    assert np.flatnonzero(np.isfinite(of_one["client_accuracy"])).tolist() == [4]
    for name in ("accuracy_macro", "accuracy_micro", "f1_macro", "test_loss"):
        np.testing.assert_allclose(of_one[name], of_all[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("examples", "clients", "message"),
    [
        (EXAMPLES, [9], r"clients=\[9\] are not ids of clients; give some of 0 to 8"),
        (EXAMPLES, [0, -1], r"clients=\[0, -1\] are not ids"),
        (EXAMPLES, [], r"clients=\[\] are not ids"),
        (EXAMPLES, [True], r"clients=\[True\] are not ids"),
        (
            fljax.Examples(EXAMPLES.x[:, :2], EXAMPLES.y),
            None,
            "test has examples",
        ),
        (fljax.Examples(EXAMPLES.x[:0], EXAMPLES.y[:0]), None, "no client has test examples; give some"),
        (fljax.Examples(EXAMPLES.x, EXAMPLES.y[:3]), None, "x has 30 examples and y 3"),
        (EXAMPLES.x, None, "examples is of type ndarray, not an Examples"),
    ],
)
def test_other_examples_and_clients_are_refused(federation, examples, clients, message):
    with pytest.raises(ValueError, match=message):
        fljax.with_common_test(federation, examples, clients)


def test_a_federation_that_changes_is_refused(federation):
    changing = drifting(federation, fljax.drift.DRIFTS["swap_labels"]())
    with pytest.raises(ValueError, match="the clients of the federation change over the rounds"):
        fljax.with_common_test(changing, EXAMPLES)


@pytest.mark.parametrize("name", ["swap_labels", "arrive"])
def test_a_drift_of_clients_with_one_test_set_is_refused(federation, name):
    common = fljax.with_common_test(federation, EXAMPLES)
    with pytest.raises(ValueError, match=f"{name}: a drift changes each client's tests, but all clients share one"):
        drifting(common, fljax.drift.DRIFTS[name]())


def table_of(model, n_models, key):
    """Models with different parameters, held in turn."""
    params = jax.vmap(model.init)(jax.random.split(key, n_models))
    return ModelTable(params, jnp.arange(9, dtype=jnp.int32) % n_models)


def with_one_left_out(models):
    """Of several models client 7 has none."""
    row = np.array(models.row)
    row[7] = -1
    return models._replace(row=jnp.asarray(row))


def untested(n_models):
    """The clients that are not named for the test of `clients=[0, 1, 2, 4, 7, 8]`, or have no model of several."""
    return [i in (3, 5, 6) or (i == 7 and n_models > 1) for i in range(9)]


def logits_of(model, models):
    """(models, examples, classes) in double precision."""
    apply = jax.jit(jax.vmap(lambda params: model.apply(params, EXAMPLES.x, None)[0]))
    return np.asarray(apply(models.params), float)


@pytest.mark.parametrize("n_models", [3, *slow(1, 9)])
def test_one_row_of_all_equals_a_row_for_each_client(model, federation, key, n_models):
    """In every metric and a score, also of clients that are not tested."""
    scored, models = fljax.scored(model, "auc"), with_one_left_out(table_of(model, n_models, key))
    algorithm = fljax.fedavg(scored, WORK)
    common = fljax.with_common_test(federation, EXAMPLES, clients=[0, 1, 2, 4, 7, 8]).test
    each = common.with_own_rows()
    assert (common.index.shape, each.index.shape) == ((1, 30), (9, 30))
    tests = [evaluate(algorithm.predict, models, data, algorithm.loss) for data in (common, each)]
    assert np.isnan(tests[0]["client_auc"]).tolist() == untested(n_models)
    chex.assert_trees_all_close(*tests, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("n_models", [1, 3, 9])
def test_outputs_and_confusion_matrices_on_one_row_are_those_on_a_row_for_each(model, federation, key, n_models):
    algorithm, models = fljax.fedavg(model, WORK), with_one_left_out(table_of(model, n_models, key))
    common = fljax.with_common_test(federation, EXAMPLES, clients=[0, 1, 2, 4, 7, 8]).test
    each = common.with_own_rows()
    outputs = [predictions(algorithm.predict, models, data) for data in (common, each)]
    assert np.isnan(outputs[0]).all((1, 2)).tolist() == untested(n_models)
    chex.assert_trees_all_close(*outputs, rtol=1e-6)
    matrices = [confusion_matrices(algorithm.predict, models, data, 4) for data in (common, each)]
    assert np.asarray(matrices[0]).sum((1, 2)).tolist() == [
        30 * (not is_left_out) for is_left_out in untested(n_models)
    ]
    np.testing.assert_array_equal(*matrices)


@pytest.mark.slow
def test_a_regression_on_one_row_of_all_is_numpys(key):
    rng = np.random.default_rng(1)
    pool = fljax.Examples(jnp.asarray(rng.normal(size=(20, 3)), jnp.float32), jnp.asarray(rng.normal(size=20) + 3))
    size = jnp.array([20, 0, 20, 20, 20], jnp.int32)
    data = ClientData(pool, jnp.arange(20, dtype=jnp.int32)[None], size)
    model = fljax.regression(fljax.models.mlp((3,), (4,), 1))
    models = ModelTable(jax.vmap(model.init)(jax.random.split(key, 2)), jnp.arange(5, dtype=jnp.int32) % 2)
    algorithm = fljax.fedavg(model, WORK)
    test = evaluate(algorithm.predict, models, data, algorithm.loss)
    outputs = [np.asarray(algorithm.predict(fljax.client_model(models, i), pool.x))[:, 0] for i in range(5)]
    mse = np.array([np.square(output - np.asarray(pool.y)).mean() for output in outputs])
    np.testing.assert_allclose(test["mse_micro"], np.delete(mse, 1).mean(), rtol=1e-5)


@pytest.mark.parametrize(("n_models", "n_calls"), [(3, 3), *slow_rows((1, 1), (9, 9))])
def test_each_model_sees_the_examples_once(model, federation, key, n_models, n_calls):
    """Not once for each client that holds it."""
    calls = []

    def score(params, batch):
        jax.debug.callback(lambda: calls.append(1))
        return model.apply(params, batch.x, None)[0]

    data = fljax.with_common_test(federation, EXAMPLES).test
    jax.block_until_ready(jax.jit(lambda models: client_sums(score, models, data))(table_of(model, n_models, key)))
    jax.effects_barrier()
    assert len(calls) == n_calls


@pytest.mark.parametrize("n_models", [9, *slow(1, 3)])
def test_sums_on_two_devices_and_side_by_side_are_those_of_own_rows(model, federation, key, n_models):
    data = fljax.with_common_test(federation, EXAMPLES, clients=[0, 1, 3, 4, 5, 6, 7]).test
    models = table_of(model, n_models, key)

    def fn(pool, index, size, params):
        logits = model.apply(params, pool.x[index], None)[0]
        return jnp.where(jnp.arange(30)[:, None] < size, logits, 0).sum(0)

    expected = jax.jit(lambda models: map_clients(fn, data.with_own_rows(), models))(models)
    for n_devices, at_once in ((2, 1), (2, 2), (1, 4)):
        with over_devices(jax.devices()[:n_devices]):
            sums = jax.jit(lambda models, at_once=at_once: map_clients(fn, data, models, at_once=at_once))(models)
        np.testing.assert_allclose(sums, expected, rtol=1e-5, atol=1e-5)


def test_what_each_client_has_besides_its_model_counts(model, federation, key):
    """Then the function is called for each client, however few models there are."""
    data, models = fljax.with_common_test(federation, EXAMPLES).test, table_of(model, 3, key)
    offset = np.arange(9, dtype=np.float32)

    def fn(pool, index, size, params, offset):
        return model.apply(params, pool.x[index], None)[0].sum() + 100 * offset

    sums = jax.jit(lambda models: map_clients(fn, data, models, offset))(models)
    of_model = logits_of(model, models).sum((1, 2))
    np.testing.assert_allclose(sums, np.tile(of_model, 3) + 100 * offset, rtol=1e-4, atol=1e-3)


@pytest.mark.slow
def test_a_single_model_is_that_of_all_whatever_their_row_numbers(model, federation, key):
    data, models = fljax.with_common_test(federation, EXAMPLES).test, table_of(model, 1, key)
    other_rows = models._replace(row=jnp.arange(9, dtype=jnp.int32) - 1)
    losses = jax.jit(lambda models: client_loss(model, models, data))(other_rows)
    (logits,) = logits_of(model, models)
    expected = (np.log(np.exp(logits).sum(1)) - logits[np.arange(30), EXAMPLES.y]).mean()
    np.testing.assert_allclose(losses, np.full(9, expected), rtol=1e-5)


@pytest.mark.slow
def test_personal_models_do_not_copy_the_row(key):
    """Of 400 clients with 2,000 examples, copies would be 3.2 MB."""
    pool = fljax.Examples(jnp.zeros((2000, 1)), jnp.zeros(2000, jnp.int32))
    data = ClientData(pool, jnp.arange(2000, dtype=jnp.int32)[None], jnp.full(400, 2000, jnp.int32))
    model = fljax.models.logistic_regression((1,), 2)
    models = ModelTable(jax.vmap(model.init)(jax.random.split(key, 400)), jnp.arange(400, dtype=jnp.int32))
    algorithm = fljax.fedavg(model, WORK)
    test = jax.jit(lambda models, data: evaluate(algorithm.predict, models, data, algorithm.loss))
    assert test.lower(models, data).compile().memory_analysis().temp_size_in_bytes < 1e6


def test_held_out_clients_and_a_trigger_keep_one_row(federation, key):
    common = fljax.with_common_test(federation, EXAMPLES)
    some = clients_of(common, np.array([2, 5, 8]))
    assert (some.test.index.shape, some.test.size.tolist()) == ((1, 30), [30, 30, 30])
    assert not clients_of(common, np.array([2])).test.is_common  # there is nobody to share with
    attack = fljax.attacks.backdoor(target=1, width=2, share=0.3)
    _, attacked, ids = fljax.attacks.attacked(
        fljax.standalone(fljax.models.mlp((4, 4, 1), (8,), 4), WORK), common, attack
    )
    triggered = attacked.triggered
    assert triggered is not None
    assert triggered.index.shape[0] == 1
    assert np.asarray(triggered.size).tolist() == [0 if i in ids else 22 for i in range(9)]  # of 30, 8 are of class 1
    np.testing.assert_array_equal(triggered.index[0], np.flatnonzero(EXAMPLES.y != 1))


def test_clients_train_on_their_own_tests_if_they_are_tested_on_others(federation):
    trained = training_on_tests(federation)
    for i in range(9):
        before = [np.asarray(part.index[i, : part.size[i]]) for part in (federation.train, federation.test)]
        np.testing.assert_array_equal(trained.train.index[i, : trained.train.size[i]], np.concatenate(before))
    train, test = federation.train, federation.test
    with pytest.raises(ValueError, match="share one test set; give the federation as it was before with_common_test"):
        training_on_tests(fljax.with_common_test(federation, EXAMPLES))
    with pytest.raises(ValueError, match="test examples are in another pool"):
        training_on_tests(federation._replace(test=test._replace(pool=fljax.Examples(*train.pool))))
    changing = drifting(federation, fljax.drift.DRIFTS["swap_labels"]())
    with pytest.raises(ValueError, match="the clients of the federation change over the rounds"):
        training_on_tests(changing)


def test_only_tests_may_have_one_row_and_of_one_size(federation):
    train = federation.train._replace(index=federation.train.index[:1])
    with pytest.raises(ValueError, match=r"train\.index has 1 row for 9 clients; give one for each"):
        validate(federation._replace(train=train))
    test = fljax.with_common_test(federation, EXAMPLES).test
    sizes = test.size.at[0].set(29)
    with pytest.raises(ValueError, match=r"test\.index has one row for all clients, of sizes 29 to 30; give one size"):
        validate(federation._replace(test=test._replace(size=sizes)))


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_run_on_one_row_of_all_is_refused(model, federation, key, split):
    algorithm, test = fljax.fedavg(model, WORK), fljax.with_common_test(federation, EXAMPLES).test
    with pytest.raises(ValueError, match=rf"{split}\.index has 1 row for 9 clients; give one for each"):
        fljax.simulate(algorithm, fljax.fedavg.Hyper(), federation._replace(**{split: test}), key, 1)


def test_tests_of_different_sizes_on_one_row_are_refused(model, federation, key):
    """In a run and outside: each model is tested once, with one size."""
    algorithm, test = fljax.fedavg(model, WORK), fljax.with_common_test(federation, EXAMPLES).test
    unequal = test._replace(size=test.size.at[3].set(7))
    with pytest.raises(ValueError, match=r"test\.index has one row for all clients, of sizes 7 to 30; give one size"):
        fljax.simulate(algorithm, fljax.fedavg.Hyper(), federation._replace(test=unequal), key, 1)
    with pytest.raises(ValueError, match=r"data\.index has one row for all clients, of sizes 7 to 30; give one size"):
        evaluate(algorithm.predict, table_of(model, 3, key), unequal, algorithm.loss)


def test_examples_at_home_leave_the_test_set_whole(federation):
    """It has images of its own, and one row on every device."""
    common = fljax.with_common_test(federation, EXAMPLES)
    with over_devices(jax.devices()[:2]) as mesh:
        test = at_home(common, mesh, np.asarray(common.train.pool.x)).test
    assert test.is_common
    chex.assert_trees_all_equal(jax.device_get(test), jax.device_get(common.test))
