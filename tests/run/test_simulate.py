"""The pure run: rounds, participation, evaluation, traced numbers."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.ifca import ifca
from fljax.algorithms.standalone import standalone
from fljax.numbers import Scalar, hyper, joined, number
from fljax.run import simulate as simulate_module
from fljax.run.one_round import due_rounds, split_key
from fljax.run.simulate import simulate
from fljax.run.sweep import search, sweep
from fljax.run.train import train
from fljax.types import Work

ROUNDS, NUMBERS = 10, fljax.standalone.Hyper(lr=0.3, momentum=0.5, lr_decay=0.9)


@pytest.fixture(scope="module")
def run(model, federation):
    """A run of half of the clients in each round; all numbers and all dropouts share one program."""
    algorithm = standalone(model, Work(5, 8))

    def simulate_half(hyper=NUMBERS, seed=0, dropout=0.0, **options):
        arguments = algorithm, hyper, federation, jax.random.key(seed), ROUNDS
        return jax.device_get(simulate(*arguments, participation=0.5, dropout=dropout, **options))

    return simulate_half


@pytest.fixture(scope="module")
def metrics(run):
    return run()[1]


def test_metrics_have_a_leading_axis_over_rounds(metrics):
    assert {value.shape[0] for value in metrics.values()} == {ROUNDS}
    assert metrics["loss"].shape == (ROUNDS, 4)
    assert metrics["client_accuracy"].shape == (ROUNDS, 9)
    assert np.isfinite(metrics["accuracy_macro"]).all()
    assert not {"churn", "client_row"} & metrics.keys()  # which those of clustered methods have


@pytest.mark.slow
def test_clustered_runs_say_with_which_model_each_client_was_tested(model, federation, key):
    """The models that are deployed after each of the rounds, of clients that took no part too."""
    algorithm, numbers = ifca(model, Work(1, 8), 3), fljax.ifca.Hyper(lr=0.03)

    def run(n_rounds):
        return simulate(algorithm, numbers, federation, key, n_rounds, participation=0.5, evaluate_every=2)

    state, metrics = run(5)
    rows = np.asarray(metrics["client_row"])
    np.testing.assert_array_equal(np.isnan(rows), np.tile([[True], [False], [True], [False], [False]], 9))
    assert len({tuple(row) for row in rows[[1, 3, 4]]}) > 1  # somebody moved, or the test sees nothing
    for n_rounds in (2, 4, 5):
        state, _ = run(n_rounds)
        models = fljax.deployed(algorithm, numbers, state, federation, key)
        np.testing.assert_array_equal(rows[n_rounds - 1], models.row)


def test_the_run_learns(metrics):
    assert metrics["accuracy_macro"][-1] > 0.9  # classes are Gaussians that a linear model separates


@pytest.mark.slow  # `test_train.py` says which rounds are tested, and that `simulate` is that run
def test_evaluation_is_every_so_often_and_last(run, metrics):
    _, every_third = run(evaluate_every=3)
    np.testing.assert_array_equal(np.isfinite(every_third["accuracy_macro"]), [0, 0, 1, 0, 0, 1, 0, 0, 1, 1])
    test_rounds = np.array([2, 5, 8, 9])
    np.testing.assert_allclose(every_third["accuracy_macro"][test_rounds], metrics["accuracy_macro"][test_rounds])


@pytest.mark.slow
def test_the_first_rounds_of_a_longer_run_are_those_of_a_shorter(key, averaging, federation):
    _, short = simulate(averaging, fljax.fedavg.Hyper(), federation, key, 3)
    _, long = simulate(averaging, fljax.fedavg.Hyper(), federation, key, 5)
    chex.assert_trees_all_close(short, jax.tree.map(lambda rows: rows[:3], long), rtol=1e-6)


def test_absent_and_dropped_clients_keep_their_state(run, model):
    state, metrics = run(dropout=0.9)
    start = jax.device_get(jax.jit(model.init)(split_key(jax.random.key(0)).init))
    has_trained = np.zeros(9, bool)
    has_trained[metrics["ids"][metrics["active"]]] = True
    assert 0 < has_trained.sum() < 9
    assert metrics["active"].sum(axis=1).max() < 4  # some were drawn and dropped out
    has_moved = np.abs(state.clients["fc1"]["kernel"] - start["fc1"]["kernel"][None]).max(axis=(1, 2)) > 0
    np.testing.assert_array_equal(has_moved, has_trained)


@pytest.mark.slow
def test_a_federation_of_numpy_arrays_is_one_too(key, averaging, federation):
    numpy_federation = jax.tree.map(np.asarray, federation)
    _, expected = simulate(averaging, fljax.fedavg.Hyper(), federation, key, 1)
    chex.assert_trees_all_equal(simulate(averaging, fljax.fedavg.Hyper(), numpy_federation, key, 1)[1], expected)


def test_new_numbers_do_not_recompile(run, metrics):
    n_compiled = simulate_module._simulate._cache_size()
    for lr, momentum, dropout in ((1, 0.9, 0.2), (np.float64(0.3), np.float32(0.1), 0), (jnp.float32(0.2), 0, 0.5)):
        hyper = fljax.standalone.Hyper(lr=lr, momentum=momentum, lr_decay=lr)
        run(hyper, int(lr * 10), dropout)
    assert simulate_module._simulate._cache_size() == n_compiled


def test_equal_choices_give_the_same_algorithm(model):
    assert fedavg(model, Work(1, 8)) is fedavg(model, Work(1, 8))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_rounds": 0}, "n_rounds=0 is not positive"),
        ({"n_rounds": 2, "participation": 0.0}, "participation=0.0"),
        ({"n_rounds": 2, "participation": 1.5}, "participation=1.5"),
        ({"n_rounds": 2, "evaluate_every": 0}, "evaluate_every=0"),
        ({"n_rounds": 2.5}, r"n_rounds=2\.5 is not a whole number"),
        ({"n_rounds": "2"}, "n_rounds='2' is not a whole number"),
        ({"n_rounds": 2, "evaluate_every": 1.5}, r"evaluate_every=1\.5 is not a whole number"),
        ({"n_rounds": 2, "dropout": 1.0}, r"dropout=1.0.*choose 0 <= dropout < 1"),
    ],
)
def test_numbers_out_of_range_are_refused(key, averaging, federation, arguments, message):
    with pytest.raises(ValueError, match=message):
        simulate(averaging, fljax.fedavg.Hyper(), federation, key, **arguments)


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        (fljax.fedavg.Hyper(lr=float("nan")), "lr=nan is not a number; choose lr > 0"),
        (fljax.fedavg.Hyper(lr="fast"), "lr='fast' is not a number"),
        (
            fljax.fedavg.Hyper(lr=[0.1, 0.2]),
            r"lr=\[0\.1, 0\.2\] is not one number; give one, or try several with fljax.sweep",
        ),
        (fljax.fedavg.Hyper(lr=np.array([0.1])), r"lr=array\(\[0\.1\]\) is not one number"),
        ({"lr": 0.1}, "hyper={'lr': 0.1} is not a Hyper; give hyperparameters"),
    ],
)
def test_a_hyper_that_is_none_is_refused(key, averaging, federation, hyper, message):
    with pytest.raises(ValueError, match=message):
        simulate(averaging, hyper, federation, key, 1)
    with pytest.raises(ValueError, match=message):
        train(averaging, hyper, federation, key, 1)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (fljax.fedavg, r"hyper=LocalHyper\(lr, lr_decay, momentum, weight_decay\) has no field .min_share., which the"),
        (fljax.fedprox, r"hyper=FedProxHyper\(\.\.\.\) has .mu., which ifca does not read; it reads .* min_share$"),
    ],
)
def test_another_methods_hyper_is_refused(key, model, federation, tmp_path, method, message):
    algorithm = ifca(model, Work(1, 8))
    for run in (
        lambda: simulate(algorithm, method.Hyper(), federation, key, 1),
        lambda: train(algorithm, method.Hyper(), federation, key, 1),
        lambda: sweep(algorithm, method.Hyper(lr=[0.1, 0.2]), federation, key, 1, 1),
        lambda: search(algorithm, method.Hyper(lr=[0.1, 0.2]), federation, key, 1, 1, folder=tmp_path),
    ):
        with pytest.raises(ValueError, match=message):
            run()
    assert {path.name for path in tmp_path.iterdir()} <= {".lock"}  # another search may begin there


@pytest.mark.slow
def test_a_hyper_joined_with_ones_own_may_hold_what_a_function_of_ones_own_reads(key, model, federation):
    @hyper
    class OwnHyper:
        """Mine."""

        share: Scalar = number(0.5, "share of the mean", least=0)

    def combine(hyper, shared, received, weight):
        return tree.take(jax.tree.map(lambda leaf: hyper.share * leaf, received), jnp.int32(0))

    algorithm = fljax.fedavg(model, Work(1, 8), combine=combine)
    numbers = joined(fljax.fedavg.Hyper, OwnHyper)(lr=0.1, share=0.0)
    state, _ = simulate(algorithm, numbers, federation, key, 1)
    assert float(tree.squared_norm(state.server)) == 0


@pytest.mark.slow
def test_a_run_has_forward_derivatives_and_no_reverse_ones(key, averaging, federation):
    def loss(lr):
        return simulate(averaging, fljax.fedavg.Hyper(lr=lr), federation, key, 2)[1]["test_loss"][-1]

    with_slope = jax.jit(lambda lr: jax.jvp(loss, (lr,), (np.float32(1),)))
    (low_loss, _), (_, slope), (high_loss, _) = (with_slope(np.float32(lr)) for lr in (0.09, 0.1, 0.11))
    np.testing.assert_allclose(slope, (high_loss - low_loss) / 0.02, rtol=0.02)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        jax.make_jaxpr(jax.grad(loss))(np.float32(0.1))


@pytest.mark.slow
def test_a_hyper_of_ones_own_may_hold_more_than_the_method_reads(key, federation, averaging):
    @fljax.hyper
    class OwnHyper(fljax.fedavg.Hyper):
        """Numbers."""

        share: fljax.Scalar = fljax.number(0.5, "what a function of mine reads")

    model, composed = fljax.MODELS["logistic_regression"]((4, 4, 1), 4), fljax.compose("fedavg+prox")
    expected, with_own_hyper = (
        simulate(averaging, hyper, federation, key, 2)[1] for hyper in (fljax.fedavg.Hyper(), OwnHyper())
    )
    np.testing.assert_array_equal(with_own_hyper["test_loss"], expected["test_loss"])
    with_composed_hyper, with_fedprox_hyper = (  # has the same numbers
        simulate(composed(model, Work(1, 8)), hyper, federation, key, 1)[1]
        for hyper in (composed.Hyper(), fljax.fedprox.Hyper())
    )
    np.testing.assert_array_equal(with_fedprox_hyper["test_loss"], with_composed_hyper["test_loss"])


def test_levels_of_compilation_are_the_same_run(key, averaging, federation, monkeypatch):
    hyper, levels = fljax.fedavg.Hyper(), []
    expected = simulate(averaging, hyper, federation, key, 2)[1]
    monkeypatch.setattr(simulate_module, "options_of", lambda level: levels.append(level) or {})
    simulate_module._simulated_at.cache_clear()
    for level in ("fast", "fast", "medium", "full"):
        metrics = simulate(averaging, hyper, federation, key, 2, compile=level)[1]
        np.testing.assert_allclose(metrics["loss"], expected["loss"], rtol=1e-5)
    simulate_module._simulated_at.cache_clear()
    assert levels == ["fast", "medium"]
    with pytest.raises(ValueError, match=r"^compile='quick' is unknown; choose one of 'fast', 'medium', 'full'$"):
        simulate(averaging, hyper, federation, key, 2, compile="quick")


def test_a_profile_has_the_names_of_a_rounds_parts(averaging, federation, key):
    """Those that `docs/speed.md` tells to look for, one in another as it says, of the operations that are run."""
    run = jax.jit(lambda key: simulate(averaging, fljax.fedavg.Hyper(), federation, key, 1))
    text = run.lower(key).compile().as_text()
    for name in ("cohort/", "round/send/train/", "round/receive/", "test/"):
        assert f"/{name}" in text


@pytest.mark.parametrize(("every", "n_rounds"), [(1, 3), (3, 7), (3, 6), (9, 4)])
def test_rounds_are_due_every_so_many_and_at_the_end(every, n_rounds):
    expected = [(i + 1) % every == 0 or i == n_rounds - 1 for i in range(n_rounds)]
    assert due_rounds(every, n_rounds).tolist() == expected
