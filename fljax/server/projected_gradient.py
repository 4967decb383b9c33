"""Convex quadratic problems over simple sets, many at once: accelerated projected gradient steps."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

MOST_STEPS = 5000
"""Maximum number of steps; problems with similar points and variances need a few hundred."""


class _Walk(NamedTuple):
    """State of the accelerated projected gradient method."""

    weights: Array  # (rows, n)
    ahead: Array  # (rows, n) where the next gradient is computed
    inertia: Array  # (rows, 1)
    gap: Array  # (rows,) upper bound on the value above the minimum
    n_steps: Array  # ()


def projected_gradient(
    begin: Array,
    slope: Callable[[Array], Array],
    projected: Callable[[Array], Array],
    gap: Callable[[Array], Array],
    step: Array,
    largest_gap: Array,
) -> Array:
    """(rows, n) weights that minimise a function of each row, over a convex set.

    Args:
        begin: (rows, n) in the set.
        slope: (rows, n) -> (rows, n), half the gradient.
        projected: (rows, n) -> (rows, n), the nearest points of the set.
        gap: (rows, n) -> (rows,) upper bounds on the value above the minimum, as Frank and Wolfe's.
        step: at most 1 / L, where L is the largest eigenvalue of half the Hessian.
        largest_gap: rows with a gap up to this one are ready.

    Source: FISTA (Beck, Teboulle 2009) with restarts (O'Donoghue, Candes 2015).
    """

    def goes_on(walk: _Walk) -> Array:
        return (walk.gap > largest_gap).any() & (walk.n_steps < MOST_STEPS)

    def further(walk: _Walk) -> _Walk:
        # A converged row stays, so that its weights do not depend on how long other rows take.
        is_open = (walk.gap > largest_gap)[:, None]
        weights = jnp.where(is_open, projected(walk.ahead - step * slope(walk.ahead)), walk.weights)
        move = weights - walk.weights
        is_uphill = ((walk.ahead - weights) * move).sum(1, keepdims=True) > 0
        inertia = jnp.where(is_uphill, 1.0, (1 + jnp.sqrt(1 + 4 * jnp.square(walk.inertia))) / 2)
        ahead = weights + jnp.where(is_uphill, 0.0, (walk.inertia - 1) / inertia) * move
        row_gap = jnp.where(is_open[:, 0], gap(weights), walk.gap)
        return _Walk(weights, ahead, inertia, row_gap, walk.n_steps + 1)

    start = _Walk(begin, begin, jnp.ones((begin.shape[0], 1), jnp.float32), gap(begin), jnp.int32(0))
    return lax.while_loop(goes_on, further, start).weights
