"""The shortest convex combination of vectors, with bounds on each one's weight."""

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.placement import whole
from fljax.server.checks import check_one, check_square, check_vector
from fljax.server.entry import compiled
from fljax.server.projected_gradient import projected_gradient
from fljax.types import AnyArray

HALVINGS = 40
"""Halvings of the interval in which the shift of a projection is sought; float32 has 24 bits."""


@compiled
def min_norm_weights(product: AnyArray, least: AnyArray, most: AnyArray, tolerance: float = 1e-6) -> Array:
    """``argmin_a |sum_i a_i x_i|^2`` over ``least <= a <= most`` with ``sum_i a_i = 1``.

    Args:
        product: (n, n) float32, the inner products ``<x_i, x_j>``.
        least: (n,) smallest weights, with a sum of at most 1.
        most: (n,) largest weights, with a sum of at least 1.
        tolerance: the value exceeds the minimum by at most this share of the largest ``|x_i|^2``, unless 5,000 steps
            do not suffice.

    Returns:
        (n,) float32 weights.

    Raises:
        ValueError: shapes do not match.
    """
    n = check_square("product", product)
    check_vector("least", least, n, "product")
    check_vector("most", most, n, "product")
    check_one(tolerance=tolerance)
    # Whole on every device: they are small, and a loop over spread rows would need an exchange per step.
    product, least, most = whole(product), whole(least)[None], whole(most)[None]
    # A step of 1 / L: half the Hessian is the matrix, whose eigenvalues are at most its largest row sum.
    step = 1 / jnp.maximum(jnp.abs(product).sum(1).max(), jnp.finfo(jnp.float32).tiny)

    def slope(weights: Array) -> Array:
        return tree.product(weights, product)

    def projected(weights: Array) -> Array:
        """``clip(a - t, least, most)`` with the shift t that makes the sum 1: by halving, then from who is inside.

        The halving finds who is inside the bounds, the rest gives t its derivatives.
        """

        def halved(_: int, between: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = between
            middle = (low + high) / 2
            is_too_low = jnp.clip(weights - middle, least, most).sum() > 1
            return jnp.where(is_too_low, middle, low), jnp.where(is_too_low, high, middle)

        low, high = lax.fori_loop(0, HALVINGS, halved, ((weights - most).min(), (weights - least).max()))
        shifted = weights - (low + high) / 2
        is_inside = (shifted > least) & (shifted < most)
        missing = (1 - jnp.clip(shifted, least, most).sum()) / jnp.maximum(is_inside.sum(), 1).astype(jnp.float32)
        return jnp.clip(jnp.where(is_inside, shifted + missing, shifted), least, most)

    def gap(weights: Array) -> Array:
        """The value above its lower bound along the slope, which is lowest where small slopes get most weight."""
        half = slope(weights)
        order = jnp.argsort(half[0])
        room = (most - least)[0, order]
        added = jnp.clip(1 - least.sum() - (jnp.cumsum(room) - room), 0.0, room)
        return 2 * (half * (weights - least)).sum(1) - 2 * (half[0, order] * added).sum()[None]

    begin = projected(jnp.asarray(least + most) / 2)
    return projected_gradient(begin, slope, projected, gap, step, tolerance * jnp.diagonal(product).max())[0]
