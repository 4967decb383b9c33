import jax.numpy as jnp
import numpy as np
import pytest

from fljax.server.curvature import STRAIGHT, LossCurve, new_curve, observe, period_ended

WINDOW, AFTER = 5, 3


def curves_of(losses, window=WINDOW, after=AFTER):
    curves = [new_curve(window, after)]
    for loss in losses:
        curves.append(observe(curves[-1], jnp.float32(loss)))
    return curves[1:]


def expected_radius(losses, window=WINDOW):
    """(rounds,) NaN before the radius is defined, inf where the curve does not bend upwards; float64."""
    smoothed = np.array([np.mean(losses[max(0, t + 1 - window) : t + 1]) for t in range(len(losses))])
    radius = np.full(len(losses), np.nan)
    for t in range(window + 1, len(losses)):
        difference, difference_before = smoothed[t] - smoothed[t - 1], smoothed[t - 1] - smoothed[t - 2]
        second_difference = difference - difference_before
        radius[t] = (1 + difference**2) ** 1.5 / second_difference if second_difference > 1e-12 else np.inf
    return radius


def expected_ends(radius, rule, after=AFTER):
    ends = np.zeros(len(radius), bool)
    for t in range(len(radius) - after):
        is_least = np.isfinite(radius[t]) and all(radius[t] < radius[t + j] for j in range(1, after + 1))
        ends[t + after] = is_least and (rule == "formula" or (t > 0 and radius[t - 1] > radius[t]))
    return ends


@pytest.mark.parametrize("rule", ["minimum", "formula"])
def test_the_end_of_the_period_equals_brute_force(rule):
    rng = np.random.default_rng(0)
    n_ended = 0
    for _ in range(5):
        # Eighths: their differences are exact in float32, so that straight is straight.
        losses = np.cumsum(-rng.integers(0, 40, 30) * 0.97 ** np.arange(30)).round() / 8 + 100
        curves, radius = curves_of(losses), expected_radius(losses)
        actual = np.array([float(curve.radii[-1]) for curve in curves])
        is_defined = np.isfinite(radius)
        np.testing.assert_allclose(actual[is_defined], radius[is_defined], rtol=1e-5)
        np.testing.assert_array_equal(actual[np.isnan(radius)], 0)
        np.testing.assert_array_equal(actual[np.isinf(radius)], np.float32(STRAIGHT))
        ends = np.array([bool(period_ended(curve, rule)) for curve in curves])
        np.testing.assert_array_equal(ends, expected_ends(radius, rule))
        n_ended += ends.sum()
    assert n_ended > 3


def test_the_formula_fires_at_once_on_a_convex_decay_and_the_minimum_does_not():
    losses = 2 * np.exp(-0.1 * np.arange(25))
    formula, minimum = ([bool(period_ended(c, rule)) for c in curves_of(losses)] for rule in ("formula", "minimum"))
    # s + 2 losses for the first radius, t_obv more to see it grow: the 10th round, for a trial in the 11th.
    assert formula.index(True) == WINDOW + 2 + AFTER - 1
    assert not any(minimum)


def test_the_minimum_is_found_at_the_bend_of_a_falling_then_flat_loss():
    losses = np.concatenate([np.linspace(3, 1, 17), np.full(13, 1.0)])  # steps of 1/8; flat from round 17 on
    ends = [bool(period_ended(c, "minimum")) for c in curves_of(losses, window=3)]
    # The mean of three bends in rounds 17 to 19, the most sharply where it has become flat.
    np.testing.assert_array_equal(np.flatnonzero(ends), [19 + AFTER])


@pytest.mark.parametrize(
    ("radii", "minimum", "formula"),
    [
        ([3, 2, 3, 4, 5], True, True),
        ([3, 2, 3, 2, 5], False, False),  # as small again
        ([2, 2, 3, 4, 5], False, True),  # as small before
        ([0, 2, 3, 4, 5], False, True),  # not defined before
    ],
)
def test_a_minimum_is_below_what_is_before_and_after_it(radii, minimum, formula):
    curve = LossCurve(jnp.zeros(WINDOW + 2), jnp.asarray(radii, jnp.float32), jnp.int32(20))
    assert (bool(period_ended(curve)), bool(period_ended(curve, "formula"))) == (minimum, formula)


def test_a_straight_loss_never_bends():
    curves = curves_of(4 - np.arange(20) / 8)
    np.testing.assert_array_equal(curves[-1].radii, np.float32(STRAIGHT))
    assert all(np.isfinite(curve.radii).all() for curve in curves)
    assert not any(period_ended(curve, "formula") for curve in curves)


def test_too_small_windows_and_unknown_rules_are_refused():
    with pytest.raises(ValueError, match="window=0 is not positive"):
        new_curve(0)
    with pytest.raises(ValueError, match="formula"):
        period_ended(new_curve(), "words")
