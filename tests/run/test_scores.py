"""Scores besides the metric contract: by scikit-learn and by hand, in runs, sweeps and of models that give NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as oracle

import fljax
from fljax.run.comparison import as_table
from fljax.run.sweep.points import grid
from fljax.run.sweep.search import search
from fljax.run.sweep.table import best, metric_of, tidy
from fljax.types import ClientData, Examples, ModelTable

N_CLASSES = 6
OWNED = ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (12, 13, 14, 15, 16, 17, 18), (19, 20), (21,))
LABELS = np.array([0, 1, 2, 3, 4, 5, 0, 1, 1, 1, 2, 5, 3, 3, 3, 2, 2, 3, 2, 4, 4, 1], np.int32)
"""Of four clients: all classes, two, one, and a single example."""


def as_told(params, x):
    """A network that tells what the examples hold."""
    return x


def data_of(outputs, y=LABELS, owned=OWNED):
    """What fills a shorter client's row is another client's."""
    longest = max(map(len, owned))
    index = np.array([[*rows, *[1] * (longest - len(rows))] for rows in owned], np.int32)
    size = np.array([len(rows) for rows in owned], np.int32)
    return jax.tree.map(jnp.asarray, ClientData(Examples(outputs, y), index, size))


def scores_of(data, *scores, task=lambda model: model, **named):
    """Metrics of outputs that stand in the data."""
    network = fljax.from_functions(lambda key: {"w": jnp.zeros(1)}, as_told)
    model = fljax.scored(task(network), *scores, **named)
    models = ModelTable({"w": jnp.zeros((1, 1))}, jnp.zeros(len(OWNED), jnp.int32))
    return jax.device_get(fljax.evaluate(as_told, models, data, model.loss))


def own(array, client):
    return array[list(OWNED[client])]


def softmax(outputs):
    exp = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


@pytest.fixture(name="outputs")
def tied_outputs():
    """Half of them with ties, within a class and between classes."""
    rng = np.random.default_rng(0)
    drawn = 2 * rng.normal(size=(len(LABELS), N_CLASSES)).astype(np.float32)
    drawn[::2] = drawn[::2].round()
    drawn[1] = drawn[2]
    drawn[13] = drawn[15]
    return drawn


def one_vs_rest(function, outputs, y):
    """Mean over the classes that some examples are of and some are not."""
    told = softmax(outputs)
    return np.mean([function(y == c, told[:, c]) for c in range(N_CLASSES) if 0 < (y == c).sum() < len(y)])


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_orders_of_classes_are_scikit_learns(outputs, name):
    function = {"auc": oracle.roc_auc_score, "average_precision": oracle.average_precision_score}[name]
    found = scores_of(data_of(outputs), name)
    for client in (0, 1):
        value = one_vs_rest(function, own(outputs, client), own(LABELS, client))
        np.testing.assert_allclose(found[f"client_{name}"][client], value, rtol=1e-6)
    assert np.isnan(found[f"client_{name}"][2:]).all()  # one class alone has no order
    defined = found[f"client_{name}"][:2]
    np.testing.assert_allclose(found[f"{name}_macro"], defined.mean(), rtol=1e-6)
    np.testing.assert_allclose(found[f"{name}_micro"], (12 * defined[0] + 7 * defined[1]) / 19, rtol=1e-6)


@pytest.mark.parametrize("name", ["auc", "average_precision"])
def test_orders_of_labels_are_scikit_learns(outputs, name):
    function = {"auc": oracle.roc_auc_score, "average_precision": oracle.average_precision_score}[name]
    y = (np.random.default_rng(1).random((len(LABELS), N_CLASSES)) < 0.4).astype(np.float32)
    found = scores_of(data_of(outputs, y), name, task=fljax.multi_label)[f"client_{name}"]
    for client in (0, 1, 2):
        truth, told = own(y, client), own(outputs, client)
        some = [c for c in range(N_CLASSES) if 0 < truth[:, c].sum() < len(truth)]
        value = np.mean([function(truth[:, c], told[:, c]) for c in some])
        np.testing.assert_allclose(found[client], value, rtol=1e-6)


def test_of_two_classes_the_area_is_that_of_the_second(outputs):
    found = scores_of(data_of(outputs[:, :2], LABELS % 2), "auc")["client_auc"]
    for client in (0, 1):
        told = own(outputs, client)[:, 1] - own(outputs, client)[:, 0]
        np.testing.assert_allclose(found[client], oracle.roc_auc_score(own(LABELS, client) % 2, told), rtol=1e-6)


def test_scores_of_classes_are_scikit_learns(outputs):
    found = scores_of(data_of(outputs), "balanced_accuracy", "top3", "top5", "brier")
    for client in range(len(OWNED)):
        told, y = own(outputs, client), own(LABELS, client)
        if client < 2:  # scikit-learn warns of classes that are told and not there
            recall = [(told[y == c].argmax(axis=1) == c).mean() for c in np.unique(y)]
            np.testing.assert_allclose(found["client_balanced_accuracy"][client], np.mean(recall), rtol=1e-6)
        for k in (3, 5):
            order = np.argsort(-told, axis=1, kind="stable")[:, :k]  # of equal ones the lower class comes first
            value = (order == y[:, None]).any(axis=1).mean()
            np.testing.assert_allclose(found[f"client_top{k}"][client], value, rtol=1e-6)
        value = oracle.brier_score_loss(y, softmax(told), labels=range(N_CLASSES), scale_by_half=False)
        np.testing.assert_allclose(found["client_brier"][client], value, rtol=1e-5)


def test_a_fifth_of_few_classes_is_all_of_them(outputs):
    assert (scores_of(data_of(outputs[:, :3], LABELS % 3), "top5")["client_top5"] == 1).all()


def test_balanced_accuracy_is_scikit_learns():
    rng = np.random.default_rng(2)
    y = np.repeat(np.arange(3), (2, 5, 15)).astype(np.int32)
    outputs = rng.normal(size=(22, 3)).astype(np.float32) + np.eye(3, dtype=np.float32)[y]
    data = data_of(outputs, y, (range(22),))
    model = fljax.scored(fljax.from_functions(lambda key: {"w": jnp.zeros(1)}, as_told), "balanced_accuracy")
    models = ModelTable({"w": jnp.zeros((1, 1))}, jnp.zeros(1, jnp.int32))
    found = fljax.evaluate(as_told, models, data, model.loss)["balanced_accuracy_macro"]
    np.testing.assert_allclose(found, oracle.balanced_accuracy_score(y, outputs.argmax(axis=1)), rtol=1e-6)


def test_calibration_is_that_of_bins_counted_by_hand(outputs):
    found = scores_of(data_of(outputs), "ece")["client_ece"]
    for client in range(len(OWNED)):
        told, y = softmax(own(outputs, client)), own(LABELS, client)
        sure, right, error = told.max(axis=1), told.argmax(axis=1) == y, 0.0
        for low in np.linspace(0, 1, 16)[:-1]:
            here = (sure > low) & (sure <= low + 1 / 15)
            error += here.mean() * abs(right[here].mean() - sure[here].mean()) if here.any() else 0
        np.testing.assert_allclose(found[client], error, rtol=1e-5)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_root_of_the_squared_error_is_scikit_learns(n_targets):
    rng = np.random.default_rng(3)
    y, outputs = (rng.normal(size=(len(LABELS), n_targets)).astype(np.float32) for _ in range(2))
    found = scores_of(data_of(outputs, y[:, 0] if n_targets == 1 else y), "rmse", task=fljax.regression)
    for client in range(len(OWNED)):
        value = np.sqrt(oracle.mean_squared_error(own(y, client), own(outputs, client)))
        np.testing.assert_allclose(found["client_rmse"][client], value, rtol=1e-6)


def test_scores_of_ones_own_see_a_clients_examples_and_no_others(outputs):
    def margin(outputs, y):
        top = jnp.sort(outputs, axis=1)
        return top[:, -1] - top[:, -2]

    def largest(outputs, y, is_there):
        return jnp.where(is_there, y, -1).max()

    found = scores_of(data_of(outputs), margin, biggest=largest)
    top = np.sort(outputs, axis=1)
    for client in range(len(OWNED)):
        gaps = own(top[:, -1] - top[:, -2], client)
        np.testing.assert_allclose(found["client_margin"][client], gaps.mean(), rtol=1e-5)
        assert found["client_biggest"][client] == own(LABELS, client).max()
    untested = data_of(outputs)._replace(size=jnp.int32([12, 7, 2, 0]))
    some = scores_of(untested, margin, biggest=largest)
    assert np.isnan(some["client_biggest"][3])  # whatever it makes of nobody's examples
    assert some["biggest_macro"] == np.mean([5, 3, 4])
    assert found["biggest_macro"] == np.mean([5, 3, 4, 1])
    assert found["biggest_micro"] == np.mean(np.repeat([5, 3, 4, 1], [12, 7, 2, 1]), dtype=np.float32)


def test_what_every_test_says_stays_as_it_is(outputs):
    outputs[19:] = np.eye(N_CLASSES)[LABELS[19:]]  # told rightly, as not all of the first two clients are
    data = data_of(outputs)
    without, scored = scores_of(data), scores_of(data, "auc", "top3")
    assert scored.keys() - without.keys() == {f"{n}_{m}" for n in ("auc", "top3") for m in ("macro", "micro")} | {
        "client_auc",
        "client_top3",
    }
    for name, value in without.items():
        np.testing.assert_array_equal(value, scored[name])
    least = np.sort(without["client_accuracy"])[:2]
    assert least[0] < least[1]  # the premise: a tenth of four clients lies between them
    np.testing.assert_allclose(without["accuracy_p10"], np.percentile(without["client_accuracy"], 10), rtol=1e-6)


def test_a_client_without_test_examples_has_no_score_and_counts_in_none(outputs):
    data = data_of(outputs)
    found = scores_of(data._replace(size=data.size.at[1].set(0)), "auc", "top3")
    assert np.isnan([found["client_auc"][1], found["client_top3"][1]]).all()
    np.testing.assert_allclose(found["auc_macro"], found["client_auc"][0], rtol=1e-6)
    tested = found["client_top3"][[0, 2, 3]]
    np.testing.assert_allclose(found["top3_macro"], tested.mean(), rtol=1e-6)
    np.testing.assert_allclose(found["top3_micro"], np.average(tested, weights=(12, 2, 1)), rtol=1e-6)


def test_a_model_that_gives_nan_is_not_passed_over(outputs):
    outputs[3, 2] = np.nan  # the first client's
    found = scores_of(data_of(outputs), "auc", "top3")
    for name in ("auc", "top3"):
        assert np.isnan(found[f"client_{name}"][0])
        assert not np.isnan(found[f"client_{name}"][1])
        assert np.isnan(found[f"{name}_macro"])
        assert np.isnan(found[f"{name}_micro"])


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
        told, truth = softmax(outputs[client, :size]), y[client, :size]
        some = [c for c in range(10) if 0 < (truth == c).sum() < size]
        value = np.mean([oracle.roc_auc_score(truth == c, told[:, c]) for c in some])
        np.testing.assert_allclose(run.metrics["client_auc"][-1, client], value, rtol=1e-5)
    other = fljax.fedavg(fljax.scored(network(), "auc", "ece"), fljax.Work(1, 32))
    with no_programs(), pytest.raises(ValueError, match="scores"):
        fljax.train(other, hyper, federation, key, 4, folder=tmp_path)


@pytest.mark.slow
def test_points_of_a_sweep_are_told_apart_by_a_score(federation, key):
    def wrong(outputs, y):
        return outputs.argmax(axis=1) != y

    model = fljax.scored(network(), "ece", wrong)
    algorithm, hypers = fljax.fedavg(model, fljax.Work(1, 32)), grid(fljax.fedavg.Hyper(), lr=(1e-4, 0.2))
    found = search(algorithm, hypers, federation, key, 1, 4, halving=2, metric="wrong_macro")
    assert found.rounds.tolist() == [4, 2]
    rows = tidy(hypers, found.metrics, found.rounds)
    assert best(rows, "wrong_macro").point == {"lr": pytest.approx(1e-4)}  # of one's own the most is best
    rows = [{"lr": lr, "seed": 0, "rounds": 4, "diverged": None, "ece_macro": ece} for lr, ece in ((1, 0.2), (2, 0.1))]
    assert best(rows, "ece_macro").point == {"lr": 2}  # of an error the least
    assert metric_of("wrong_micro", algorithm) == "wrong_micro"
    with pytest.raises(ValueError, match=r"auc_macro.*ece_macro"):
        metric_of("auc_macro", algorithm)


@pytest.mark.slow
def test_new_clients_are_scored_too(federation, key):
    algorithm, hyper = fljax.fedavg(fljax.scored(network(), "top3"), fljax.Work(1, 32)), fljax.fedavg.Hyper()
    old, new = fljax.hold_out_clients(federation, 0.5, seed=0)
    state, _ = fljax.simulate(algorithm, hyper, old, key, 1)
    found = fljax.evaluate_new_clients(algorithm, hyper, state, new, key)
    assert found["client_top3"].shape == found["client_accuracy"].shape == (3,)
    assert (found["client_top3"] >= found["client_accuracy"]).all()


def test_an_argument_with_a_default_is_none_of_a_score():
    model = fljax.scored(network(), near=lambda outputs, y, k=2: y, all=lambda outputs, y, is_there, k=2: y.sum())
    assert [score.of_all for score in model.loss.scores] == [False, True]


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_task_may_be_said_before_or_after(order):
    model = network(1)
    made = (
        fljax.regression(fljax.scored(model, "rmse"))
        if order == "before"
        else fljax.scored(fljax.regression(model), "rmse")
    )
    assert [score.name for score in made.loss.scores] == ["rmse"]
    both = fljax.multi_label(fljax.scored(model, "auc"))
    assert both.loss(jnp.zeros((1, 1)), jnp.ones((1, 1))) == pytest.approx(np.log(2))
    assert [score.name for score in both.loss.scores] == ["auc"]


@pytest.mark.parametrize(
    ("scores", "named", "text"),
    [
        (("acu",), {}, "no score 'acu'; the nearest is 'auc'"),
        (("auc", "auc"), {}, "'auc' is given twice"),
        ((), {"accuracy": lambda outputs, y: y}, "'accuracy' has the name of a metric that all tests report"),
        ((lambda outputs, y: y,), {}, "called '<lambda>'; give it a name"),
        ((), {"own": lambda outputs: outputs}, "'own' takes 1 arguments"),
        ((3,), {}, "score 3 is not a function"),
    ],
)
def test_scores_that_cannot_be_are_refused(scores, named, text):
    with pytest.raises(ValueError, match=text):
        fljax.scored(network(), *scores, **named)


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
