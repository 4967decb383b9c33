"""End of a loss's rapid decrease, from the radius of curvature of its smoothed curve, round by round.

DC-PFL's rule: the rapid-decrease period of a loss ends where the radius of curvature is smallest, at the curve's bend.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.choices import Positive, check_choices
from fljax.server.entry import compiled

STRAIGHT = float(jnp.finfo(jnp.float32).max)
"""The radius of a curve that is straight or bends downwards; finite, so that a `LossCurve` is always finite."""

SLACK = 1e-12
"""A second difference at or below this does not count as a bend."""

PeriodEnd = Literal["minimum", "formula"]


class LossCurve(NamedTuple):
    """The last values of a loss curve, newest last, in fixed shapes."""

    losses: Array  # (window + 2,) l(t)
    radii: Array  # (n_after + 2,) r(t); 0: not defined yet
    count: Array  # () int32 number of losses so far


def new_curve(window: Positive = 5, n_after: Positive = 3) -> LossCurve:
    """A curve without values.

    Args:
        window: s, number of losses that are averaged; >= 1.
        n_after: t_obv, number of later rounds whose radius must be larger; >= 1.

    Raises:
        ValueError: an argument is not an integer, or below 1.
    """
    check_choices(new_curve, {"window": window, "n_after": n_after})
    return LossCurve(jnp.zeros(window + 2, jnp.float32), jnp.zeros(n_after + 2, jnp.float32), jnp.int32(0))


@compiled
def observe(curve: LossCurve, loss: ArrayLike) -> LossCurve:
    """The curve with one more round's loss.

    ``l_w(t)`` is the mean of the last ``window`` losses, ``l'(t) = l_w(t) - l_w(t-1)``, ``l''(t) = l'(t) - l'(t-1)``
    and ``r(t) = (1 + l'^2)^(3/2) / l''``, which is defined from ``window + 2`` losses on, and is `STRAIGHT` where
    ``l'' <= 1e-12``.
    """
    window = curve.losses.shape[0] - 2
    losses, count = jnp.append(curve.losses[1:], loss), curve.count + 1
    # l_w(t) - l_w(t-1) = (l(t) - l(t-window)) / window: differences of means would lose precision.
    fall, previous_fall = losses[-1] - losses[1], losses[-2] - losses[0]
    slope, bend = fall / window, (fall - previous_fall) / window
    radius = jnp.where(bend > SLACK, (1 + slope**2) ** 1.5 / jnp.maximum(bend, SLACK), STRAIGHT)
    radius = jnp.where(count >= window + 2, radius, 0.0)
    return LossCurve(losses, jnp.append(curve.radii[1:], radius), count)


def period_ended(curve: LossCurve, rule: PeriodEnd = "minimum") -> Array:
    """Whether the rapid-decrease period ended ``n_after`` rounds ago: () bool.

    "formula": ``r(t) < r(t + j)`` for j = 1..n_after and r(t) finite. The radius of a convex decay grows from its first
    value, so this is True as soon as it is defined, whatever the data. "minimum" also requires ``r(t - 1) > r(t)``: an
    interior minimum, as the paper's text describes.

    Raises:
        ValueError: ``rule`` is unknown.
    """
    check_choices(period_ended, {"rule": rule})
    radius_before, radius, radii_after = curve.radii[0], curve.radii[1], curve.radii[2:]
    is_least = (radius > 0) & (radius < STRAIGHT) & (radii_after > radius).all()
    return is_least & (radius_before > radius) if rule == "minimum" else is_least
