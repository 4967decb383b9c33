"""Early stopping, and tests on the validation split: where a run ends, and that nothing else of it changes."""

import math

import jax
import numpy as np
import pytest

import fljax
from fljax.drift.drifting import drifting
from fljax.drift.named import swap_labels
from fljax.run.checkpoint import rounds_done
from fljax.run.patience import Patience, at_best_validation, best_round, ends_after
from fljax.run.report import Outcome, final_table
from fljax.run.sweep.search import on_validation


def end_of(tests, patience, every):
    """By the definition: the first test at least so many rounds after the best one of those so far; None: none is."""
    best, best_at = -math.inf, 0
    for made, value in enumerate(tests, 1):
        if value > best:
            best, best_at = value, made
        if made % every == 0 and made >= best_at + patience:
            return made
    return None


def where_it_ends(tests, patience, every):
    """The same of a run that makes no more rounds than these."""
    return end_of(tests, patience, every) or len(tests)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_ends_where_the_definition_says_whatever_its_chunks(seed):
    rng = np.random.default_rng(seed)
    n_rounds, patience, every = (int(n) for n in (rng.integers(20, 60), rng.integers(1, 9), rng.integers(1, 5)))
    tests = rng.integers(0, 12, n_rounds) / 12 + np.linspace(0, seed % 2 * rng.random(), n_rounds)
    tests[[made % every != 0 and made != n_rounds for made in range(1, n_rounds + 1)]] = np.nan
    tests[rng.random(n_rounds) < 0.1] = np.nan  # tests of models that give NaN
    waits, made = Patience(patience, every), 0
    while made < (until := waits.until(n_rounds)):
        count = int(rng.integers(1, until - made + 1))
        waits.took({"accuracy_macro": tests[made : made + count]})
        made += count
    assert made == where_it_ends(tests, patience, every)
    for n in range(1, n_rounds + 1):  # told afterwards, of a run of so many rounds
        assert ends_after({"accuracy_macro": tests[:n]}, patience, every) == end_of(tests[:n], patience, every)


@pytest.fixture(name="six", scope="module")
def six_clients():
    made = fljax.PARTITIONS["dirichlet"](*fljax.load("digits"), n_clients=6, beta=0.5, val_fraction=0.2)
    nobody = np.array(made.test.size)
    nobody[2] = 0  # an attacker is not tested
    return made._replace(test=made.test._replace(size=nobody))


HYPER = fljax.fedavg.Hyper(lr=0.5)
PATIENCE = 3


def method(change=lambda model: model):
    network = fljax.MODELS["logistic_regression"]((8, 8, 1), n_classes=10)
    return fljax.fedavg(change(network), fljax.Work(1, 16))


@pytest.fixture(name="whole", scope="module")
def whole_run(six):
    """A run that makes all rounds, of a model that is validated."""
    run = fljax.train(method(fljax.validated), HYPER, six, jax.random.key(0), 30)
    return run.state, run.metrics


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_run_that_ends_early_is_the_beginning_of_the_whole_one(six, whole, tmp_path, seconds):
    ends = where_it_ends(whole[1]["val_accuracy_macro"], PATIENCE, 1)
    assert PATIENCE < ends < 30
    given = method(fljax.validated), HYPER, six, jax.random.key(0)
    fljax.train(*given, ends - 2, patience=PATIENCE, folder=tmp_path, seconds_per_chunk=seconds)
    run = fljax.train(*given, 30, patience=PATIENCE, folder=tmp_path, seconds_per_chunk=seconds)
    assert rounds_done(tmp_path) == ends  # of the newest checkpoint
    again = fljax.train(*given, 30, patience=PATIENCE, folder=tmp_path)  # which has ended
    for one in (run, again):
        for name, values in whole[1].items():
            np.testing.assert_array_equal(one.metrics[name], values[:ends], err_msg=name)
    jax.tree.map(np.testing.assert_array_equal, run.state, fljax.train(*given, ends).state)
    with pytest.raises(ValueError, match="validated"):
        fljax.train(method(), *given[1:], 30, folder=tmp_path)
    on = fljax.train(*given, 30, folder=tmp_path)  # another patience, or none, goes on with it
    np.testing.assert_array_equal(on.metrics["val_loss"], whole[1]["val_loss"])


@pytest.mark.slow
def test_without_a_folder_and_without_validation_the_tests_judge(six):
    given = method(), HYPER, six, jax.random.key(0)
    tests = fljax.train(*given, 30).metrics["accuracy_macro"]
    run = fljax.train(*given, 30, patience=2)
    assert len(run.metrics["loss"]) == where_it_ends(tests, 2, 1) < 30


def test_validation_is_a_test_of_the_validation_split(six, whole):
    state, metrics = whole
    plain = fljax.train(method(), HYPER, six, jax.random.key(0), 30).metrics
    for name, values in plain.items():
        np.testing.assert_array_equal(values, metrics[name], err_msg=name)
    assert metrics.keys() - plain.keys() == {f"val_{name.removeprefix('test_')}" for name in TESTED}
    algorithm = method()
    models = fljax.deployed(algorithm, HYPER, state, six, jax.random.key(0))
    found = fljax.evaluate(algorithm.predict, models, on_validation(six).test)
    for name in TESTED:
        np.testing.assert_allclose(metrics[f"val_{name.removeprefix('test_')}"][-1], found[name], rtol=1e-6)


TESTED = ("accuracy_macro", "accuracy_micro", "accuracy_p10", "f1_macro", "f1_micro", "test_loss")


def test_the_table_has_the_test_of_the_best_validated_round(whole):
    state, metrics = whole
    models = fljax.ModelTable(jax.tree.map(lambda leaf: leaf[None], state.server), np.zeros(6, int))
    (row,) = final_table({"fedavg": Outcome(metrics, models, 1.0)})
    at = int(metrics["val_accuracy_macro"].argmax())
    assert (row["best_val_round"], row["accuracy_at_best_val"]) == (at + 1, metrics["accuracy_macro"][at])
    found = at_best_validation(metrics)
    for made in range(1, 31):
        until = metrics["val_accuracy_macro"][:made]
        assert found[made - 1] == metrics["accuracy_macro"][until.argmax()]
    untested = {"accuracy_macro": np.array([np.nan, 0.5, 0.2]), "val_accuracy_macro": np.array([np.nan, 0.5, 0.5])}
    np.testing.assert_array_equal(at_best_validation(untested), [np.nan, 0.5, 0.5])
    assert best_round({"accuracy_macro": np.full(3, np.nan)}) is None


def test_scores_and_tasks_are_kept_by_a_model_that_is_validated():
    network = fljax.MODELS["logistic_regression"]((8, 8, 1), n_classes=10)
    for made in (
        fljax.scored(fljax.validated(network), "top3"),
        fljax.validated(fljax.scored(network, "top3")),
        fljax.regression(fljax.scored(fljax.validated(network), "top3")),
    ):
        assert made.loss.on_validation
        assert [score.name for score in made.loss.scores] == ["top3"]


@pytest.mark.parametrize("patience", [0, -1, 1.5, "3"])
def test_a_patience_that_is_none_is_refused(six, patience):
    with pytest.raises(ValueError, match="patience="):
        fljax.train(method(), HYPER, six, jax.random.key(0), 3, patience=patience)


def test_what_cannot_be_judged_is_refused(six):
    with pytest.raises(ValueError, match="no validation split"):
        fljax.simulate(method(fljax.validated), HYPER, six._replace(val=None), jax.random.key(0), 1)
    with pytest.raises(ValueError, match="patience=3: the clients change over the rounds"):
        fljax.train(method(), HYPER, drifting(six, swap_labels()), jax.random.key(0), 30, patience=3)


def test_a_run_ends_at_the_first_test_that_stop_says(six, whole, tmp_path):
    """It is asked of every test, in order, and of those before a resume again; what was made is the whole run's."""
    loss, asked = whole[1]["test_loss"], []
    given = method(fljax.validated), HYPER, six, jax.random.key(0)

    def after(n):
        def stop(round, metrics):
            asked.append((round, float(metrics["test_loss"]), metrics["client_accuracy"].shape))
            return round >= n

        return stop

    def run(n_rounds, n, **options):
        asked.clear()
        return fljax.train(*given, n_rounds, evaluate_every=3, stop=after(n), seconds_per_chunk=5.0, **options)

    for folder in (None, tmp_path / "x"):
        ended = run(30, 8, folder=folder)
        assert len(ended.metrics["ids"]) == 9
        assert [round for round, *_ in asked] == [3, 6, 9]
        np.testing.assert_allclose([value for _, value, _ in asked], loss[[2, 5, 8]], rtol=1e-6)
        assert {shape for *_, shape in asked} == {(6,)}
        np.testing.assert_array_equal(ended.metrics["loss"], whole[1]["loss"][:9])
    assert len(run(30, 8, folder=tmp_path / "x").metrics["ids"]) == 9  # it had ended
    assert [round for round, *_ in asked] == [3, 6, 9]
    assert len(run(30, 11, folder=tmp_path / "x").metrics["ids"]) == 12
    assert [round for round, *_ in asked] == [3, 6, 9, 12]
    assert len(run(30, 4, folder=tmp_path / "x").metrics["ids"]) == 12  # what was made stays
    assert [round for round, *_ in asked] == [3, 6]
    assert rounds_done(tmp_path / "x") == 12
    assert len(run(13, 99).metrics["ids"]) == 13  # the last round is tested, and is the last
    with_patience = fljax.train(*given, 30, patience=PATIENCE, stop=lambda round, metrics: False)
    assert len(with_patience.metrics["ids"]) == where_it_ends(whole[1]["val_accuracy_macro"], PATIENCE, 1)


def test_a_stop_that_is_none_is_refused(six):
    given = method(), HYPER, six, jax.random.key(0), 4
    with pytest.raises(ValueError, match="stop returned None after round 1; return True to end the run, else False"):
        fljax.train(*given, stop=lambda round, metrics: None)
    with pytest.raises(ValueError, match="stop=3 is not a function"):
        fljax.train(*given, stop=3)
