"""Derivatives of a run with respect to its hyperparameters, against differences of runs."""

import jax
import numpy as np
import pytest

import fljax
from fljax.numbers import as_dict
from fljax.run.hypergradient import IN_STEPS
from fljax.run.sweep import on_validation
from fljax.types import Work

WORK, ROUNDS = Work(1, 8), 3


@pytest.fixture(scope="module")
def algorithm(model):
    return fljax.fedprox(model, WORK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": "mo"}, "of: no hyperparameter 'mo'; the nearest is 'mu'"),
        ({"of": ("lr_decay",)}, "of: lr_decay=None has no derivative; give it a finite number"),
        ({"of": ()}, r"of=\(\) has no names; give some, such as \('lr',\)"),
        ({"metric": 3}, "metric is 3, not a str; give a loss, such as 'test_loss'"),
        ({"metric": "accuracy_macro"}, "metric='accuracy_macro' changes in steps, and its derivative is 0"),
        ({"metric": "top5_micro"}, "metric='top5_micro' changes in steps, and its derivative is 0"),
        ({"metric": "test_los"}, "metric: no number per round 'test_los'; the nearest is 'test_loss'"),
        ({"metric": "client_loss"}, "metric: no number per round 'client_loss'"),
        ({"dropout": 2}, "dropout=2 is not a probability below 1"),
        ({"n_rounds": 0}, "n_rounds=0 is not positive"),
    ],
)
def test_what_has_no_derivative_is_refused(key, algorithm, federation, options, message):
    arguments = {"n_rounds": 1} | options
    with pytest.raises(ValueError, match=message):
        fljax.hypergradient(algorithm, fljax.fedprox.Hyper(mu=0.1), federation, key, **arguments)


@pytest.mark.parametrize("score", fljax.SCORES)
def test_a_score_has_a_derivative_or_is_refused(score):
    """A counting score's derivative by the outputs is 0, and is not to be had without a word."""
    rng, is_there = np.random.default_rng(0), np.ones(20, bool)
    of_all = fljax.SCORES[score].__code__.co_argcount == 3
    outputs = rng.normal(size=(20, 6) if score != "rmse" else (20, 1)).astype(np.float32)
    y = rng.integers(0, 2 if score in ("auc", "average_precision") else 6, 20)
    outputs, y = (outputs[:, :2], y) if y.max() == 1 else (outputs, y)
    y = y.astype(np.float32)[:, None] if score == "rmse" else y
    value = lambda outputs: fljax.SCORES[score](outputs, y, *[is_there] * of_all).astype(np.float32).sum()  # noqa: E731
    assert (not np.any(jax.grad(value)(outputs))) == f"{score}_macro".startswith(IN_STEPS)


def test_a_target_sets_the_noise_before_the_run(key, model, federation):
    method = fljax.compose("fedavg+client_dp")
    arguments = method(model, WORK), method.Hyper(target_epsilon=20.0), federation, key, 1
    with pytest.raises(ValueError, match=r"^of: target_epsilon sets the noise before the run; give the noise, which"):
        fljax.hypergradient(*arguments, of=("target_epsilon",))


@pytest.mark.slow
def test_with_a_target_the_noise_that_follows_is_differentiated(key, model, federation):
    method = fljax.compose("fedavg+client_dp")
    arguments = method(model, WORK), method.Hyper(target_epsilon=20.0), federation, key, 2
    loss, slopes = fljax.hypergradient(*arguments, of=("noise_multiplier",))
    np.testing.assert_allclose(loss, fljax.simulate(*arguments)[1]["test_loss"][-1], rtol=1e-5)
    assert slopes["noise_multiplier"] != 0


def slopes_by_differences(algorithm, hyper, federation, key, *, relative, **options):
    """Central differences of the last test loss by each finite number of ``hyper``, and the loss."""
    simulate = lambda **values: float(  # noqa: E731
        fljax.simulate(algorithm, hyper.replace(**values), federation, key, ROUNDS, **options)[1]["test_loss"][-1]
    )
    numbers = {name: value for name, value in as_dict(hyper).items() if value is not None}
    steps = {name: relative * value for name, value in numbers.items()}
    return simulate(), {
        name: (simulate(**{name: value + steps[name]}) - simulate(**{name: value - steps[name]})) / (2 * steps[name])
        for name, value in numbers.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "numbers", "options"),
    [
        ("fedprox", {"lr": 0.3, "mu": 0.5, "lr_decay": 0.9, "momentum": 0.3}, {"participation": 0.5}),
        ("fedavg+adam", {"lr": 0.3, "server_lr": 0.05}, {"dropout": 0.2}),
        ("ditto", {"lr": 0.3, "lam": 0.5}, {}),
        ("ifca+prox", {"lr": 0.3, "mu": 0.5}, {}),
    ],
)
def test_derivatives_are_those_of_runs_nearby(key, federation, name, numbers, options):
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)  # without kinks
    method = fljax.compose(name)
    algorithm, hyper = method(model, WORK), method.Hyper(**numbers)
    loss, slopes = slopes_by_differences(algorithm, hyper, federation, key, relative=0.005, **options)
    value, derivatives = fljax.hypergradient(algorithm, hyper, federation, key, ROUNDS, **options)
    np.testing.assert_allclose(value, loss, rtol=1e-5)
    assert derivatives.keys() == slopes.keys()
    for number, slope in slopes.items():  # both for a relative change, so that rounding errors are alike
        value = getattr(hyper, number)
        np.testing.assert_allclose(derivatives[number] * value, slope * value, rtol=0.02, atol=2e-4, err_msg=number)


@pytest.mark.slow
def test_networks_of_convolutions_and_the_validation_split(key):
    """Their fast forms have no forward mode; a step of training goes through all their gradients."""
    federation = fljax.PARTITIONS["iid"](*fljax.load("digits"), n_clients=3, val_fraction=0.2)
    model = fljax.MODELS["cnn"](input_shape=(8, 8, 1), n_classes=10, channels=(4, 8), hidden=(16,))
    algorithm, hyper = fljax.fedavg(model, Work(1, 64)), fljax.fedavg.Hyper(lr=0.01)
    loss, slopes = slopes_by_differences(algorithm, hyper, on_validation(federation), key, relative=0.02)
    value, derivatives = fljax.hypergradient(algorithm, hyper, on_validation(federation), key, ROUNDS, of=["lr"])
    np.testing.assert_allclose(value, loss, rtol=1e-4)
    np.testing.assert_allclose(derivatives["lr"], slopes["lr"], rtol=0.05)


@pytest.mark.slow
def test_other_values_are_no_other_program(key, algorithm, federation):
    events = []
    of_mu = lambda mu: fljax.hypergradient(algorithm, fljax.fedprox.Hyper(mu=mu), federation, key, 1)  # noqa: E731
    first_loss, _ = of_mu(0.1)
    listener = lambda event, seconds, **_: events.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        second_loss, _ = of_mu(5.0)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert first_loss != second_loss
    assert not [event for event in events if "backend_compile" in event]
