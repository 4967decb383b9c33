"""Differential privacy in rounds: against NumPy, optax's own DP aggregation and the stated laws of the noise."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax import contrib
from scipy import stats

import fljax
from fljax.client.objectives import training_loss
from fljax.models import mlp
from fljax.rounds.cohort import everyone
from fljax.rounds.uplink.private import adaptive_client_dp, client_dp, private_gradients
from fljax.types import Batch
from tests.rounds.test_uplink import SHAPES, D, N, message, transformed, trip_of
from tests.slow import slow

GIVEN = {"delta": 1e-5, "target_epsilon": None}


def released_mean(values, weight=None, seed=0, expected=N, **numbers):
    result = transformed(client_dp, values, seed, None, weight, expected, **GIVEN, **numbers)
    np.testing.assert_array_equal(result.weight, np.ones(N))
    return np.asarray(result.values, np.float64).mean(axis=0)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def test_the_mean_of_what_arrives_is_the_clipped_sum_over_the_expected_number(values):
    norms = np.linalg.norm(values, axis=1, keepdims=True)
    clipped = values * np.minimum(1, 2.0 / norms)
    weight = np.asarray([1.0, 0, 3, 1])  # whoever takes part counts alike
    actual = released_mean(values, weight, expected=2.5, noise_multiplier=0.0, dp_clip=2.0)
    np.testing.assert_allclose(actual, clipped[weight > 0].sum(axis=0) / 2.5, rtol=1e-4, atol=1e-6)


def test_the_noise_on_the_sum_has_the_stated_variance_also_in_an_empty_round(values):
    weight = np.zeros(N)
    noise = [released_mean(values, weight, seed, 2.5, noise_multiplier=1.5, dp_clip=0.2) for seed in range(8)]
    std = 1.5 * 0.2 / 2.5
    squares = (np.asarray(noise) ** 2).sum() / std**2
    assert 1e-3 < stats.chi2(8 * D).cdf(squares) < 1 - 1e-3
    assert stats.kstest(np.ravel(noise), stats.norm(scale=std).cdf).pvalue > 1e-3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_update_that_is_not_finite_is_one_of_zeros(values, value):
    """As one beyond the largest float32 is; a mean that is no number would tell that its client was there."""
    not_finite, with_zeros = values.copy(), values.copy()
    not_finite[1, 3], with_zeros[1] = value, 0
    numbers = dict(noise_multiplier=1.0, dp_clip=2.0)
    np.testing.assert_array_equal(released_mean(not_finite, **numbers), released_mean(with_zeros, **numbers))
    adaptive = GIVEN | dict(noise_multiplier=1.0, first_clip=2.0, clip_quantile=0.5, clip_lr=0.2, count_noise=5.0)
    result = transformed(adaptive_client_dp, not_finite, 0, None, np.ones(N), N, **adaptive)
    assert np.isfinite(result.values).all()
    assert np.isfinite(result.memory.server)


def test_clip_and_noise_of_nothing_are_nothing(values):
    result = transformed(client_dp, values, **GIVEN, noise_multiplier=0.0, dp_clip=np.inf)
    np.testing.assert_array_equal(result.values, values)


def test_an_adaptive_clip_steps_as_the_paper_says_and_finds_the_quantile():
    rng = np.random.default_rng(3)
    numbers = GIVEN | dict(noise_multiplier=0.0, first_clip=0.1, clip_quantile=0.75, clip_lr=0.5, count_noise=1e-6)
    memory, clip = None, 0.1
    clips = []
    for r in range(80):
        lengths = rng.lognormal(size=N)
        updates = np.zeros((N, D), np.float32)
        updates[:, 0] = lengths
        memory = transformed(adaptive_client_dp, updates, r, memory, **numbers).memory
        clip *= np.exp(-0.5 * ((lengths <= clip).mean() - 0.75))
        np.testing.assert_allclose(memory.server, clip, rtol=1e-3)
        clips.append(clip)
    assert abs(np.log(np.mean(clips[40:])) - stats.norm.ppf(0.75)) < 0.35


def test_one_client_more_moves_the_noisy_count_by_half():
    """Which is what the share of the noise that counting takes is worked out for."""
    numbers = GIVEN | dict(noise_multiplier=0.0, first_clip=1.0, clip_quantile=0.5, clip_lr=1.0, count_noise=1e-6)
    updates, one_less = np.eye(1, D, dtype=np.float32) * np.ones((N, 1), np.float32), np.ones(N) - np.eye(N)[0]
    # As long as the clip, which is within it; 2.5 of them are expected.
    clips = [
        transformed(adaptive_client_dp, updates, 0, None, w, 2.5, **numbers).memory.server
        for w in (np.ones(N), one_less)
    ]
    np.testing.assert_allclose(2.5 * -np.diff(np.log(clips)[::-1]), 0.5, rtol=1e-4)


def test_the_noise_on_the_count_is_none_of_that_on_the_sum():
    """Or what is released of the sum would tell it."""
    numbers = GIVEN | dict(noise_multiplier=1.0, first_clip=1.0, clip_quantile=0.5, clip_lr=1.0, count_noise=5.0)
    for seed in range(4):
        result = transformed(adaptive_client_dp, np.zeros((N, D)), seed, **numbers)
        count_noise = (-np.log(result.memory.server) * N - N / 2) / 5  # all are within the clip
        sum_noise = result.values.mean(axis=0) * N * np.sqrt(1 - 1 / 10**2)
        assert abs(count_noise) < 4
        assert np.abs(sum_noise - count_noise).min() > 1e-4


def test_adaptive_noise_is_larger_by_what_counting_takes():
    numbers = GIVEN | dict(noise_multiplier=1.0, first_clip=0.5, clip_quantile=0.5, clip_lr=0.2, count_noise=0.625)
    noise = [transformed(adaptive_client_dp, np.zeros((N, D)), s, **numbers).values.mean(axis=0) for s in range(8)]
    std = 0.5 / np.sqrt(1 - 1 / 1.25**2) / N  # z_Delta = (1 - (2 * 0.625)^-2)^-1/2
    assert 1e-3 < stats.chi2(8 * D).cdf((np.asarray(noise, np.float64) ** 2).sum() / std**2) < 1 - 1e-3


MODEL = mlp(input_shape=(4, 4, 1), hidden=(5,), n_classes=3)
X, Y = np.random.default_rng(1).normal(size=(6, 4, 4, 1)).astype(np.float32), np.asarray([0, 1, 2, 0, 1, 2], np.int32)


def batch_of(weight):
    return Batch(X, Y, np.asarray(weight, np.float32))


@pytest.fixture(scope="module")
def params():
    return jax.jit(MODEL.init)(jax.random.key(0))


@jax.jit
def dp_gradient(params, batch, key, numbers):
    private = private_gradients(training_loss(MODEL), SimpleNamespace(**GIVEN, **numbers))
    (value, _), gradient = jax.value_and_grad(private, has_aux=True)(params, batch, key, params)
    return value, gradient


def test_private_gradients_are_those_of_optax(params):
    batch = batch_of([1, 1, 1, 1, 1, 0])
    value, gradient = dp_gradient(params, batch, jax.random.key(0), {"example_noise": 0.0, "example_clip": 0.7})
    loss, optax_aggregate = training_loss(MODEL), contrib.differentially_private_aggregate(0.7, 0.0, jax.random.key(0))

    def example_loss(params, x, y):
        return loss(params, Batch(x[None], y[None], jnp.ones(1)), None)[0]

    @jax.jit
    def expected(params):
        gradients = jax.vmap(jax.grad(example_loss), in_axes=(None, 0, 0))(params, X[:5], Y[:5])
        return optax_aggregate.update(gradients, optax_aggregate.init(params))[0], loss(params, batch, None)[0]

    aggregate, expected_value = expected(params)
    # optax divides by the five examples that are there, DP-SGD by the batch's six places.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b * 5 / 6, rtol=1e-4, atol=1e-6), gradient, aggregate)
    np.testing.assert_allclose(value, expected_value, rtol=1e-5)


def test_an_example_without_a_finite_gradient_is_one_of_zeros(params):
    """A client that diverged by it would be left out of the round, which no noise hides."""
    numbers, key, huge_x = {"example_noise": 0.0, "example_clip": 0.7}, jax.random.key(0), X.copy()
    huge_x[2] = 3e38
    value, gradient = dp_gradient(params, Batch(huge_x, Y, np.ones(6, np.float32)), key, numbers)
    expected_value, expected = dp_gradient(params, batch_of([1, 1, 0, 1, 1, 1]), key, numbers)
    np.testing.assert_allclose(value, expected_value, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), gradient, expected)


@pytest.mark.parametrize("dtype", [*slow(jnp.float16), jnp.bfloat16, jnp.float32])
def test_gradients_of_narrow_numbers_are_clipped_by_their_length_in_float32(dtype):
    """Squares of 1e-4 are 0 in float16: a gradient would be as long as it likes."""

    def linear(params, batch, key, *state):
        return (params["w"] * batch.x[0]).sum(), params

    private = private_gradients(linear, SimpleNamespace(**GIVEN, example_noise=0.0, example_clip=1e-3))
    x, w = jnp.full((1, 1000), 1e-4, dtype), {"w": jnp.ones(1000, dtype)}  # of length 3.2e-3
    with jax.numpy_dtype_promotion("standard"):
        batch = Batch(x, np.zeros(1, np.float32), np.ones(1, np.float32))
        gradient, _ = jax.jit(jax.grad(private, has_aux=True))(w, batch, jax.random.key(0), w)
    np.testing.assert_allclose(np.linalg.norm(np.asarray(gradient["w"], np.float64)), 1e-3, rtol=3e-3)


def test_client_dp_refuses_parameters_that_round_a_clipped_update_anew(model, federation, key):
    """Half of a last digit and a little becomes a whole one: what one client sends is twice as long as the clip."""
    narrow = model._replace(init=lambda key: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), model.init(key)))
    method = fljax.compose("fedavg+client_dp")
    with pytest.raises(ValueError, match=r"fedavg\+client_dp: parameters of bfloat16 round a clipped update"):
        fljax.simulate(method(narrow, fljax.Work(1, 8)), method.Hyper(), federation, key, 1)
    summed = fljax.compose("fedavg+secure_sum")
    assert jax.eval_shape(summed(narrow, fljax.Work(1, 8)).init, key, summed.Hyper(), federation.train)


@pytest.mark.slow
def test_private_gradients_without_limits_are_plain_and_their_noise_is_as_stated(params):
    batch = batch_of(np.ones(6))
    gradient = dp_gradient(params, batch, jax.random.key(0), {"example_noise": 0.0, "example_clip": np.inf})[1]
    expected = jax.grad(lambda params: training_loss(MODEL)(params, batch, None)[0])(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradient, expected)
    numbers, keys = {"example_noise": 2.0, "example_clip": 0.5}, jax.random.split(jax.random.key(0), 8)
    noise = [dp_gradient(params, batch_of(np.zeros(6)), key, numbers)[1] for key in keys]
    squares = sum(float((np.asarray(leaf, np.float64) ** 2).sum()) for leaf in jax.tree.leaves(noise)) * 6**2
    n_numbers = sum(leaf.size for leaf in jax.tree.leaves(noise))
    assert 1e-3 < stats.chi2(n_numbers).cdf(squares) < 1 - 1e-3


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("ifca+client_dp", "not compute one mean of all updates"),
        ("ifca+banded_client_dp", "not compute one mean of all updates"),
        ("feddane+client_dp", "depends on more than one client"),
        ("ifca+secure_sum+client_dp", "not compute one mean of all updates"),
        ("fedavg+client_dp+krum", "single updates"),
        ("fedavg+client_dp+top_k", "put it last"),
        ("fedavg+banded_client_dp+top_k", "put it last"),
        ("cfl+client_dp", "single updates"),
        ("cfl+banded_client_dp", "single updates"),
        ("feddbe+client_dp", "depends on more than one client"),
        ("afl+client_dp", "depends on more than one client"),
        ("fedgen+client_dp", "depends on more than one client"),
        ("fedem+dp_sgd", "their examples' responsibilities, without noise"),
        ("fedrc+dp_sgd", "their examples' responsibilities, without noise"),
        ("fedsoft+dp_sgd", "shares of their examples by center, which get no noise"),
        ("fedcr+dp_sgd", "Gaussians of their classes, which get no noise"),
    ],
)
def test_methods_whose_release_is_not_one_mean_refuse_noise_for_it(name, reason):
    model = fljax.MODELS["logistic_regression"](input_shape=(4, 4, 1), n_classes=3)
    with pytest.raises(ValueError, match=reason):
        fljax.compose(name)(model, fljax.Work(1, 8))


def by_the_loss(lr):
    def update(updates, state, params=None, *, value, **extra_args):
        return jax.tree.map(lambda move: -lr * value * move, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


def on_a_plateau(lr):
    return optax.chain(optax.sgd(lr), optax.contrib.reduce_on_plateau())


@pytest.mark.parametrize("make", [by_the_loss, on_a_plateau])
def test_steps_that_follow_from_the_loss_are_not_private(federation, key, make):
    method, model = fljax.compose("fedavg+dp_sgd"), fljax.MODELS["logistic_regression"]((4, 4, 1), 3)
    with pytest.raises(ValueError, match=r"^dp_sgd: the loss gets no noise, and the optimizer asks for it"):
        one_round(method(model, fljax.Work(1, 8, optimizer=make)), method.Hyper(), federation, key)
    accepted = one_round(method(model, fljax.Work(1, 8, optimizer=optax.adam)), method.Hyper(), federation, key)
    assert jax.tree.leaves(accepted)


def one_round(algorithm, hyper, federation, key):
    """Its shapes; nothing is computed."""
    state = jax.eval_shape(lambda: algorithm.init(key, hyper, federation.train))
    cohort = everyone(key, jnp.int32(0), federation.train)
    return jax.eval_shape(lambda state: algorithm.round(key, hyper, state, cohort), state)


def test_two_guarantees_of_one_run_are_refused():
    with pytest.raises(ValueError, match="both have a hyperparameter"):
        fljax.compose("fedavg+client_dp+dp_sgd")


def test_a_target_that_nobody_worked_out_is_refused(values):
    hyper = SimpleNamespace(delta=1e-5, target_epsilon=2.0, noise_multiplier=1.0, dp_clip=1.0)
    with pytest.raises(ValueError, match="with_target"):
        client_dp.apply(hyper, client_dp.init(hyper, N, SHAPES), message(values), trip_of())
