"""Epsilon: against the accountant's own answers, a second accountant and the literature; and in whole runs."""

import chex
import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from scipy import special, stats

import fljax
from fljax.numbers import replace
from fljax.rounds import least_recent, poisson, shuffled, uniform
from fljax.rounds.clock import over_selection, with_availability, with_deadline
from fljax.rounds.uplink.private import AdaptiveClientDPHyper, ClientDPHyper, DPSGDHyper
from fljax.run import privacy
from fljax.run.arguments import called
from fljax.run.privacy import ORDERS, epsilons, mechanism, with_target
from fljax.run.sweep.points import grid, with_targets
from fljax.run.train import train
from fljax.types import Work
from tests.slow import slow_rows

pytestmark = pytest.mark.usefixtures("one_device")

WORK = Work(epochs=3, batch_size=8)


def composed(rate, noise, count):
    event = dp_accounting.GaussianDpEvent(noise)
    event = dp_accounting.PoissonSampledDpEvent(rate, event) if rate < 1 else event
    return dp_accounting.SelfComposedDpEvent(event, count)


@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.2), (1.0, 4.0)])
def test_epsilon_after_every_round_is_the_accountants(rate, noise):
    epsilon_by_round = epsilons(ClientDPHyper(noise_multiplier=noise), poisson(rate), WORK, 30)
    for r in (0, 9, 29):
        expected = rdp.RdpAccountant(list(ORDERS)).compose(composed(rate, noise, r + 1)).get_epsilon(1e-5)
        np.testing.assert_allclose(epsilon_by_round[r], expected, rtol=1e-5)
    exact = pld.PLDAccountant().compose(composed(rate, noise, 30)).get_epsilon(1e-5)
    assert exact <= epsilon_by_round[-1] <= 1.2 * exact


LITERATURE = [
    (0.01, 4.0, 10_000, 1.26),  # Abadi et al. 2016, section 3
    (256 / 60_000, 1.3, 20 * 60_000 // 256, 1.34),  # Bu, Dong, Long, Su 2020, figure 4: MNIST, 20 epochs
    *slow_rows((256 / 60_000, 0.7, 70 * 60_000 // 256, 8.68)),  # and 70
]
"""Share of a sample, noise, steps, and the epsilon at delta 1e-5 that a moments accountant has given."""


@pytest.mark.parametrize(("rate", "noise", "count", "published"), LITERATURE)
def test_epsilons_of_the_literature(rate, noise, count, published):
    epsilon = epsilons(ClientDPHyper(noise_multiplier=noise), poisson(rate), WORK, count)[-1]
    # Between the exact one and the papers', whose conversion from Renyi divergences was a looser one.
    exact = pld.PLDAccountant().compose(composed(rate, noise, count)).get_epsilon(1e-5)
    assert exact <= epsilon <= published
    orders = np.asarray([1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64)])
    moments = np.asarray([count * log_moment(order, rate, noise) for order in orders])
    np.testing.assert_allclose(np.min((moments + np.log(1e5)) / (orders - 1)), published, atol=0.011)


def log_moment(order, rate, noise):
    """``log E (p/q)^order`` under q, by a sum over a grid: q a normal density, p its mixture with one moved by 1."""
    x = np.linspace(-12 * noise, 12 * noise + order, 20_001)
    ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * x - 1) / (2 * noise**2))
    density = stats.norm.logpdf(x, scale=noise)
    return special.logsumexp(order * ratio + density) + np.log(x[1] - x[0])


@pytest.mark.parametrize("rate", [3e-8, 1e-6, 1e-5, 0.3, 1.0])
def test_a_client_is_counted_as_often_as_random_numbers_draw_it(rate):
    """float32's random numbers are multiples of 2^-23, and a share of 1e-6 is 1.07e-6 of them."""
    numbers = np.asarray(jax.random.uniform(jax.random.key(0), (1000,), jnp.float32), np.float64) * 2**23
    np.testing.assert_array_equal(numbers, np.round(numbers))
    share = (np.arange(2**23, dtype=np.float32) * np.float32(2.0**-23) < np.float32(rate)).mean(dtype=np.float64)
    assert mechanism(ClientDPHyper(), poisson(rate), WORK).rate == share >= rate


def test_without_poisson_sampling_or_noise_nothing_is_gained():
    numbers = ClientDPHyper(noise_multiplier=2.0)
    np.testing.assert_array_equal(epsilons(numbers, uniform(0.1), WORK, 4), epsilons(numbers, uniform(), WORK, 4))
    assert np.isinf(epsilons(ClientDPHyper(noise_multiplier=0.0), poisson(0.1), WORK, 3)).all()
    assert epsilons(fljax.fedavg.Hyper(), poisson(0.1), WORK, 3) is None


def test_only_clients_that_take_nobodys_place_are_amplified():
    numbers, seconds = ClientDPHyper(noise_multiplier=2.0), np.arange(1.0, 11.0)
    amplified, not_amplified = (epsilons(numbers, sampling, WORK, 4) for sampling in (poisson(0.1), uniform()))
    for sampling in (with_deadline(poisson(0.1), seconds, 5.0), with_availability(poisson(0.1), np.full(10, 0.5))):
        np.testing.assert_array_equal(epsilons(numbers, sampling, WORK, 4), amplified)
    np.testing.assert_array_equal(epsilons(numbers, over_selection(poisson(0.1), seconds, 2), WORK, 4), not_amplified)


@pytest.mark.parametrize(
    ("hyper", "per_round"), [(ClientDPHyper(noise_multiplier=4.0), 1), (DPSGDHyper(example_noise=4.0), 3)]
)
def test_rounds_of_rest_cost_nothing(hyper, per_round):
    sampling = with_availability(least_recent(0.1, separation=4), np.full(10, 0.5))
    epsilon_by_round = epsilons(hyper, sampling, WORK, 9)
    for r, participations in enumerate([1, 1, 1, 1, 2, 2, 2, 2, 3]):
        event = composed(1.0, 4.0, participations * per_round)
        expected = rdp.RdpAccountant(list(ORDERS)).compose(event).get_epsilon(1e-5)
        np.testing.assert_allclose(epsilon_by_round[r], expected, rtol=1e-5)
    np.testing.assert_array_equal(epsilons(hyper, least_recent(0.1), WORK, 9), epsilons(hyper, uniform(0.1), WORK, 9))
    target = replace(type(hyper)(), target_epsilon=float(epsilon_by_round[-1]))
    found = with_target(target, sampling, WORK, 9)
    noise = mechanism(found, sampling, WORK).noise
    np.testing.assert_allclose(getattr(found, noise), 4.0, rtol=1e-4)


def test_a_pass_costs_one_participation(key, federation):
    """In passes of three rounds, as a run knows it, whose number of clients decides how long a pass is."""
    hyper, sampling = ClientDPHyper(noise_multiplier=4.0), shuffled(1 / 3)
    in_passes = epsilons(hyper, sampling.of(9).sampling, WORK, 7)
    np.testing.assert_array_equal(in_passes, epsilons(hyper, least_recent(0.1, separation=3), WORK, 7))
    for n_clients, participation, length in [(10, 0.25, 5), (7, 0.5, 2), (3, 1.0, 1)]:
        assert mechanism(hyper, shuffled(participation).of(n_clients).sampling, WORK).once_in == length
    # Without a number of clients, the guarantee is that of each round.
    np.testing.assert_array_equal(epsilons(hyper, sampling, WORK, 7), epsilons(hyper, uniform(), WORK, 7))
    method, model = fljax.compose("fedavg+client_dp"), fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    arguments = method(model, WORK), method.Hyper(target_epsilon=20.0), federation, key, 4
    _, metrics = fljax.simulate(*arguments, sampling=with_availability(sampling, np.full(9, 0.9)))
    epsilon = metrics["epsilon"]
    np.testing.assert_array_equal(epsilon[:3], np.full(3, epsilon[0]))
    assert epsilon[0] < epsilon[3] <= 20.0
    np.testing.assert_allclose(epsilon[3], 20.0, rtol=1e-3)


def test_an_example_is_met_once_an_epoch():
    epsilon_by_round = epsilons(DPSGDHyper(example_noise=4.0), poisson(0.2), WORK, 2)
    expected = rdp.RdpAccountant(list(ORDERS)).compose(composed(1.0, 4.0, 6)).get_epsilon(1e-5)
    np.testing.assert_allclose(epsilon_by_round[-1], expected, rtol=1e-5)
    with pytest.raises(ValueError, match=r"local_steps=9: epsilon counts epochs"):
        epsilons(DPSGDHyper(example_noise=4.0), poisson(0.2), Work(None, 8, local_steps=9), 2)


@pytest.mark.parametrize("hyper_class", [ClientDPHyper, DPSGDHyper])
def test_a_target_gives_the_noise_that_meets_it(hyper_class):
    hyper = with_target(hyper_class(target_epsilon=3.0), poisson(0.25), WORK, 20)
    assert hyper.target_epsilon is None
    assert 0.99 * 3 < epsilons(hyper, poisson(0.25), WORK, 20)[-1] <= 3.001


@pytest.fixture
def few_orders(monkeypatch):
    """To find the noise of a target takes as long as there are orders; whose noise is whose does not hang on them."""
    monkeypatch.setattr(privacy, "ORDERS", (2, 8, 32))


def test_points_of_a_sweep_have_the_noise_that_each_target_asks_for(few_orders):
    targets = grid(ClientDPHyper(delta=1e-6), target_epsilon=(3.0, 8.0), dp_clip=(0.5, 1.0))
    points = with_targets(targets, poisson(0.25), WORK, 20)
    assert points.target_epsilon is None
    expected = [
        with_target(ClientDPHyper(delta=1e-6, target_epsilon=target), poisson(0.25), WORK, 20).noise_multiplier
        for target in (3.0, 8.0)
    ]
    np.testing.assert_allclose(points.noise_multiplier, np.repeat(expected, 2))
    np.testing.assert_array_equal(points.dp_clip, [0.5, 1.0, 0.5, 1.0])
    of_one_target = with_targets(
        grid(ClientDPHyper(target_epsilon=3.0, delta=1e-6), dp_clip=(1, 2)), poisson(0.25), WORK, 20
    )
    assert of_one_target.noise_multiplier == expected[0]
    not_private = grid(fljax.fedavg.Hyper(), lr=(0.1, 0.2))
    assert with_targets(not_private, poisson(0.25), WORK, 20) is not_private


@pytest.mark.slow
def test_a_sweep_under_targets_equals_its_single_runs(key, federation, few_orders):
    method = fljax.compose("fedavg+client_dp")
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    private, numbers = method(model, Work(1, 8)), method.Hyper(lr=0.1)
    hypers = grid(numbers, target_epsilon=(3.0, 30.0))
    sweep_metrics = fljax.sweep(private, hypers, federation, key, 1, 2)
    for i, target in enumerate((3.0, 30.0)):
        hyper = replace(numbers, target_epsilon=target)
        run_metrics = fljax.simulate(private, hyper, federation, jax.random.fold_in(key, 0), 2)[1]
        np.testing.assert_allclose(sweep_metrics["test_loss"][i, 0], run_metrics["test_loss"], rtol=1e-5)
    assert sweep_metrics["test_loss"][0, 0, -1] != sweep_metrics["test_loss"][1, 0, -1]


def test_a_run_under_a_target_is_called_with_the_noise_that_it_asks_for(key, federation, few_orders):
    method = fljax.compose("fedavg+client_dp")
    private = method(fljax.MODELS["logistic_regression"]((4, 4, 1), 4), Work(1, 8))
    with called(private, method.Hyper(target_epsilon=3.0), federation, key, 2, sampling=poisson(0.5)) as run:
        assert run.hyper.target_epsilon is None
        assert run.hyper.noise_multiplier > 0
        np.testing.assert_allclose(run.epsilons()[-1], 3.0, rtol=1e-3)


def test_targets_that_cannot_be_met_and_counts_that_take_too_much_are_one_line(few_orders):
    with pytest.raises(ValueError, match=r"target_epsilon=0.001 cannot be reached in 20 rounds"):
        with_target(ClientDPHyper(target_epsilon=1e-3, delta=1e-12), poisson(0.25), WORK, 20)
    for hyper_class, name in ((ClientDPHyper, "noise_multiplier"), (DPSGDHyper, "example_noise")):
        with pytest.raises(
            ValueError,
            match=f"^{name}=2 and target_epsilon=8 are both given, but the noise follows from the target; leave one",
        ):
            with_target(hyper_class(target_epsilon=8.0, **{name: 2.0}), poisson(0.25), WORK, 20)
    points = grid(ClientDPHyper(target_epsilon=8.0), noise_multiplier=(1.0, 2.0))  # of which the first is the default
    with pytest.raises(ValueError, match="noise_multiplier=2 and target_epsilon=8 are both"):
        with_targets(points, poisson(0.25), WORK, 20)
    with pytest.raises(ValueError, match=r"count_noise=0\.5 is too little"):
        epsilons(AdaptiveClientDPHyper(count_noise=0.5), poisson(0.25), WORK, 20)
    with pytest.raises(ValueError, match="dp_clip=inf, but the noise is 1"):
        epsilons(ClientDPHyper(dp_clip=np.inf), poisson(0.25), WORK, 20)


@pytest.mark.slow
def test_noise_of_nothing_is_the_method_itself_and_epsilon_stands_beside_accuracy(federation, model, tmp_path):
    work, key = Work(epochs=1, batch_size=8), jax.random.key(0)
    method = fljax.compose("fedavg+client_dp")
    expected, _ = fljax.simulate(
        fljax.fedavg(model, work, weighting="uniform"), fljax.fedavg.Hyper(), federation, key, 3
    )
    state, metrics = fljax.simulate(
        method(model, work), method.Hyper(noise_multiplier=0.0, dp_clip=jnp.inf), federation, key, 3
    )
    chex.assert_trees_all_equal(expected.server, state.server.own)
    assert np.isinf(metrics["epsilon"]).all()
    numbers, sampling = method.Hyper(target_epsilon=5.0), poisson(0.5)
    _, noisy = fljax.simulate(method(model, work), numbers, federation, key, 3, sampling=sampling)
    assert not np.array_equal(noisy["test_loss"], metrics["test_loss"])
    np.testing.assert_allclose(noisy["epsilon"][-1], 5.0, rtol=1e-3)
    run = train(method(model, work), numbers, federation, key, 3, sampling=sampling, folder=tmp_path)
    np.testing.assert_array_equal(run.metrics["epsilon"], noisy["epsilon"])


@pytest.mark.slow
def test_private_gradients_train(federation):
    method, model = fljax.compose("fedavg+dp_sgd"), fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    hyper = method.Hyper(lr=0.2, example_noise=0.05, example_clip=2.0)
    _, metrics = fljax.simulate(method(model, WORK), hyper, federation, jax.random.key(0), 6)
    assert metrics["test_loss"][-1] < metrics["test_loss"][0]
    assert (np.diff(metrics["epsilon"]) > 0).all()


def test_a_field_of_the_name_of_noise_alone_promises_nothing():
    @fljax.hyper
    class NoisyHyper(fljax.LocalHyper):
        """Numbers."""

        noise_multiplier: fljax.Scalar = fljax.number(1.0, "of something else")

    assert epsilons(NoisyHyper(), uniform(), WORK, 3) is None
    hyper = NoisyHyper()
    assert with_target(hyper, uniform(), WORK, 3) is hyper
