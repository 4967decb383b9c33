"""Whom a client takes from, and how much: the convex combination of all rows that is nearest to its own."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from optax.projections import projection_simplex

from fljax import tree
from fljax.placement import whole
from fljax.server.checks import check_axes, check_one, check_vector, everyone

MOST_STEPS = 5000
"""Of the projected gradient; rows that differ little from each other in spread and place need a few hundred."""


class _Walk(NamedTuple):
    """Where the accelerated projected gradient is."""

    weights: Array  # (n, n)
    ahead: Array  # (n, n) where the next gradient is taken
    inertia: Array  # (n, 1)
    gap: Array  # (n,) no solution has a value lower by more
    n_steps: Array  # ()


@jax.jit
def simplex_weights(points: Array, variance: Array, where: Array | None = None, tolerance: float = 1e-5) -> Array:
    """``argmin_a |h_i - sum_j a_j h_j|^2 + sum_j a_j^2 v_j`` over the simplex, for every row i at once.

    The first term is the bias of a combination of estimates h_j of what row i looks for, the second its variance.

    Args:
        points: (n, d) float32, h.
        variance: (n,) v, not negative: of each row as an estimate.
        where: (n,) bool, the rows that may be taken from; None: all. Where none may, each row takes from itself alone.
        tolerance: a row's value is at most this share of ``mean_j (|h_j - mean|^2 + v_j)`` from the least one, unless
            5,000 steps do not reach it.

    Returns:
        (n, n) float32 rows a_i, not negative, of sum 1.

    Raises:
        ValueError: shapes that do not fit.

    Source: Xu, Tong, Huang, ICLR 2023 (FedPAC); solved by FISTA with restarts (Beck, Teboulle 2009; O'Donoghue, Candes
    2015), all rows by one matrix product a step, until each row's Frank-Wolfe gap is small.
    """
    n = check_axes("points", points, "rows", "d")[0]
    check_vector("variance", variance, n, "points")
    check_one(tolerance=tolerance)
    # Whole on every device: they are small, and a loop over spread rows would be an exchange a step.
    points, variance, may = whole(points), whole(variance), everyone(n, where, "points")
    n_may = jnp.maximum(may.sum(), 1).astype(jnp.float32)
    mean = jnp.where(may[:, None], points, 0).sum(0) / n_may
    # The same vector taken from all points changes no distance, and keeps the digits of small ones.
    h, v = points.astype(jnp.float32) - mean[None], jnp.where(may, variance, 0).astype(jnp.float32)
    taken = jnp.where(may[:, None], h, 0)
    product, wanted = tree.product(taken, taken.T), tree.product(h, taken.T)
    scale = (jnp.diagonal(product) + v).sum() / n_may
    # A step of 1 / L: half the Hessian of every row is K + diag(v), of no eigenvalue above its largest row sum.
    step = 1 / jnp.maximum((jnp.abs(product).sum(1) + v).max(), jnp.finfo(jnp.float32).tiny)

    def slope(weights: Array) -> Array:
        """Half the gradient."""
        return tree.product(weights, product) + weights * v[None] - wanted

    def projected(weights: Array) -> Array:
        inside = jnp.where(may[None], weights, -jnp.float32(1e6))
        with jax.numpy_dtype_promotion("standard"):  # which optax's projection needs
            return jax.vmap(projection_simplex)(inside).astype(jnp.float32)

    def gap(weights: Array) -> Array:
        g = slope(weights)
        return 2 * ((g * weights).sum(1) - jnp.where(may[None], g, jnp.inf).min(1))

    def goes_on(walk: _Walk) -> Array:
        return (walk.gap > tolerance * scale).any() & (walk.n_steps < MOST_STEPS)

    def further(walk: _Walk) -> _Walk:
        # A row that has arrived stays, so that no row's weights depend on how long another takes.
        is_open = (walk.gap > tolerance * scale)[:, None]
        weights = jnp.where(is_open, projected(walk.ahead - step * slope(walk.ahead)), walk.weights)
        moved = weights - walk.weights
        uphill = ((walk.ahead - weights) * moved).sum(1, keepdims=True) > 0
        inertia = jnp.where(uphill, 1.0, (1 + jnp.sqrt(1 + 4 * jnp.square(walk.inertia))) / 2)
        ahead = weights + jnp.where(uphill, 0.0, (walk.inertia - 1) / inertia) * moved
        now = jnp.where(is_open[:, 0], gap(weights), walk.gap)
        return _Walk(weights, ahead, inertia, now, walk.n_steps + 1)

    alone = (v + jnp.diagonal(product))[None] - 2 * wanted  # the value of each single row, less |h_i|^2
    begin = jax.nn.one_hot(jnp.argmin(jnp.where(may[None], alone, jnp.inf), axis=1), n, dtype=jnp.float32)
    start = _Walk(begin, begin, jnp.ones((n, 1), jnp.float32), gap(begin), jnp.int32(0))
    found = lax.while_loop(goes_on, further, start)
    return jnp.where(may.any(), found.weights, jnp.eye(n, dtype=jnp.float32))
