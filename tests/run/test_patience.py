"""Early stopping, and tests on the validation split: where a run ends, and that nothing else of it changes."""

import math

import jax
import numpy as np
import pytest

import fljax
from fljax.drift.drifting import drifting
from fljax.drift.named import swap_labels
from fljax.folder.checkpoint import rounds_done
from fljax.metrics.best_round import at_best_validation, best_round
from fljax.report.summary import Outcome, final_table
from fljax.run.patience import Patience, ends_after
from fljax.run.sweep.search import on_validation
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("one_device")


def end_of(tests, patience, every):
    """By the definition: the first test at least so many rounds after the best one of those so far; None: none is."""
    best, best_round = -math.inf, 0
    for n_rounds, value in enumerate(tests, 1):
        if value > best:
            best, best_round = value, n_rounds
        if n_rounds % every == 0 and n_rounds >= best_round + patience:
            return n_rounds
    return None


def where_it_ends(tests, patience, every):
    """The same of a run that makes no more rounds than these."""
    return end_of(tests, patience, every) or len(tests)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_ends_where_the_definition_says_whatever_its_chunks(seed):
    rng = np.random.default_rng(seed)
    n_rounds, patience, every = (int(n) for n in (rng.integers(20, 60), rng.integers(1, 9), rng.integers(1, 5)))
    tests = rng.integers(0, 12, n_rounds) / 12 + np.linspace(0, seed % 2 * rng.random(), n_rounds)
    tests[[n_done % every != 0 and n_done != n_rounds for n_done in range(1, n_rounds + 1)]] = np.nan
    tests[rng.random(n_rounds) < 0.1] = np.nan  # tests of models that give NaN
    rule, n_done = Patience(patience, every), 0
    while n_done < (n_possible := rule.until(n_rounds)):
        count = int(rng.integers(1, n_possible - n_done + 1))
        rule.took({"accuracy_macro": tests[n_done : n_done + count]})
        n_done += count
    assert n_done == where_it_ends(tests, patience, every)
    for n in range(1, n_rounds + 1):  # told afterwards, of a run of so many rounds
        assert ends_after({"accuracy_macro": tests[:n]}, patience, every) == end_of(tests[:n], patience, every)


@pytest.fixture(name="small_federation", scope="module")
def six_clients():
    federation = fljax.PARTITIONS["dirichlet"](*fljax.load("digits"), n_clients=6, beta=0.5, val_fraction=0.2)
    test_sizes = np.array(federation.test.size)
    test_sizes[2] = 0  # an attacker is not tested
    return federation._replace(test=federation.test._replace(size=test_sizes))


HYPER = fljax.fedavg.Hyper(lr=0.5)
PATIENCE = 3


def method(change=lambda model: model):
    network = fljax.MODELS["logistic_regression"]((8, 8, 1), n_classes=10)
    return fljax.fedavg(change(network), fljax.Work(1, 16))


@pytest.fixture(name="full_run", scope="module")
def whole_run(small_federation):
    """A run that makes all rounds, of a model that is validated."""
    run = fljax.train(method(fljax.validated), HYPER, small_federation, jax.random.key(0), 30)
    return run.state, run.metrics


@pytest.mark.parametrize("seconds", [5.0, *slow(0.0)])
def test_a_run_that_ends_early_is_the_beginning_of_the_whole_one(small_federation, full_run, tmp_path, seconds):
    n_expected = where_it_ends(full_run[1]["val_accuracy_macro"], PATIENCE, 1)
    assert PATIENCE < n_expected < 30
    arguments = method(fljax.validated), HYPER, small_federation, jax.random.key(0)
    fljax.train(*arguments, n_expected - 2, patience=PATIENCE, folder=tmp_path, seconds_per_chunk=seconds)
    run = fljax.train(*arguments, 30, patience=PATIENCE, folder=tmp_path, seconds_per_chunk=seconds)
    assert rounds_done(tmp_path) == n_expected  # of the newest checkpoint
    reopened = fljax.train(*arguments, 30, patience=PATIENCE, folder=tmp_path)  # which has ended
    for result in (run, reopened):
        for name, values in full_run[1].items():
            np.testing.assert_array_equal(result.metrics[name], values[:n_expected], err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, run.state, fljax.train(*arguments, n_expected).state)
    with pytest.raises(ValueError, match="validated"):
        fljax.train(method(), *arguments[1:], 30, folder=tmp_path)
    continued = fljax.train(*arguments, 30, folder=tmp_path)  # another patience, or none, goes on with it
    np.testing.assert_array_equal(continued.metrics["val_loss"], full_run[1]["val_loss"])


@pytest.mark.slow
def test_without_a_folder_and_without_validation_the_tests_judge(small_federation):
    arguments = method(), HYPER, small_federation, jax.random.key(0)
    tests = fljax.train(*arguments, 30).metrics["accuracy_macro"]
    run = fljax.train(*arguments, 30, patience=2)
    assert len(run.metrics["loss"]) == where_it_ends(tests, 2, 1) < 30


def test_validation_is_a_test_of_the_validation_split(small_federation, full_run):
    state, metrics = full_run
    unvalidated = fljax.train(method(), HYPER, small_federation, jax.random.key(0), 30).metrics
    for name, values in unvalidated.items():
        np.testing.assert_array_equal(values, metrics[name], err_msg=name)
    assert metrics.keys() - unvalidated.keys() == {f"val_{name.removeprefix('test_')}" for name in TESTED}
    algorithm = method()
    models = fljax.deployed(algorithm, HYPER, state, small_federation, jax.random.key(0))
    evaluated = fljax.evaluate(algorithm.predict, models, on_validation(small_federation).test)
    for name in TESTED:
        np.testing.assert_allclose(metrics[f"val_{name.removeprefix('test_')}"][-1], evaluated[name], rtol=1e-6)


TESTED = ("accuracy_macro", "accuracy_micro", "accuracy_p10", "f1_macro", "f1_micro", "test_loss")


def test_the_table_has_the_test_of_the_best_validated_round(full_run):
    state, metrics = full_run
    models = fljax.ModelTable(jax.tree.map(lambda leaf: leaf[None], state.server), np.zeros(6, int))
    (row,) = final_table({"fedavg": Outcome(metrics, models, 1.0)})
    best = int(metrics["val_accuracy_macro"].argmax())
    assert (row["best_val_round"], row["accuracy_at_best_val"]) == (best + 1, metrics["accuracy_macro"][best])
    accuracy = at_best_validation(metrics)
    for n_rounds in range(1, 31):
        accuracies = metrics["val_accuracy_macro"][:n_rounds]
        assert accuracy[n_rounds - 1] == metrics["accuracy_macro"][accuracies.argmax()]
    untested = {"accuracy_macro": np.array([np.nan, 0.5, 0.2]), "val_accuracy_macro": np.array([np.nan, 0.5, 0.5])}
    np.testing.assert_array_equal(at_best_validation(untested), [np.nan, 0.5, 0.5])
    assert best_round({"accuracy_macro": np.full(3, np.nan)}) is None
    of_numbers = {"r2_micro": np.array([0.1, 0.2, 0.3]), "val_r2_micro": np.array([-np.inf, -5.0, -6.0])}
    np.testing.assert_array_equal(at_best_validation(of_numbers), [0.1, 0.2, 0.2])
    assert best_round(of_numbers) == 1


def test_scores_and_tasks_are_kept_by_a_model_that_is_validated():
    network = fljax.MODELS["logistic_regression"]((8, 8, 1), n_classes=10)
    for model in (
        fljax.scored(fljax.validated(network), "top3"),
        fljax.validated(fljax.scored(network, "top3")),
        fljax.regression(fljax.scored(fljax.validated(network), "top3")),
    ):
        assert model.loss.on_validation
        assert [score.name for score in model.loss.scores] == ["top3"]


@pytest.mark.parametrize("patience", [0, -1, 1.5, "3"])
def test_a_patience_that_is_none_is_refused(small_federation, patience):
    with pytest.raises(ValueError, match="patience="):
        fljax.train(method(), HYPER, small_federation, jax.random.key(0), 3, patience=patience)


def test_what_cannot_be_judged_is_refused(small_federation):
    with pytest.raises(ValueError, match="no validation split"):
        fljax.simulate(method(fljax.validated), HYPER, small_federation._replace(val=None), jax.random.key(0), 1)
    with pytest.raises(ValueError, match="patience=3: the clients change over the rounds"):
        fljax.train(method(), HYPER, drifting(small_federation, swap_labels()), jax.random.key(0), 30, patience=3)


def test_a_run_ends_at_the_first_test_that_stop_says(small_federation, full_run, tmp_path):
    """It is asked of every test, in order, and of those before a resume again; what was made is the whole run's."""
    loss, calls = full_run[1]["test_loss"], []
    arguments = method(fljax.validated), HYPER, small_federation, jax.random.key(0)

    def stop_after(n):
        def stop(round, metrics):
            calls.append((round, float(metrics["test_loss"]), metrics["client_accuracy"].shape))
            return round >= n

        return stop

    def run(n_rounds, n, **options):
        calls.clear()
        return fljax.train(*arguments, n_rounds, evaluate_every=3, stop=stop_after(n), seconds_per_chunk=5.0, **options)

    for folder in (None, tmp_path / "x"):
        result = run(30, 8, folder=folder)
        assert len(result.metrics["ids"]) == 9
        assert [round for round, *_ in calls] == [3, 6, 9]
        np.testing.assert_allclose([value for _, value, _ in calls], loss[[2, 5, 8]], rtol=1e-6)
        assert {shape for *_, shape in calls} == {(6,)}
        np.testing.assert_array_equal(result.metrics["loss"], full_run[1]["loss"][:9])
    assert len(run(30, 8, folder=tmp_path / "x").metrics["ids"]) == 9  # it had ended
    assert [round for round, *_ in calls] == [3, 6, 9]
    assert len(run(30, 11, folder=tmp_path / "x").metrics["ids"]) == 12
    assert [round for round, *_ in calls] == [3, 6, 9, 12]
    assert len(run(30, 4, folder=tmp_path / "x").metrics["ids"]) == 12  # what was made stays
    assert [round for round, *_ in calls] == [3, 6]
    assert rounds_done(tmp_path / "x") == 12
    assert len(run(13, 99).metrics["ids"]) == 13  # the last round is tested, and is the last
    with_patience = fljax.train(*arguments, 30, patience=PATIENCE, stop=lambda round, metrics: False)
    assert len(with_patience.metrics["ids"]) == where_it_ends(full_run[1]["val_accuracy_macro"], PATIENCE, 1)


def test_a_stop_that_is_none_is_refused(small_federation):
    arguments = method(), HYPER, small_federation, jax.random.key(0), 4
    with pytest.raises(ValueError, match="stop returned None after round 1; return True to end the run, else False"):
        fljax.train(*arguments, stop=lambda round, metrics: None)
    with pytest.raises(ValueError, match="stop=3 is not a function"):
        fljax.train(*arguments, stop=3)
