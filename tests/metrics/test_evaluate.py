"""The metric contract against scikit-learn and NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from sklearn.metrics import accuracy_score, f1_score, log_loss

import fljax
from fljax import tree
from fljax.client import predictor
from fljax.metrics.evaluate import evaluate as evaluate_eagerly
from fljax.types import ClientData, Examples, ModelTable
from tests import oracle
from tests.oracle import rows_of
from tests.slow import slow

SEEDS = [1, *slow(0, 2)]
evaluate = jax.jit(evaluate_eagerly, static_argnums=0)


@pytest.fixture(scope="module")
def predict(model):
    return predictor(model)


@pytest.fixture(scope="module")
def personal(model):
    """Nine models of a seed."""
    return jax.jit(lambda seed: jax.vmap(model.init)(jax.random.split(jax.random.key(seed), 9)))


def predictions(logits, data, i):
    """Probabilities and labels of a client's test examples, by the logits of all examples."""
    rows = rows_of(data, i)
    return scipy.special.softmax(np.asarray(logits, np.float64)[rows], axis=1), np.asarray(data.pool.y)[rows]


@pytest.mark.parametrize("seed", SEEDS)
def test_equals_scikit_learn(federation, predict, personal, seed):
    data, params = federation.test, personal(seed)
    metrics = evaluate(predict, ModelTable(params, np.arange(9, dtype=np.int32)), data)
    logits = np.asarray(jax.jit(jax.vmap(predict, (0, None)))(params, data.pool.x))
    per_client = [predictions(logits[i], data, i) for i in range(9)]
    accuracy = np.array([accuracy_score(y, p.argmax(1)) for p, y in per_client])
    f1 = np.array([f1_score(y, p.argmax(1), average="macro", zero_division=0.0) for p, y in per_client])
    loss = np.array([log_loss(y, p, labels=range(4)) for p, y in per_client])
    size = np.array([len(y) for _, y in per_client])
    np.testing.assert_allclose(metrics["client_accuracy"], accuracy, rtol=1e-6)
    np.testing.assert_allclose(metrics["client_f1"], f1, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["client_loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy_macro"], accuracy.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy_micro"], np.average(accuracy, weights=size), rtol=1e-5)
    np.testing.assert_allclose(metrics["accuracy_p10"], np.percentile(accuracy, 10), rtol=1e-5)
    np.testing.assert_allclose(metrics["f1_macro"], f1.mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["f1_micro"], np.average(f1, weights=size), rtol=1e-5)
    np.testing.assert_allclose(metrics["test_loss"], loss.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("n_models", "row"), [(9, np.arange(9)), (3, np.array([2, 0, 1, 1, -1, 2, 2, 0, 7])), (1, np.zeros(9))]
)
def test_predictions_of_each_client_are_in_the_order_of_its_row(federation, predict, personal, n_models, row):
    """Of models of one's own, of three that they share, where clients 4 and 8 hold none, and of one for all."""
    data, params = federation.test, jax.tree.map(lambda leaf: leaf[:n_models], personal(0))
    table = ModelTable(params, row.astype(np.int32))
    outputs = np.asarray(jax.jit(fljax.predictions, static_argnums=0)(predict, table, data))
    assert outputs.shape == (9, data.index.shape[1], 4)
    for i, model_row in enumerate(table.row):
        x, _ = oracle.examples_of(data, i)
        expected = np.full((len(outputs[i]), 4), np.nan)
        if 0 <= model_row < n_models:
            expected[: len(x)] = oracle.forward(oracle.as_float64(tree.row(params, model_row)), x)[0]
        np.testing.assert_allclose(outputs[i], expected, rtol=1e-4, atol=1e-5)
    table = table._replace(row=np.minimum(table.row, n_models - 1))
    with pytest.raises(ValueError, match=r"^predict cannot take examples of shape \(4, 4, 1\): "):
        fljax.predictions(lambda params, x: x @ np.ones(3, np.float32), table, data)


def test_a_row_beyond_the_table_is_refused_and_minus_one_is_no_model(federation, predict, personal):
    """Where it is a number; in a compiled program such a client has no model."""
    params = jax.tree.map(lambda leaf: leaf[:9], personal(0))
    data, table = federation.test, ModelTable(params, np.arange(9) + 1)
    for measure in (fljax.evaluate, fljax.predictions, lambda *arguments: fljax.confusion_matrices(*arguments, 4)):
        with pytest.raises(ValueError, match=r"^models.row of client 8 is 9; choose 0 to 8, or -1 for no model$"):
            measure(predict, table, data)


def test_clients_without_test_examples_count_in_no_average(federation, predict, personal):
    data = federation.test._replace(size=np.where(np.arange(9) == 4, 0, federation.test.size))
    metrics = evaluate(predict, ModelTable(personal(0), np.zeros(9, np.int32)), data)
    others = np.delete(np.asarray(metrics["client_accuracy"]), 4)
    assert np.isnan(metrics["client_accuracy"][4])
    assert np.isnan(metrics["client_f1"][4])
    np.testing.assert_allclose(metrics["accuracy_macro"], others.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["accuracy_p10"], np.percentile(others, 10), rtol=1e-5)
    np.testing.assert_allclose(metrics["test_loss"], np.delete(np.asarray(metrics["client_loss"]), 4).mean(), rtol=1e-5)


@pytest.mark.slow
def test_one_model_that_is_nan_spoils_only_its_own_client(key, model, federation):
    centers = jax.vmap(model.init)(jax.random.split(key, 2))
    centers = jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), centers)
    label = jnp.zeros(9, jnp.int32).at[3].set(1)
    metrics = evaluate(predictor(model), ModelTable(centers, label), federation.test)
    finite = np.isfinite(np.asarray(metrics["client_loss"]))
    np.testing.assert_array_equal(finite, np.arange(9) != 3)


@pytest.mark.slow
def test_a_confusion_of_too_few_classes_would_lose_examples(averaging, federation, key):
    state, _ = fljax.simulate(averaging, fljax.fedavg.Hyper(), federation, key, 1)
    models = averaging.deploy(key, fljax.fedavg.Hyper(), state, federation.train)
    counts = fljax.confusion_matrices(averaging.predict, models, federation.test, 4)
    assert int(counts.sum()) == int(federation.test.size.sum())
    ((name, last_layer),) = models.params.items()
    models_of_nan = models._replace(params={name: last_layer | {"bias": last_layer["bias"].at[:, 2].set(jnp.nan)}})
    assert not np.asarray(fljax.confusion_matrices(averaging.predict, models_of_nan, federation.test, 4)).any()
    with pytest.raises(ValueError, match=r"^n_classes=3, but there is a label 3; give 4 or more$"):
        fljax.confusion_matrices(averaging.predict, models, federation.test, 3)


def test_outputs_beyond_the_classes_and_those_with_nan_are_never_predicted():
    x = np.array([[1, 0, 9], [0, 1, 9], [2, 1, np.nan], [0, 3, 1]], np.float32)
    data = ClientData(Examples(x, np.int32([0, 0, 1, 1])), np.arange(4).reshape(2, 2), np.int32([2, 2]))
    models = ModelTable({"w": np.zeros((1, 1))}, np.zeros(2, np.int32))
    counts = fljax.confusion_matrices(lambda params, x: x, models, data, 2)
    np.testing.assert_array_equal(counts, [[[1, 1], [0, 0]], [[0, 0], [0, 1]]])


@pytest.mark.slow
def test_models_of_other_clients_are_refused_and_one_for_all_is_everybodys(federation, predict, personal):
    data, models = federation.test, ModelTable(personal(0), np.arange(9, dtype=np.int32))
    seven_clients = data._replace(index=data.index[:7], size=data.size[:7])
    for measure in (fljax.evaluate, fljax.predictions, lambda *arguments: fljax.confusion_matrices(*arguments, 4)):
        with pytest.raises(
            ValueError, match="there are models of 9 clients, but data of 7; give models of the same clients"
        ):
            measure(predict, models, seven_clients)
        shared = ModelTable(jax.tree.map(lambda leaf: leaf[:1], models.params), np.zeros(9, np.int32))
        few, full = (measure(predict, shared, clients) for clients in (seven_clients, data))
        rows = (few, full) if isinstance(few, jax.Array) else (few["client_loss"], full["client_loss"])
        np.testing.assert_allclose(rows[0], rows[1][:7], rtol=1e-6)


def test_a_model_that_gives_nan_predicts_no_class(federation, predict, personal):
    params = personal(0)
    params = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), params)
    metrics = evaluate(predict, ModelTable(params, np.arange(9, dtype=np.int32)), federation.test)
    assert metrics["client_accuracy"][2] == metrics["client_f1"][2] == 0
    assert np.isnan(metrics["client_loss"][2])
    assert np.isnan(metrics["test_loss"])
    assert np.isfinite(np.delete(metrics["client_loss"], 2)).all()
    assert (np.delete(metrics["client_f1"], 2) > 0).any()


@pytest.mark.parametrize("name", ["fedavg", "fedem", "fedproto"])
def test_a_loss_that_is_a_mean_already_is_refused(federation, model, key, name):
    cross_entropy = model.loss
    mean_loss_model = model._replace(loss=lambda logits, y: cross_entropy(logits, y).mean())
    method = fljax.ALGORITHMS[name]
    with pytest.raises(
        ValueError, match=r"a loss of shape \(\) for \d+ examples; give one per example, \(\d+,\), no mean"
    ):
        fljax.simulate(method(mean_loss_model, fljax.Work(1, 8)), method.Hyper(), federation, key, n_rounds=1)


def test_parameters_in_place_of_models_are_named(federation, predict, model, key):
    with pytest.raises(ValueError, match=r"^models is of type dict, not a ModelTable; give those of fljax.deployed"):
        evaluate(predict, model.init(key), federation.test)
