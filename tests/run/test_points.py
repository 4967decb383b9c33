"""Grids and draws: Hypers of vectors that compose, and what is refused."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fljax
from fljax.rounds import named_samplings
from fljax.rounds.uplink.private import AdaptiveClientDPHyper, ClientDPHyper, DPSGDHyper
from fljax.run.privacy import check_noise, epsilons, with_target
from fljax.run.sweep import draw, grid, log_spaced, log_uniform, spaced, stack, uniform
from fljax.run.sweep.points import count_points, epsilons_of_points, point, rows, vectors, with_targets
from fljax.types import Work

NUMBERS = st.lists(st.floats(0.125, 8, width=32), min_size=1, max_size=4)


@given(NUMBERS, NUMBERS)
def test_a_grid_is_the_product_of_its_values(lr, mu):
    hypers = grid(fljax.fedprox.Hyper(momentum=0.5), lr=lr, mu=mu)
    assert list(zip(hypers.lr, hypers.mu, strict=True)) == list(itertools.product(lr, mu))
    assert hypers.momentum == 0.5
    assert count_points(hypers) == len(lr) * len(mu)


def test_grids_and_draws_compose(key):
    draws = draw(key, fljax.fedprox.Hyper(), 3, lr=log_uniform(1e-3, 1.0))
    points = grid(draws, mu=(0.0, 0.5))
    np.testing.assert_array_equal(points.lr, np.repeat(draws.lr, 2))
    np.testing.assert_array_equal(points.mu, [0, 0.5] * 3)
    assert list(rows(points))[1] == {"lr": pytest.approx(float(draws.lr[0]), rel=1e-6), "mu": 0.5}
    assert next(rows(grid(fljax.fedprox.Hyper(), lr=[0.1]))) == {"lr": 0.1}
    assert jax.tree.structure(stack([point(points, i) for i in range(6)])) == jax.tree.structure(points)
    np.testing.assert_array_equal(stack(point(points, i) for i in range(6)).mu, points.mu)


def test_draws_have_their_distribution_and_do_not_depend_on_each_other(key):
    rates = draw(key, fljax.fedprox.Hyper(), 2000, lr=log_uniform(1e-3, 1.0))
    points = draw(key, fljax.fedprox.Hyper(), 2000, mu=uniform(1.0, 3.0), lr=log_uniform(1e-3, 1.0))
    np.testing.assert_array_equal(rates.lr, points.lr)
    assert points.mu.min() >= 1
    assert points.mu.max() < 3
    # Means of 2,000 uniforms: a standard error is 0.0129 (width 2) and 0.0194 (width 3), so four of them.
    assert points.mu.mean() == pytest.approx(2.0, abs=0.052)
    assert np.log10(points.lr).mean() == pytest.approx(-1.5, abs=0.078)
    assert not np.array_equal(draw(jax.random.key(1), fljax.fedprox.Hyper(), 2000, lr=uniform(0, 1)).lr, points.lr)


def test_ranges_have_both_ends():
    assert spaced(0, 1, 3) == (0, 0.5, 1)
    np.testing.assert_allclose(log_spaced(0.001, 1, 4), (0.001, 0.01, 0.1, 1), rtol=1e-12)
    assert log_spaced(0.5, 0.5, 1) == (0.5,)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: grid(fljax.fedprox.Hyper(), lr=[]), "lr: an empty grid; give at least one value"),
        (lambda: grid(fljax.fedprox.Hyper(), mome=[1]), "FedProxHyper: no field 'mome'; the nearest is 'momentum'"),
        (lambda: grid(fljax.fedprox.Hyper(), epochs=[1, 5]), "epochs is static.*outer loop"),
        (lambda: grid(fljax.fedprox.Hyper(), momentum=[None, 0.5]), "momentum: None needs another program.*outer loop"),
        (lambda: grid(fljax.fedprox.Hyper(), lr=["fast"]), "lr=.'fast'.: give numbers"),
        (
            lambda: grid(fljax.fedprox.Hyper(), lr=0.1),
            r"lr=0\.1 is not a sequence of values; give several, or one as \(0\.1,\)",
        ),
        (lambda: grid(fljax.fedprox.Hyper(), lr="12"), "lr='12' is not a sequence of values"),
        (
            lambda: draw(jax.random.key(0), fljax.fedprox.Hyper(), 2.5, lr=uniform(0, 1)),
            r"n_points=2\.5 is not a whole",
        ),
        (
            lambda: draw(jax.random.key(0), fljax.fedprox.Hyper(), 2),
            "n_points=2, but no field varies; give at least one",
        ),
        (
            lambda: draw(jax.random.key(0), fljax.fedprox.Hyper(), 2, lr=(0.01, 0.1)),
            r"^lr=\(0\.01, 0\.1\) is not a distribution; give uniform\(low, high\) or log_uniform\(low, high\)$",
        ),
        (lambda: spaced(0, 1, 2.5), r"n=2\.5 is not a whole number"),
        (lambda: vectors(fljax.fedavg.Hyper(lr=[0.1, None])), "lr: None needs another program"),
        (lambda: vectors(fljax.fedavg.Hyper(lr=[[0.1], [0.2]])), r"lr=\[\[0\.1\], \[0\.2\]\]: give numbers"),
        (lambda: vectors({"lr": [0.1]}), "is not a Hyper; give one whose fields are numbers or vectors"),
        (lambda: draw(jax.random.key(0), fljax.fedprox.Hyper(), 0, lr=uniform(0, 1)), "n_points=0"),
        (lambda: draw(jax.random.key(0), fljax.fedprox.Hyper(), 2, lx=uniform(0, 1)), "the nearest is 'lr'"),
        (lambda: log_uniform(0, 1), "low=0, high=1: give 0 < low <= high"),
        (lambda: uniform(2, 1), "low=2, high=1: give low <= high"),
        (lambda: log_spaced(0.1, 1, 0), "n=0: an empty range"),
        (lambda: stack([]), "no points to stack"),
        (lambda: stack(5), "hypers is of type int, not a list; give Hypers of a method"),
        (lambda: stack({1: 2}), "hypers is of type dict, not a list"),
        (lambda: count_points(fljax.fedavg.Hyper(lr=np.zeros(3), momentum=np.zeros(2))), "different numbers of points"),
        (lambda: count_points(fljax.fedavg.Hyper(lr=np.zeros((2, 2)))), r"lr has shape \(2, 2\)"),
        (lambda: count_points(fljax.fedavg.Hyper(lr=np.zeros(0))), r"lr has shape \(0,\)"),
    ],
)
def test_what_is_no_sweep_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.slow
def test_each_point_with_a_target_has_the_noise_of_its_own_run():
    arguments = named_samplings.poisson(0.5), Work(1, 8), 3
    points = grid(ClientDPHyper(target_epsilon=8.0), delta=(1e-5, 1e-3))
    expected = [with_target(point(points, i), *arguments).noise_multiplier for i in range(2)]
    np.testing.assert_allclose(with_targets(points, *arguments).noise_multiplier, expected, rtol=1e-6)


def test_each_private_point_has_the_epsilon_of_its_own_run():
    arguments = named_samplings.poisson(0.5), Work(1, 8), 3
    points = grid(ClientDPHyper(), noise_multiplier=(1.0, 2.0), delta=(1e-5, 1e-3))
    epsilons_by_point = epsilons_of_points(points, *arguments)
    np.testing.assert_allclose(epsilons_by_point, [epsilons(point(points, i), *arguments) for i in range(4)], rtol=1e-6)
    assert len(np.unique(epsilons_by_point[:, -1])) == 4


def test_noise_on_counts_is_more_than_half_of_all_noise():
    check_noise(AdaptiveClientDPHyper(count_noise=5.0), 9.9)
    with pytest.raises(ValueError, match="count_noise=5 is too little; choose more than half of noise_multiplier=10"):
        check_noise(AdaptiveClientDPHyper(count_noise=5.0), 10.0)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (grid(ClientDPHyper(noise_multiplier=1.0), dp_clip=(1, np.inf)), "dp_clip=inf, but the noise is 1 times it"),
        (grid(ClientDPHyper(target_epsilon=8.0), dp_clip=(1, np.inf)), "dp_clip=inf, but the noise is .* times it"),
        (grid(AdaptiveClientDPHyper(), noise_multiplier=(1, 20)), "count_noise=5 is too little"),
        (grid(DPSGDHyper(), example_clip=(1, np.inf)), "example_clip=inf, but the noise"),
    ],
)
def test_a_private_point_is_refused_as_its_run_is(points, message):
    bad_point = point(points, 1)
    with pytest.raises(ValueError, match=message):
        epsilons(
            with_target(bad_point, named_samplings.uniform(), Work(1, 8), 3), named_samplings.uniform(), Work(1, 8), 3
        )
    with pytest.raises(ValueError, match=message):
        with_targets(points, named_samplings.uniform(), Work(1, 8), 3)
    assert with_targets(point(points, 0), named_samplings.uniform(), Work(1, 8), 3).target_epsilon is None
