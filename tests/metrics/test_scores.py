"""Scores besides the metric contract: by scikit-learn and by hand, in runs, sweeps and of models that give NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as oracle

import fljax
from fljax.report.comparison import as_table
from fljax.run.sweep.points import grid
from fljax.run.sweep.search import search
from fljax.run.sweep.table import best, metric_of, tidy
from fljax.types import ClientData, Examples, ModelTable

N_CLASSES = 6
OWNED = ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (12, 13, 14, 15, 16, 17, 18), (19, 20), (21,))
LABELS = np.array([0, 1, 2, 3, 4, 5, 0, 1, 1, 1, 2, 5, 3, 3, 3, 2, 2, 3, 2, 4, 4, 1], np.int32)
"""Of four clients: all classes, two, one, and a single example."""


def inputs_as_outputs(params, x):
    """A network that tells what the examples hold."""
    return x


def data_of(outputs, y=LABELS, rows_by_client=OWNED):
    """What fills a shorter client's row is another client's."""
    longest = max(map(len, rows_by_client))
    index = np.array([[*rows, *[1] * (longest - len(rows))] for rows in rows_by_client], np.int32)
    size = np.array([len(rows) for rows in rows_by_client], np.int32)
    return jax.tree.map(jnp.asarray, ClientData(Examples(outputs, y), index, size))


def scores_of(data, *scores, task=lambda model: model, **own_scores):
    """Metrics of outputs that stand in the data."""
    network = fljax.from_functions(lambda key: {"w": jnp.zeros(1)}, inputs_as_outputs)
    model = fljax.scored(task(network), *scores, **own_scores)
    models = ModelTable({"w": jnp.zeros((1, 1))}, jnp.zeros(len(OWNED), jnp.int32))
    return jax.device_get(fljax.evaluate(inputs_as_outputs, models, data, model.loss))


def rows_of_client(array, client):
    return array[list(OWNED[client])]


def softmax(outputs):
    exp = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


@pytest.fixture(name="outputs")
def tied_outputs():
    """Half of them with ties, within a class and between classes."""
    rng = np.random.default_rng(0)
    outputs = 2 * rng.normal(size=(len(LABELS), N_CLASSES)).astype(np.float32)
    outputs[::2] = outputs[::2].round()
    outputs[1] = outputs[2]
    outputs[13] = outputs[15]
    return outputs


def one_vs_rest(function, outputs, y):
    """Mean over the classes that some examples are of and some are not."""
    probabilities = softmax(outputs)
    return np.mean([function(y == c, probabilities[:, c]) for c in range(N_CLASSES) if 0 < (y == c).sum() < len(y)])


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_orders_of_classes_are_scikit_learns(outputs, name):
    function = {"auc": oracle.roc_auc_score, "average_precision": oracle.average_precision_score}[name]
    metrics = scores_of(data_of(outputs), name)
    for client in (0, 1):
        expected = one_vs_rest(function, rows_of_client(outputs, client), rows_of_client(LABELS, client))
        np.testing.assert_allclose(metrics[f"client_{name}"][client], expected, rtol=1e-6)
    assert np.isnan(metrics[f"client_{name}"][2:]).all()  # one class alone has no order
    defined = metrics[f"client_{name}"][:2]
    np.testing.assert_allclose(metrics[f"{name}_macro"], defined.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics[f"{name}_micro"], (12 * defined[0] + 7 * defined[1]) / 19, rtol=1e-6)


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_orders_of_labels_are_scikit_learns(outputs, name):
    function = {"auc": oracle.roc_auc_score, "average_precision": oracle.average_precision_score}[name]
    y = (np.random.default_rng(1).random((len(LABELS), N_CLASSES)) < 0.4).astype(np.float32)
    values = scores_of(data_of(outputs, y), name, task=fljax.multi_label)[f"client_{name}"]
    for client in (0, 1, 2):
        truth, logits = rows_of_client(y, client), rows_of_client(outputs, client)
        ordered = [c for c in range(N_CLASSES) if 0 < truth[:, c].sum() < len(truth)]
        expected = np.mean([function(truth[:, c], logits[:, c]) for c in ordered])
        np.testing.assert_allclose(values[client], expected, rtol=1e-6)


def test_of_two_classes_the_area_is_that_of_the_second(outputs):
    auc = scores_of(data_of(outputs[:, :2], LABELS % 2), "auc")["client_auc"]
    for client in (0, 1):
        margin = rows_of_client(outputs, client)[:, 1] - rows_of_client(outputs, client)[:, 0]
        np.testing.assert_allclose(
            auc[client], oracle.roc_auc_score(rows_of_client(LABELS, client) % 2, margin), rtol=1e-6
        )


def test_scores_of_classes_are_as_defined(outputs):
    metrics = scores_of(data_of(outputs), "balanced_accuracy", "top3", "top5", "brier")
    for client in range(len(OWNED)):
        logits, y = rows_of_client(outputs, client), rows_of_client(LABELS, client)
        if client < 2:  # scikit-learn warns of classes that are told and not there
            recall = [(logits[y == c].argmax(axis=1) == c).mean() for c in np.unique(y)]
            np.testing.assert_allclose(metrics["client_balanced_accuracy"][client], np.mean(recall), rtol=1e-6)
        for k in (3, 5):
            order = np.argsort(-logits, axis=1, kind="stable")[:, :k]  # of equal ones the lower class comes first
            expected = (order == y[:, None]).any(axis=1).mean()
            np.testing.assert_allclose(metrics[f"client_top{k}"][client], expected, rtol=1e-6)
        expected = ((softmax(logits) - np.eye(N_CLASSES)[y]) ** 2).sum(axis=1).mean()
        np.testing.assert_allclose(metrics["client_brier"][client], expected, rtol=1e-5)


def test_a_fifth_of_few_classes_is_all_of_them(outputs):
    assert (scores_of(data_of(outputs[:, :3], LABELS % 3), "top5")["client_top5"] == 1).all()


def test_balanced_accuracy_is_scikit_learns():
    rng = np.random.default_rng(2)
    y = np.repeat(np.arange(3), (2, 5, 15)).astype(np.int32)
    outputs = rng.normal(size=(22, 3)).astype(np.float32) + np.eye(3, dtype=np.float32)[y]
    data = data_of(outputs, y, (range(22),))
    model = fljax.scored(fljax.from_functions(lambda key: {"w": jnp.zeros(1)}, inputs_as_outputs), "balanced_accuracy")
    models = ModelTable({"w": jnp.zeros((1, 1))}, jnp.zeros(1, jnp.int32))
    accuracy = fljax.evaluate(inputs_as_outputs, models, data, model.loss)["balanced_accuracy_macro"]
    np.testing.assert_allclose(accuracy, oracle.balanced_accuracy_score(y, outputs.argmax(axis=1)), rtol=1e-6)


def test_calibration_is_that_of_bins_counted_by_hand(outputs):
    errors = scores_of(data_of(outputs), "ece")["client_ece"]
    for client in range(len(OWNED)):
        probabilities, y = softmax(rows_of_client(outputs, client)), rows_of_client(LABELS, client)
        confidence, is_right, error = probabilities.max(axis=1), probabilities.argmax(axis=1) == y, 0.0
        for low in np.linspace(0, 1, 16)[:-1]:
            in_bin = (confidence > low) & (confidence <= low + 1 / 15)
            error += in_bin.mean() * abs(is_right[in_bin].mean() - confidence[in_bin].mean()) if in_bin.any() else 0
        np.testing.assert_allclose(errors[client], error, rtol=1e-5)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_root_of_the_squared_error_is_scikit_learns(n_targets):
    rng = np.random.default_rng(3)
    y, outputs = (rng.normal(size=(len(LABELS), n_targets)).astype(np.float32) for _ in range(2))
    metrics = scores_of(data_of(outputs, y[:, 0] if n_targets == 1 else y), "rmse", task=fljax.regression)
    for client in range(len(OWNED)):
        expected = np.sqrt(oracle.mean_squared_error(rows_of_client(y, client), rows_of_client(outputs, client)))
        np.testing.assert_allclose(metrics["client_rmse"][client], expected, rtol=1e-6)


def test_scores_of_ones_own_see_a_clients_examples_and_no_others(outputs):
    def margin(outputs, y):
        top = jnp.sort(outputs, axis=1)
        return top[:, -1] - top[:, -2]

    def largest(outputs, y, is_there):
        return jnp.where(is_there, y, -1).max()

    metrics = scores_of(data_of(outputs), margin, biggest=largest)
    top = np.sort(outputs, axis=1)
    for client in range(len(OWNED)):
        gaps = rows_of_client(top[:, -1] - top[:, -2], client)
        np.testing.assert_allclose(metrics["client_margin"][client], gaps.mean(), rtol=1e-5)
        assert metrics["client_biggest"][client] == rows_of_client(LABELS, client).max()
    untested = data_of(outputs)._replace(size=jnp.int32([12, 7, 2, 0]))
    untested_metrics = scores_of(untested, margin, biggest=largest)
    assert np.isnan(untested_metrics["client_biggest"][3])  # whatever it makes of nobody's examples
    assert untested_metrics["biggest_macro"] == np.mean([5, 3, 4])
    assert metrics["biggest_macro"] == np.mean([5, 3, 4, 1])
    assert metrics["biggest_micro"] == np.mean(np.repeat([5, 3, 4, 1], [12, 7, 2, 1]), dtype=np.float32)


def test_scores_change_no_other_metric(outputs):
    outputs[19:] = np.eye(N_CLASSES)[LABELS[19:]]  # told rightly, as not all of the first two clients are
    data = data_of(outputs)
    unscored, scored = scores_of(data), scores_of(data, "auc", "top3")
    assert scored.keys() - unscored.keys() == {f"{n}_{m}" for n in ("auc", "top3") for m in ("macro", "micro")} | {
        "client_auc",
        "client_top3",
    }
    for name, value in unscored.items():
        np.testing.assert_array_equal(value, scored[name])
    lowest = np.sort(unscored["client_accuracy"])[:2]
    assert lowest[0] < lowest[1]  # the premise: a tenth of four clients lies between them
    np.testing.assert_allclose(unscored["accuracy_p10"], np.percentile(unscored["client_accuracy"], 10), rtol=1e-6)


def test_a_client_without_test_examples_has_no_score_and_counts_in_none(outputs):
    data = data_of(outputs)
    metrics = scores_of(data._replace(size=data.size.at[1].set(0)), "auc", "top3")
    assert np.isnan([metrics["client_auc"][1], metrics["client_top3"][1]]).all()
    np.testing.assert_allclose(metrics["auc_macro"], metrics["client_auc"][0], rtol=1e-6)
    top3 = metrics["client_top3"][[0, 2, 3]]
    np.testing.assert_allclose(metrics["top3_macro"], top3.mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["top3_micro"], np.average(top3, weights=(12, 2, 1)), rtol=1e-6)


def test_a_model_that_gives_nan_is_not_passed_over(outputs):
    outputs[3, 2] = np.nan  # the first client's
    metrics = scores_of(data_of(outputs), "auc", "top3")
    for name in ("auc", "top3"):
        assert np.isnan(metrics[f"client_{name}"][0])
        assert not np.isnan(metrics[f"client_{name}"][1])
        assert np.isnan(metrics[f"{name}_macro"])
        assert np.isnan(metrics[f"{name}_micro"])


def network(n_classes=10):
    return fljax.MODELS["logistic_regression"]((8, 8, 1), n_classes=n_classes)


@pytest.fixture(name="federation", scope="module")
def six_clients():
    return fljax.PARTITIONS["dirichlet"](*fljax.load("digits"), n_clients=6, beta=0.5, val_fraction=0.2)


@pytest.mark.slow
def test_a_run_gone_on_with_says_what_scikit_learn_does_of_its_predictions(federation, key, tmp_path, no_programs):
    algorithm, hyper = fljax.fedavg(fljax.scored(network(), "auc"), fljax.Work(1, 32)), fljax.fedavg.Hyper(lr=0.1)
    fljax.train(algorithm, hyper, federation, key, 2, folder=tmp_path)
    run = fljax.train(algorithm, hyper, federation, key, 3, folder=tmp_path)
    models = fljax.deployed(algorithm, hyper, run.state, federation, key)
    outputs = np.asarray(fljax.predictions(algorithm.predict, models, federation.test))
    y = np.asarray(federation.test.pool.y)[federation.test.index]
    for client, size in enumerate(federation.test.size):
        probabilities, truth = softmax(outputs[client, :size]), y[client, :size]
        ordered = [c for c in range(10) if 0 < (truth == c).sum() < size]
        expected = np.mean([oracle.roc_auc_score(truth == c, probabilities[:, c]) for c in ordered])
        np.testing.assert_allclose(run.metrics["client_auc"][-1, client], expected, rtol=1e-5)
    other_scores = fljax.fedavg(fljax.scored(network(), "auc", "ece"), fljax.Work(1, 32))
    with no_programs(), pytest.raises(ValueError, match="scores"):
        fljax.train(other_scores, hyper, federation, key, 4, folder=tmp_path)


@pytest.mark.slow
def test_points_of_a_sweep_are_told_apart_by_a_score(federation, key):
    def wrong(outputs, y):
        return outputs.argmax(axis=1) != y

    model = fljax.scored(network(), "ece", wrong)
    algorithm, hypers = fljax.fedavg(model, fljax.Work(1, 32)), grid(fljax.fedavg.Hyper(), lr=(1e-4, 0.2))
    result = search(algorithm, hypers, federation, key, 1, 4, halving=2, metric="wrong_macro")
    assert result.rounds.tolist() == [4, 2]
    rows = tidy(hypers, result.metrics, result.rounds)
    assert best(rows, "wrong_macro").point == {"lr": pytest.approx(1e-4)}  # of one's own the most is best
    rows = [{"lr": lr, "seed": 0, "rounds": 4, "diverged": None, "ece_macro": ece} for lr, ece in ((1, 0.2), (2, 0.1))]
    assert best(rows, "ece_macro").point == {"lr": 2}  # of an error the least
    assert metric_of("wrong_micro", algorithm) == "wrong_micro"
    with pytest.raises(ValueError, match=r"auc_macro.*ece_macro"):
        metric_of("auc_macro", algorithm)


@pytest.mark.slow
def test_new_clients_are_scored_too(federation, key):
    algorithm, hyper = fljax.fedavg(fljax.scored(network(), "top3"), fljax.Work(1, 32)), fljax.fedavg.Hyper()
    trained_clients, new_clients = fljax.hold_out_clients(federation, 0.5, seed=0)
    state, _ = fljax.simulate(algorithm, hyper, trained_clients, key, 1)
    metrics = fljax.evaluate_new_clients(algorithm, hyper, state, new_clients, key)
    assert metrics["client_top3"].shape == metrics["client_accuracy"].shape == (3,)
    assert (metrics["client_top3"] >= metrics["client_accuracy"]).all()


def test_an_argument_with_a_default_is_none_of_a_score():
    model = fljax.scored(network(), near=lambda outputs, y, k=2: y, all=lambda outputs, y, is_there, k=2: y.sum())
    assert [score.of_all for score in model.loss.scores] == [False, True]


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_task_may_be_said_before_or_after(order):
    model = network(1)
    scored = (
        fljax.regression(fljax.scored(model, "rmse"))
        if order == "before"
        else fljax.scored(fljax.regression(model), "rmse")
    )
    assert [score.name for score in scored.loss.scores] == ["rmse"]
    labels = fljax.multi_label(fljax.scored(model, "auc"))
    assert labels.loss(jnp.zeros((1, 1)), jnp.ones((1, 1))) == pytest.approx(np.log(2))
    assert [score.name for score in labels.loss.scores] == ["auc"]


@pytest.mark.parametrize(
    ("scores", "own_scores", "text"),
    [
        (("acu",), {}, "no score 'acu'; the nearest is 'auc'"),
        (("auc", "auc"), {}, "'auc' is given twice"),
        ((), {"accuracy": lambda outputs, y: y}, "'accuracy' has the name of a metric that all tests report"),
        ((lambda outputs, y: y,), {}, "called '<lambda>'; give it a name"),
        ((), {"own": lambda outputs: outputs}, "'own' takes 1 arguments"),
        ((3,), {}, "score 3 is not a function"),
    ],
)
def test_scores_that_cannot_be_are_refused(scores, own_scores, text):
    with pytest.raises(ValueError, match=text):
        fljax.scored(network(), *scores, **own_scores)


@pytest.mark.parametrize(
    ("score", "text"),
    [
        ({"own": lambda outputs, y: outputs}, r"'own' returned an array \(12, 6\); return one number per example"),
        ({"own": lambda outputs, y, is_there: y}, r"'own' returned an array \(12,\); return one number per client"),
        (
            {"rmse": fljax.SCORES["rmse"]},
            "score 'rmse' is for regression, not for classification; choose another score",
        ),
    ],
)
def test_scores_of_another_shape_or_task_are_refused(outputs, score, text):
    with pytest.raises(ValueError, match=text):
        scores_of(data_of(outputs), **score)


def test_a_score_has_a_column_of_the_table_whatever_its_name():
    """``new_...`` are also what the contract's measures of new clients are called."""
    row = {"algorithm": "fedavg", "accuracy_macro": 0.5, "new_accuracy_macro": None, "new_words_macro": 0.25}
    head, line = as_table([row]).splitlines()[-2:]
    assert "words" in head
    assert "0.2500" in line


@pytest.mark.parametrize("name", ["auc", "average_precision", "balanced_accuracy"])
def test_outputs_that_are_no_numbers_have_no_score(name):
    outputs, y, is_there = (
        np.eye(3, dtype=np.float32)[[0, 1, 2, 0]],
        np.int32([0, 1, 2, 1]),
        np.array([True] * 3 + [False]),
    )
    score = getattr(fljax.scores, name)
    assert float(score(np.where(np.arange(4)[:, None] == 1, np.float32(np.nan), outputs), y, is_there)) != 1
    assert np.isnan(score(np.where(np.arange(4)[:, None] == 1, np.float32(np.nan), outputs), y, is_there))
    assert float(score(np.where(is_there[:, None], outputs, np.float32(np.nan)), y, is_there)) == 1  # it is not there
