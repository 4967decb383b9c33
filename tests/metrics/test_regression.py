"""Regression and several labels at once: what the measures mean, against scikit-learn."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn import metrics as oracle
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.neural_network import MLPRegressor

import fljax
from fljax.data.federation import build, on_host
from fljax.metrics import evaluate as evaluation
from fljax.metrics.regression import evaluate_regression
from fljax.models.task import task_of
from fljax.run.sweep.points import grid
from fljax.run.sweep.table import best, metric_of, tidy
from fljax.types import ClientData, Examples, ModelTable, Work
from tests.oracle import examples_of
from tests.slow import slow


def linear(n_features, n_outputs, key):
    model = fljax.MODELS["logistic_regression"]((n_features,), n_outputs)
    params = jax.device_get(jax.jit(model.init)(key))
    return model, fljax.ModelTable(jax.tree.map(lambda leaf: leaf[None], params), np.zeros(4, np.int32))


def evaluate(model, models, data):
    predict = lambda params, x: model.apply(params, x, None)[0]  # noqa: E731
    return jax.device_get(jax.jit(evaluation.evaluate, static_argnums=(0, 3))(predict, models, data, model.loss))


@pytest.mark.parametrize("shape", [(80, 3), *slow((80,))])
def test_measures_of_a_regression(key, shape):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 5)).astype(np.float32), 1000 + rng.normal(size=shape)  # an offset that float32 minds
    federation = build(on_host(x, y), np.split(np.arange(80), [10, 30, 50]), (0.5, 0.0, 0.5))
    model, models = linear(5, 1 if len(shape) == 1 else 3, key)
    model = fljax.regression(model, mean=1000.0, deviation=2.0)
    assert task_of(model.loss) == "regression"
    metrics = evaluate(model, models, federation.test)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), models.params)["fc1"]
    pairs = []
    for i in range(4):
        inputs, targets = examples_of(federation.test, i)
        predicted = 1000 + 2 * (inputs @ weights["kernel"] + weights["bias"])
        pairs.append((np.asarray(targets, np.float64).reshape(len(inputs), -1), predicted))
        np.testing.assert_allclose(metrics["client_mse"][i], oracle.mean_squared_error(*pairs[-1]), rtol=1e-4)
        np.testing.assert_allclose(metrics["client_mae"][i], oracle.mean_absolute_error(*pairs[-1]), rtol=1e-4)
        np.testing.assert_allclose(metrics["client_r2"][i], oracle.r2_score(*pairs[-1]), rtol=1e-4)
        np.testing.assert_allclose(metrics["client_loss"][i], metrics["client_mse"][i] / 4, rtol=1e-5)
    all_pairs = [np.concatenate(arrays) for arrays in zip(*pairs, strict=True)]
    np.testing.assert_allclose(metrics["r2_micro"], oracle.r2_score(*all_pairs), rtol=1e-4)
    np.testing.assert_allclose(metrics["mse_micro"], oracle.mean_squared_error(*all_pairs), rtol=1e-4)
    np.testing.assert_allclose(metrics["r2_p10"], np.percentile(metrics["client_r2"], 10), rtol=1e-5)
    np.testing.assert_allclose(metrics["mae_micro"], oracle.mean_absolute_error(*all_pairs), rtol=1e-4)
    for name, short_name in (("mae_macro", "mae"), ("mse_macro", "mse"), ("r2_macro", "r2"), ("test_loss", "loss")):
        np.testing.assert_allclose(metrics[name], np.mean(metrics[f"client_{short_name}"]), rtol=1e-5)


def test_measures_of_several_labels(key):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 5)).astype(np.float32), rng.integers(2, size=(40, 3))
    federation = build(on_host(x, y), np.split(np.arange(40), 4), (0.5, 0.0, 0.5))
    model, models = linear(5, 3, key)
    model = fljax.multi_label(model)
    metrics = evaluate(model, models, federation.test)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), models.params)["fc1"]
    for i in range(4):
        inputs, labels = examples_of(federation.test, i)
        logits = inputs @ weights["kernel"] + weights["bias"]
        predicted, occurs = logits > 0, (labels + (logits > 0)).any(axis=0)
        np.testing.assert_allclose(metrics["client_accuracy"][i], 1 - oracle.hamming_loss(labels, predicted), rtol=1e-6)
        f1 = oracle.f1_score(labels, predicted, average=None, zero_division=0)
        np.testing.assert_allclose(metrics["client_f1"][i], f1[occurs].mean(), rtol=1e-6)
        loss = oracle.log_loss(labels.reshape(-1), 1 / (1 + np.exp(-logits.reshape(-1))))
        np.testing.assert_allclose(metrics["client_loss"][i], loss, rtol=1e-5)


@pytest.fixture(scope="module")
def diabetes():
    """Real patients, four clients, features and target as scikit-learn gives them; some constant is added."""
    x, y = load_diabetes(return_X_y=True, scaled=False)
    return fljax.federation_from_arrays((x - x.mean(0)) / x.std(0), y, np.arange(len(y)) % 4)


@pytest.mark.slow
def test_federated_regression_is_as_good_as_pooled(key, diabetes):
    y = np.asarray(diabetes.train.pool.y)
    network = fljax.MODELS["logistic_regression"]((10,), 1)
    model = fljax.regression(network, mean=float(y.mean()), deviation=float(y.std()))
    algorithm = fljax.fedavg(model, fljax.Work(2, 32))
    _, metrics = fljax.simulate(algorithm, fljax.fedavg.Hyper(lr=0.05), diabetes, key, 10)
    x, rows = (
        np.asarray(diabetes.train.pool.x),
        [
            np.asarray(d.index)[np.arange(d.index.shape[1]) < np.asarray(d.size)[:, None]]
            for d in (diabetes.train, diabetes.test)
        ],
    )
    pooled = LinearRegression().fit(x[rows[0]], y[rows[0]]).score(x[rows[1]], y[rows[1]])
    assert abs(float(metrics["r2_micro"][-1]) - pooled) < 0.03
    assert metrics["client_mae"].shape == (10, 4)
    assert np.isfinite(metrics["test_loss"]).all()


@pytest.fixture(scope="module")
def districts():
    """Made like California's housing table: columns of different units, a value that bends and saturates, and
    clients that are bands of latitude, so that each sees a part of the range."""
    rng, n = np.random.default_rng(0), 1600
    income, age, people = rng.gamma(4, 1, n), rng.uniform(1, 52, n), rng.gamma(2, 700, n)
    rooms, occupancy = 3 + income / 2 + rng.normal(0, 0.5, n), rng.gamma(9, 1 / 3, n)
    latitude, longitude = rng.uniform(32.5, 42, n), rng.uniform(-124, -114, n)
    coast = np.exp(-np.square((longitude + 124 - (42 - latitude) * 0.7) / 2))
    value = (
        50_000 + 60_000 * np.log1p(income) + 120_000 * coast + 400 * age - 9_000 * occupancy + rng.normal(0, 9_000, n)
    )
    x = np.stack([income, age, rooms, rooms / 5, people, occupancy, latitude, longitude], axis=1)
    x = ((x - x.mean(0)) / x.std(0)).astype(np.float32)
    band = np.digitize(latitude, np.linspace(32.5, 42, 9)[1:-1])
    return fljax.federation_from_arrays(x, np.minimum(value, 330_000).astype(np.float32), band)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["squared", "absolute"])
def test_a_network_finds_the_bend_that_a_line_does_not(key, districts, loss):
    """As scikit-learn's network of that width does on all examples in one place."""
    rows_of_splits = [
        np.asarray(split.index)[np.arange(split.index.shape[1]) < np.asarray(split.size)[:, None]]
        for split in (districts.train, districts.test)
    ]
    x, y = (np.asarray(array) for array in districts.train.pool)
    (x_train, x_test), (y_train, y_test) = ([array[rows] for rows in rows_of_splits] for array in (x, y))
    mean, deviation = float(y_train.mean()), float(y_train.std())
    model = fljax.regression(fljax.MODELS["mlp"]((8,), (32,), 1), loss, mean=mean, deviation=deviation)
    algorithm = fljax.fedavg(model, fljax.Work(4, 32, optimizer="adam"))
    _, metrics = fljax.simulate(algorithm, fljax.fedavg.Hyper(lr=0.01), districts, key, 40, evaluate_every=40)
    linear_r2 = LinearRegression().fit(x_train, y_train).score(x_test, y_test)
    pooled = MLPRegressor(hidden_layer_sizes=(32,), random_state=0, max_iter=300).fit(
        x_train, (y_train - mean) / deviation
    )
    predicted = pooled.predict(x_test) * deviation + mean
    assert float(metrics["r2_micro"][-1]) > linear_r2 + 0.03
    assert float(metrics["r2_micro"][-1]) > oracle.r2_score(y_test, predicted) - 0.03
    assert float(metrics["mae_micro"][-1]) < 1.2 * oracle.mean_absolute_error(y_test, predicted)  # in the target's unit


@pytest.mark.slow
def test_sweeps_are_judged_by_measures_of_their_task(key, diabetes):
    model = fljax.regression(fljax.MODELS["logistic_regression"]((10,), 1), mean=150.0, deviation=77.0)
    algorithm, hypers = fljax.fedavg(model, fljax.Work(1, 32)), grid(fljax.fedavg.Hyper(), lr=(1e-5, 0.05))
    metrics = fljax.sweep(algorithm, hypers, diabetes, key, 1, 2)
    rows = tidy(hypers, metrics)
    assert best(rows, "r2_micro").point == best(rows, "mae_macro").point == {"lr": pytest.approx(0.05)}
    assert rows[0]["best_r2"] is not None
    assert metric_of(None, algorithm) == "r2_micro"
    assert metric_of("r2_p10", algorithm) == "r2_p10"
    with pytest.raises(ValueError, match="choose one of r2_micro"):
        metric_of("accuracy_macro", algorithm)
    classes = fljax.fedavg(fljax.MODELS["logistic_regression"]((10,), 2), fljax.Work(1, 32))
    assert metric_of(None, classes) == "accuracy_macro"
    with pytest.raises(ValueError, match="unknown"):
        metric_of("r2_micro", classes)


@pytest.mark.parametrize(
    "options", [{"loss": "huber"}, {"deviation": 0.0}, {"mean": float("nan")}, {"deviation": (1.0, -1.0)}]
)
def test_bad_regressions_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        fljax.regression(fljax.MODELS["logistic_regression"]((10,), 1), **options)


@pytest.mark.parametrize("as_sequence", [list, np.array])
def test_several_targets_are_scaled_by_what_numpy_makes(as_sequence):
    model = fljax.MODELS["logistic_regression"]((10,), 2)
    scaled = fljax.regression(model, mean=as_sequence([1.0, 2.0]), deviation=as_sequence([0.5, 2.0]))
    assert scaled is fljax.regression(model, mean=(1.0, 2.0), deviation=(0.5, 2.0))
    assert fljax.regression(model, mean=np.array(3.0)) is fljax.regression(model, mean=3.0)


def test_a_loss_of_several_labels_is_a_function():
    with pytest.raises(ValueError, match=r"^loss is 'x', not a function; give \(outputs, y\) -> \(batch,\)"):
        fljax.multi_label(fljax.MODELS["logistic_regression"]((10,), 3), "x")  # pyright: ignore[reportArgumentType]


def test_as_many_outputs_as_targets(key, diabetes):
    model = fljax.regression(fljax.MODELS["logistic_regression"]((10,), 3))
    with pytest.raises(ValueError, match="3 outputs and the labels 1 columns; use 1 outputs"):
        fljax.simulate(fljax.fedavg(model, fljax.Work(1, 32)), fljax.fedavg.Hyper(), diabetes, key, 1)


@pytest.mark.parametrize("name", ["mean", "deviation"])
def test_as_many_scales_as_outputs(key, name):
    """One output would be taken for both targets: each is scaled by its own mean and deviation."""
    x = np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    federation = fljax.federation_from_arrays(x, x[:, :2], np.arange(24) % 4)
    model = fljax.regression(fljax.MODELS["logistic_regression"]((3,), 1), **{name: [1.0, 2.0]})
    with pytest.raises(
        ValueError, match=f"{name} has 2 numbers and the network 1 outputs; give one number, or one per output"
    ):
        fljax.simulate(fljax.fedavg(model, fljax.Work(1, 8)), fljax.fedavg.Hyper(), federation, key, 1)


def test_labels_for_which_a_model_gives_nan_count_as_wrong():
    y = jnp.zeros((6, 5)).at[0, :2].set(1)
    data = ClientData(Examples(jnp.ones((6, 3)), y), jnp.arange(6).reshape(2, 3), jnp.full(2, 3))
    params_of_nan = jnp.full((3, 5), jnp.nan).at[:, 1].set(1)  # one of its outputs is a number
    models = ModelTable(jnp.stack([params_of_nan, -jnp.ones((3, 5))]), jnp.arange(2))
    loss = fljax.multi_label(fljax.MODELS["logistic_regression"]((3,), 5)).loss
    metrics = evaluate(SimpleNamespace(apply=lambda params, x, key: (x @ params, {}), loss=loss), models, data)
    np.testing.assert_allclose(metrics["client_accuracy"], [0, 1])
    assert metrics["client_f1"][0] == 0
    assert np.isnan(metrics["client_loss"][0])


@pytest.mark.slow
def test_targets_that_are_equal_and_a_model_that_gives_nan():
    size, y = 10, np.repeat(np.float32([0.1, 0.2, 0.3]), 10)
    y[10:20] += np.linspace(0, 1, 10, dtype=np.float32)
    x = np.zeros((30, 1), np.float32)
    data = ClientData(Examples(jnp.asarray(x), jnp.asarray(y)), jnp.arange(30).reshape(3, size), jnp.full(3, size))

    def metrics_of(outputs):
        models = ModelTable(jnp.asarray(outputs, jnp.float32), jnp.arange(3))
        predict = lambda params, x: jnp.broadcast_to(params, (x.shape[0], 1))  # noqa: E731
        return evaluate_regression(predict, models, data, lambda outputs, y: jnp.square(outputs[:, 0] - y))

    finite = metrics_of([0.5, 0.5, 0.5])
    assert np.isnan(np.asarray(finite["client_r2"])[[0, 2]]).all()  # ten times 0.1, whose mean is not 0.1 in float32
    np.testing.assert_allclose(finite["r2_macro"], oracle.r2_score(y[10:20], np.full(10, 0.5)), rtol=1e-4)
    with_nan = metrics_of([0.5, np.nan, 0.5])  # was left out of all means, which looked the better for it
    for name in ("test_loss", "mse_macro", "mse_micro", "mae_macro"):
        assert np.isnan(with_nan[name]), name
    assert with_nan["r2_macro"] == with_nan["r2_micro"] == -np.inf


def test_a_target_varies_though_its_mean_is_a_hundred_thousand_times_as_large():
    rng = np.random.default_rng(0)
    y = np.float32(1000 + 0.01 * rng.normal(size=(3, 50)))
    predicted = y + np.float32(0.005) * np.sign(rng.normal(size=y.shape)).astype(np.float32)
    pool = Examples(jnp.asarray(predicted.reshape(-1, 1)), jnp.asarray(y.ravel()))
    data, models = (
        ClientData(pool, jnp.arange(150).reshape(3, 50), jnp.full(3, 50)),
        ModelTable(jnp.zeros(3), jnp.arange(3)),
    )
    loss = lambda outputs, y: jnp.square(outputs[:, 0] - y)  # noqa: E731
    metrics = jax.jit(lambda: evaluate_regression(lambda params, x: x + params, models, data, loss))()
    np.testing.assert_allclose(
        metrics["client_r2"], [oracle.r2_score(*pair) for pair in zip(y, predicted, strict=True)], 0.01
    )
    np.testing.assert_allclose(metrics["r2_micro"], oracle.r2_score(y.ravel(), predicted.ravel()), 0.01)


@pytest.mark.parametrize("n", [11, *slow(1, 10, 12)])
def test_a_target_that_does_not_vary_is_left_out_and_models_of_nan_are_the_worst(n):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(n, 6, 2)).astype(np.float32)
    y[:, :, 0] = 0.1  # everybody's, and in the last client the other target does not vary either
    y[-1, :, 1] = 0.5 if n > 1 else y[-1, :, 1]
    x = rng.normal(size=(n, 6, 2)).astype(np.float32)
    pool = Examples(jnp.asarray(x.reshape(-1, 2)), jnp.asarray(y.reshape(-1, 2)))
    data = ClientData(pool, jnp.arange(6 * n).reshape(n, 6), jnp.full(n, 6))
    predict, loss = lambda params, x: x + params[None], lambda outputs, y: jnp.square(outputs - y)[:, 0]
    size = data.size

    @jax.jit
    def metrics_of(shifts, size):
        return evaluate_regression(predict, ModelTable(shifts, jnp.arange(n)), data._replace(size=size), loss)

    metrics = metrics_of(jnp.zeros((n, 2)), size)
    varying = zip(y[..., 1], x[..., 1], strict=True)
    expected = [oracle.r2_score(*pair) if np.ptp(pair[0]) else np.nan for pair in varying]
    np.testing.assert_allclose(metrics["client_r2"], expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["r2_p10"], np.nanpercentile(expected, 10), rtol=1e-4)
    micro = oracle.r2_score(y[..., 1].ravel(), x[..., 1].ravel())
    np.testing.assert_allclose(metrics["r2_micro"], micro, rtol=1e-4)
    with_nan = metrics_of(jnp.zeros((n, 2)).at[: max(1, n // 5)].set(jnp.nan), size)
    assert with_nan["r2_p10"] == with_nan["r2_micro"] == with_nan["r2_macro"] == -np.inf
    if n > 1:  # a client without test examples has no measure, and counts in none
        without_first = metrics_of(jnp.zeros((n, 2)), size.at[0].set(0))
        np.testing.assert_allclose(without_first["r2_macro"], np.nanmean(expected[1:]), rtol=1e-4)
        micro = oracle.r2_score(y[1:, :, 1].ravel(), x[1:, :, 1].ravel())
        np.testing.assert_allclose(without_first["r2_micro"], micro, rtol=1e-4)
        np.testing.assert_allclose(without_first["mse_macro"], np.square(y - x)[1:].mean(), rtol=1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "fedem",
        "fedrc",
        "knnper",
        "fedproto",
        "fedtgp",
        "feddistill",
        "fedlc",
        "fedrs",
        "gpfl",
        "fedrod",
        "fedgc",
        "fedgh",
    ],
)
def test_methods_of_classes_refuse_numbers(name, key):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    federation = fljax.federation_from_arrays(x, x[:, 0], np.arange(12) % 2)
    method = fljax.ALGORITHMS[name]
    algorithm = method(fljax.regression(fljax.MODELS["mlp"](input_shape=(3,), hidden=(2,), n_classes=1)), Work(1, 4))
    with pytest.raises(ValueError, match=r"not classes, which this method or partition needs; choose another"):
        jax.eval_shape(lambda key: fljax.simulate(algorithm, method.Hyper(), federation, key, 1), key)


def test_a_method_with_outputs_of_its_own_refuses_to_regress():
    model = fljax.regression(fljax.MODELS["mlp"](input_shape=(3,), hidden=(2,), n_classes=1), mean=5.0, deviation=2.0)
    with pytest.raises(
        ValueError, match=r"^fedcp: adds the outputs of two last layers, but a regression scales its outputs"
    ):
        fljax.fedcp(model, Work(1, 4))


def test_a_loss_of_ones_own_sees_outputs_and_targets_without_their_unit(key):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 5)).astype(np.float32), (30 + 4 * rng.normal(size=(60, 2))).astype(np.float32)
    net, models = linear(5, 2, key)
    scaled_outputs, _ = net.apply(jax.tree.map(lambda leaf: leaf[0], models.params), x, None)
    huber = fljax.regression(net, lambda o, t: optax.huber_loss(o, t).mean(axis=1), mean=(30.0, 29.0), deviation=4.0)
    assert task_of(huber.loss) == "regression"
    outputs = huber.apply(jax.tree.map(lambda leaf: leaf[0], models.params), x, None)[0]
    error = np.abs(np.asarray(scaled_outputs) - (y - np.array([30.0, 29.0])) / 4)
    expected = np.where(error < 1, error**2 / 2, error - 0.5).mean(axis=1)
    np.testing.assert_allclose(huber.loss(outputs, y), expected, rtol=1e-4)
    own_squared = fljax.regression(net, lambda o, t: jnp.square(o - t).mean(axis=1), mean=30.0, deviation=4.0)
    squared = fljax.regression(net, mean=30.0, deviation=4.0)
    np.testing.assert_allclose(own_squared.loss(outputs, y), squared.loss(outputs, y), rtol=1e-4)
    with pytest.raises(ValueError, match=r"loss=3 is unknown; choose 'squared', 'absolute' or a function \(outputs"):
        fljax.regression(net, 3)
    with pytest.raises(ValueError, match="the network has 2 outputs and the labels 3 columns"):
        huber.loss(outputs, np.ones((60, 3), np.float32))


@pytest.mark.slow
def test_clients_learn_by_a_loss_of_ones_own(key):
    """The pinball loss at 0.9 finds what nine of ten targets are below: SciPy's quantile, of equal inputs."""
    rng = np.random.default_rng(0)
    y = rng.exponential(size=(400,)).astype(np.float32)
    federation = build(on_host(np.zeros((400, 1), np.float32), y), np.split(np.arange(400), 4), (0.9, 0.0, 0.1))

    def pinball(outputs, targets):
        return jnp.maximum(0.9 * (targets - outputs), 0.1 * (outputs - targets)).mean(axis=1)

    model = fljax.regression(fljax.MODELS["logistic_regression"]((1,), 1), pinball)
    algorithm, hyper = fljax.fedavg(model, Work(1, 90)), fljax.fedavg.Hyper(lr=0.1)
    state, metrics = fljax.simulate(algorithm, hyper, federation, key, n_rounds=200)
    models = fljax.deployed(algorithm, hyper, state, federation, key)
    predicted = algorithm.predict(fljax.client_model(models, 0), np.zeros((1, 1), np.float32))
    train_targets = y[np.concatenate([federation.train.index[i, : federation.train.size[i]] for i in range(4)])]
    np.testing.assert_allclose(predicted[0, 0], np.quantile(train_targets, 0.9), rtol=0.05)
    assert "mse_macro" in metrics


def test_several_labels_by_a_loss_of_ones_own(key):
    net, _ = linear(5, 3, key)
    model = fljax.multi_label(net, lambda o, y: optax.sigmoid_focal_loss(o, y, gamma=0.0).sum(axis=1))
    assert task_of(model.loss) == "labels"
    outputs, y = np.ones((4, 3), np.float32), np.eye(4, 3, dtype=np.float32)
    np.testing.assert_allclose(model.loss(outputs, y), 3 * fljax.multi_label(net).loss(outputs, y), rtol=1e-5)


def test_a_loss_of_ones_own_has_as_many_outputs_as_labels(key):
    x, y = np.ones((24, 5), np.float32), np.tile(np.eye(2, dtype=np.float32), (12, 1))
    model = fljax.multi_label(linear(5, 3, key)[0], lambda o, y: jnp.abs(o[:, :2] - y).sum(axis=1))
    federation = fljax.federation_from_arrays(x, y, np.arange(24) % 4)
    with pytest.raises(ValueError, match="the network has 3 outputs and the labels 2 columns; use 2 outputs"):
        fljax.simulate(fljax.fedavg(model, Work(1, 8)), fljax.fedavg.Hyper(), federation, key, 1)
