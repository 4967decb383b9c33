"""Correlated noise asks for rest between the rounds of a client: which samplings keep it, and what epsilon is then."""

import sys

import numpy as np
import pytest

import fljax
from fljax.data.synthetic import linear_groups
from fljax.rounds import least_recent, poisson, shuffled, stragglers, uniform
from fljax.rounds.clock import asynchronous, over_selection, tiers, wait_for_all, with_availability, with_deadline
from fljax.rounds.uplink.correlated import BandedClientDPHyper
from fljax.rounds.uplink.private import ClientDPHyper
from fljax.run.privacy import epsilons, mechanism, with_target
from fljax.run.sweep.points import grid, with_targets
from fljax.run.train import train
from fljax.types import Work

WORK = Work(epochs=3, batch_size=8)


def test_correlated_noise_costs_what_independent_noise_does_if_clients_rest():
    sampling = least_recent(0.1, separation=4)
    expected = epsilons(ClientDPHyper(noise_multiplier=4.0), sampling, WORK, 9)
    for bands in (1, 3, 4):
        banded = BandedClientDPHyper(noise_multiplier=4.0, bands=bands)
        np.testing.assert_array_equal(epsilons(banded, sampling, WORK, 9), expected)
    found = with_target(BandedClientDPHyper(target_epsilon=float(expected[-1]), bands=4), sampling, WORK, 9)
    np.testing.assert_allclose(found.noise_multiplier, 4.0, rtol=1e-4)
    # One band is plain noise, which any sampling may have, and which is amplified.
    for other in (poisson(0.1), shuffled(0.1), uniform(0.1)):
        of_one_band = epsilons(BandedClientDPHyper(noise_multiplier=4.0, bands=1), other, WORK, 3)
        np.testing.assert_array_equal(of_one_band, epsilons(ClientDPHyper(noise_multiplier=4.0), other, WORK, 3))


SECONDS = np.arange(1.0, 11.0)
RESTING = least_recent(0.2, separation=3)
WITHOUT_REST = {
    "uniform": uniform(0.2),
    "poisson": poisson(0.2),
    "shuffled": shuffled(0.2),  # last in one pass, first in the next
    "least_recent": least_recent(0.2),  # who comes may have been there just before, if others are absent
    "table": asynchronous(SECONDS, concurrency=4, buffer=2, n_rounds=5).sampling,
    "tiers": tiers(SECONDS, 3, 2),
    "one of your own": uniform(0.2)._replace(about=()),
}


@pytest.mark.parametrize("name", WITHOUT_REST)
def test_correlated_noise_without_rest_between_a_clients_rounds_is_refused(monkeypatch, name):
    """Whatever is asked for, and by whom; also without the accountant's package."""
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    message = (
        r"^bands=2: epsilon would hold only if no client participates twice in 2 consecutive rounds, but the sampling "
        f"{name} assures 1; choose least_recent with separation=2 or more, or bands=1$"
    )
    sampling = WITHOUT_REST[name]
    for hyper in (BandedClientDPHyper(bands=2), BandedClientDPHyper(bands=2, noise_multiplier=0.0)):
        with pytest.raises(ValueError, match=message):
            epsilons(hyper, sampling, WORK, 3)
        with pytest.raises(ValueError, match=message):
            with_target(hyper, sampling, WORK, 3)
    for field in ({}, {"target_epsilon": (3.0, 8.0)}):
        points = grid(BandedClientDPHyper(), bands=(1, 2), **field)
        with pytest.raises(ValueError, match=message):
            with_targets(points, sampling, WORK, 3)


def test_a_separation_must_be_as_long_as_the_bands(key, federation):
    method = fljax.compose("fedavg+banded_client_dp")
    private = method(fljax.MODELS["logistic_regression"]((4, 4, 1), 4), Work(1, 8))
    with pytest.raises(ValueError, match=r"bands=4: .* assures 3; choose least_recent with separation=4 or more, or b"):
        fljax.simulate(private, method.Hyper(bands=4), federation, key, 1, sampling=least_recent(0.3, 3))
    with pytest.raises(ValueError, match=r"bands=8: .* the sampling uniform assures 1"):
        train(private, method.Hyper(), federation, key, 1)
    own = uniform(0.2)._replace(separation=lambda n_clients: n_clients // 2)
    hyper = BandedClientDPHyper(bands=4)
    assert mechanism(hyper, own.of(9).sampling, WORK).once_in == 4
    for n_clients, sampling in ((7, own.of(7).sampling), (0, own)):  # 0: without a number of clients
        with pytest.raises(ValueError, match=f"assures {max(1, n_clients // 2)};"):
            mechanism(hyper, sampling, WORK)


def test_numbers_of_bands_that_are_none_are_refused(key, federation):
    method = fljax.compose("fedavg+banded_client_dp")
    private = method(fljax.MODELS["logistic_regression"]((4, 4, 1), 4), Work(1, 8))
    for bands, message in (
        (0, r"^bands=0 is out of its range; choose bands in \[1, 32\]"),
        (33, r"^bands=33 is out of its range; choose bands in \[1, 32\]"),
        (1.5, r"^bands=1\.5 is not a whole number; choose bands in \[1, 32\]"),
        (np.nan, "^bands=nan is not a number"),
    ):
        with pytest.raises(ValueError, match=message):
            fljax.simulate(private, method.Hyper(bands=bands), federation, key, 1, sampling=RESTING)
        with pytest.raises(ValueError, match=message):
            fljax.sweep(private, method.Hyper(bands=(1, bands)), federation, key, 1, 1, sampling=RESTING)


LIMITED = {
    "waiting": wait_for_all(RESTING, SECONDS),
    "deadline": with_deadline(RESTING, SECONDS, 5.0),
    "availability": with_availability(RESTING, np.full(10, 0.4)),
    "over_selection": over_selection(with_availability(RESTING, np.full(10, 0.6)), SECONDS, 1),
    "stragglers": stragglers(RESTING, 0.5),
}


@pytest.mark.parametrize("name", LIMITED)
def test_clocks_that_leave_clients_out_keep_their_separation(name):
    sampling = LIMITED[name].of(10).sampling
    assert mechanism(BandedClientDPHyper(bands=3), sampling, WORK).once_in == sampling.separation == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITED)
def test_participants_of_runs_are_separated_whoever_drops_out(key, name):
    """What `Sampling.separation` says, counted in the cohorts of a run."""
    federation = linear_groups(10, 2, examples=30, ragged=0.5)
    algorithm = fljax.fedavg(fljax.MODELS["logistic_regression"]((4, 4, 1), 4), Work(1, 8))
    _, metrics = fljax.simulate(
        algorithm, fljax.fedavg.Hyper(), federation, key, 40, sampling=LIMITED[name], dropout=0.3, evaluate_every=40
    )
    ids, active = np.asarray(metrics["ids"]), np.asarray(metrics["active"])
    rounds = [np.flatnonzero(((ids == i) & active).any(axis=1)) for i in range(10)]
    assert min(np.diff(of_client).min(initial=99) for of_client in rounds) == 3
    assert not active.all()
