"""Noise that is correlated over the rounds: against SciPy's triangular solve, brute force and closed forms."""

from itertools import combinations

import jax
import numpy as np
import pytest
from scipy import linalg, stats

import fljax
from fljax.rounds.uplink.correlated import MOST_BANDS, band_coefficients, banded_client_dp
from fljax.rounds.uplink.private import client_dp
from fljax.run.sweep.points import grid
from tests.algorithms.round_by_round import jitted, one_round
from tests.rounds.test_private import GIVEN
from tests.rounds.test_uplink import D, N, transformed

ROUNDS = 48
"""More than `MOST_BANDS`, so that the oldest noise has been let go."""
NUMBERS = GIVEN | {"noise_multiplier": 1.5, "dp_clip": 0.2}


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)


def matrix(n_rounds, bands):
    """C (rounds, rounds), from the binomial coefficients of the square root in double precision."""
    column = np.zeros(n_rounds)
    for j in range(min(bands, n_rounds)):
        column[j] = np.prod([(2 * i - 1) / (2 * i) for i in range(1, j + 1)])
    return np.tril(linalg.toeplitz(column))


def released(transform, updates, n_rounds, **numbers):
    """The sums that are released in each round, (rounds, d); nobody participates in any, if there are no updates."""
    memory, rows = None, []
    for r in range(n_rounds):
        of_round = {name: value[r] if np.ndim(value) else value for name, value in numbers.items()}
        weight = np.zeros(N) if updates is None else np.ones(N)
        values = np.zeros((N, D)) if updates is None else updates[r]
        result = transformed(transform, values, r, memory, weight, 2.5, **NUMBERS | of_round)
        memory = result.memory
        rows.append(2.5 * np.asarray(result.values, np.float64).mean(axis=0))
    return np.array(rows)


@pytest.fixture(scope="module")
def independent():
    """What client_dp releases of rounds without participants."""
    return released(client_dp, None, ROUNDS)


def test_coefficients_multiply_to_those_of_a_sum():
    """C^2 is the matrix of prefix sums, as far as its bands go."""
    for bands in (1, 2, 5, MOST_BANDS):
        c = np.asarray(band_coefficients(float(bands)), np.float64)
        np.testing.assert_allclose(np.convolve(c, c)[:bands], 1, rtol=1e-5)
        assert not c[bands:].any()


def test_one_band_is_client_dp_bit_for_bit(values):
    memories = [None, None]
    for seed in range(3):
        weight = np.asarray([1.0, 0, 3, 1])
        results = [
            transformed(transform, values, seed, memory, weight, 2.5, **NUMBERS, **bands)
            for transform, memory, bands in zip(
                (client_dp, banded_client_dp), memories, ({}, {"bands": 1.0}), strict=True
            )
        ]
        memories = [result.memory for result in results]
        np.testing.assert_array_equal(results[1].values, results[0].values)
        np.testing.assert_array_equal(results[1].weight, results[0].weight)
        np.testing.assert_array_equal(results[1].n_bits, results[0].n_bits)


@pytest.mark.parametrize("bands", [2, 5, MOST_BANDS])
def test_the_noise_of_all_rounds_solves_the_triangular_system_for_independent_noise(independent, bands):
    c = matrix(ROUNDS, bands)
    expected = linalg.solve_triangular(c, np.linalg.norm(c[:, 0]) * independent, lower=True)
    noise = released(banded_client_dp, None, ROUNDS, bands=float(bands))
    np.testing.assert_allclose(noise, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bands", [2, 5, MOST_BANDS])
def test_the_sums_over_rounds_err_by_the_closed_form_which_is_less_than_of_independent_noise(bands):
    sums, c = np.tril(np.ones((ROUNDS, ROUNDS))), matrix(ROUNDS, bands)
    factor = linalg.solve_triangular(c, sums.T, lower=True, trans=1).T  # A C^-1
    norm = np.linalg.norm(c[:, 0])
    assert np.linalg.norm(factor) * norm < 0.8 * np.linalg.norm(sums)
    noise = released(banded_client_dp, None, ROUNDS, bands=float(bands))
    # Of each number, A C^-1 Z, made independent again: a wrong correlation would show here.
    squares = (np.linalg.solve(factor, sums @ noise) ** 2).sum() / (1.5 * 0.2 * norm) ** 2
    assert 1e-3 < stats.chi2(ROUNDS * D).cdf(squares) < 1 - 1e-3
    error = ((sums @ noise) ** 2).sum() / (1.5 * 0.2) ** 2 / D
    np.testing.assert_allclose(error, (np.linalg.norm(factor) * norm) ** 2, rtol=0.2)


def patterns(n_rounds, separation):
    """All sets of rounds of which no two are nearer than the separation."""
    for k in range(1, n_rounds + 1):
        for rounds in combinations(range(n_rounds), k):
            if k == 1 or min(np.diff(rounds)) >= separation:
                yield rounds


@pytest.mark.parametrize("bands", [1, 2, 3, 4])
def test_a_client_that_rests_changes_what_is_hidden_by_no_more_than_its_participations(bands):
    """By brute force: k rounds change C X by at most sqrt(k) |c|, as k Gaussian mechanisms do; with less rest more."""
    n_rounds = 9
    c = matrix(n_rounds, bands)
    norm = np.linalg.norm(c[:, 0])

    def changes(separation):
        return {rounds: np.linalg.norm(c[:, rounds].sum(axis=1)) for rounds in patterns(n_rounds, separation)}

    largest = changes(bands)
    assert all(change <= np.sqrt(len(rounds)) * norm * (1 + 1e-12) for rounds, change in largest.items())
    n_counted = -(-n_rounds // bands)
    assert max(map(len, largest)) == n_counted
    assert max(largest.values()) <= np.sqrt(n_counted) * norm * (1 + 1e-12)
    np.testing.assert_allclose(largest[(0,)], norm)
    if bands > 1:
        assert any(change > 1.01 * np.sqrt(len(rounds)) * norm for rounds, change in changes(bands - 1).items())


def test_updates_are_clipped_and_summed_as_without_correlation(values):
    """A sum without noise, and the same noise whatever the updates: they are not in what the server keeps."""
    updates = np.stack([values, -2 * values, values[::-1]])
    noiseless = {"noise_multiplier": 0.0, "dp_clip": 2.0}
    sums = released(client_dp, updates, 3, **noiseless)
    np.testing.assert_array_equal(released(banded_client_dp, updates, 3, bands=3.0, **noiseless), sums)
    noisy = released(banded_client_dp, updates, 3, bands=3.0, dp_clip=2.0)
    noise = released(banded_client_dp, None, 3, bands=3.0, dp_clip=2.0)
    np.testing.assert_allclose(noisy, sums + noise, rtol=1e-4, atol=1e-4)
    assert np.isfinite(released(banded_client_dp, updates, 3, bands=3.0, noise_multiplier=0.0, dp_clip=np.inf)).all()


def test_a_clip_that_changes_scales_the_noise_of_its_round():
    """So that in units of the clip it is the same mechanism, in every round; noise of an earlier, smaller clip would
    not hide a larger one."""
    clips = np.asarray([1.0, 0.1, 4.0, 0.5], np.float32)
    noise = released(banded_client_dp, None, 4, bands=3.0, dp_clip=clips)
    unit = released(banded_client_dp, None, 4, bands=3.0, dp_clip=1.0)
    np.testing.assert_allclose(noise, clips[:, None] * unit, rtol=1e-5, atol=1e-6)


WORK, THIRDS = fljax.Work(epochs=1, batch_size=8), fljax.rounds.least_recent(1 / 3, separation=3)


def method_and_algorithm(name):
    method = fljax.compose(name)
    return method, method(fljax.MODELS["logistic_regression"]((4, 4, 1), 4), WORK)


def flat(state):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.server.own)])


@pytest.mark.slow
def test_the_models_of_a_run_are_the_sums_of_this_noise(key, federation):
    """Clients that do not move: the model of a round differs from the first one by the noise so far."""
    n_rounds, models = 6, {}
    for brick, numbers in (("client_dp", {}), ("banded_client_dp", {"bands": 3})):
        method, algorithm = method_and_algorithm(f"fedavg+{brick}")
        hyper, rows = method.Hyper(lr=1e-30, **numbers), []
        state = jitted(algorithm.init)(key, hyper, federation.train)
        first = flat(state)
        for r in range(n_rounds):
            state, _ = one_round(algorithm, hyper, federation, key, state, r)
            rows.append(flat(state))
        models[brick] = np.asarray(rows, np.float64) - first
    independent, c = np.diff(models["client_dp"], axis=0, prepend=0), matrix(n_rounds, 3)
    noise = linalg.solve_triangular(c, np.linalg.norm(c[:, 0]) * independent, lower=True)
    np.testing.assert_allclose(models["banded_client_dp"], np.cumsum(noise, axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_it_is_resumed_from_a_folder_bit_for_bit(key, federation, tmp_path):
    """Whatever comes before it, and while clients drop out."""
    method, algorithm = method_and_algorithm("fedavg+clip_update+secure_sum+banded_client_dp")
    arguments = algorithm, method.Hyper(bands=3), federation, key
    options = {"sampling": THIRDS, "dropout": 0.3}
    whole = fljax.train(*arguments, 5, **options, folder=tmp_path / "whole")
    for n_rounds in (2, 5):
        resumed = fljax.train(*arguments, n_rounds, **options, folder=tmp_path / "resumed")
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)
    np.testing.assert_array_equal(resumed.metrics["epsilon"], whole.metrics["epsilon"])


@pytest.mark.slow
def test_a_sweep_over_bands_equals_its_single_runs(key, federation):
    method, algorithm = method_and_algorithm("fedavg+banded_client_dp")
    hypers = grid(method.Hyper(target_epsilon=30.0), bands=(1, 2, 3))
    swept = fljax.sweep(algorithm, hypers, federation, key, 1, 5, sampling=THIRDS)
    for i, bands in enumerate((1, 2, 3)):
        hyper = method.Hyper(target_epsilon=30.0, bands=bands)
        _, single = fljax.simulate(algorithm, hyper, federation, jax.random.fold_in(key, 0), 5, sampling=THIRDS)
        np.testing.assert_allclose(swept["test_loss"][i, 0], single["test_loss"], rtol=1e-5)
        np.testing.assert_allclose(swept["epsilon"][i, 0], single["epsilon"], rtol=1e-5)
    assert len(set(swept["test_loss"][:, 0, -1].tolist())) == 3
