"""Weights of other clients' estimates: for each row, the convex combination of all rows with the least error."""

import jax
import jax.numpy as jnp
from jax import Array
from optax.projections import projection_simplex

from fljax import tree
from fljax.placement import whole
from fljax.server.checks import check_axes, check_one, check_vector, everyone
from fljax.server.entry import compiled
from fljax.server.projected_gradient import projected_gradient
from fljax.types import AnyArray


@compiled
def simplex_weights(
    points: AnyArray, variance: AnyArray, where: AnyArray | None = None, tolerance: float = 1e-5
) -> Array:
    """``argmin_a |h_i - sum_j a_j h_j|^2 + sum_j a_j^2 v_j`` over the simplex, for every row i at once.

    The first term is the squared bias of the combination of estimates h_j as an estimate for row i, the second its
    variance.

    Args:
        points: (n, d) float32, h.
        variance: (n,) v, the variance of each row as an estimate, not negative.
        where: (n,) bool, the rows that may have weight; None: all. If none may, each row has weight only on itself.
        tolerance: a row's value exceeds the minimum by at most this share of ``mean_j (|h_j - mean|^2 + v_j)``, unless
            5,000 steps do not suffice.

    Returns:
        (n, n) float32, rows a_i, not negative, with sum 1.

    Raises:
        ValueError: shapes do not match.

    Source: Xu, Tong, Huang, ICLR 2023 (FedPAC); solved by `projected_gradient`, for all rows with one matrix product
    per step, until each row's Frank-Wolfe gap is small.
    """
    n = check_axes("points", points, "rows", "d")[0]
    check_vector("variance", variance, n, "points")
    check_one(tolerance=tolerance)
    # Whole on every device: they are small, and a loop over spread rows would need an exchange per step.
    points, variance, is_allowed = whole(points), whole(variance), everyone(n, where, "points")
    n_allowed = jnp.maximum(is_allowed.sum(), 1).astype(jnp.float32)
    mean = jnp.where(is_allowed[:, None], points, 0).sum(0) / n_allowed
    # Subtracting the same vector from all points changes no distance, and keeps the precision of small ones.
    h, v = points.astype(jnp.float32) - mean[None], jnp.where(is_allowed, variance, 0).astype(jnp.float32)
    allowed_h = jnp.where(is_allowed[:, None], h, 0)
    product, target = tree.product(allowed_h, allowed_h.T), tree.product(h, allowed_h.T)
    scale = (jnp.diagonal(product) + v).sum() / n_allowed
    # A step of 1 / L: half the Hessian of every row is K + diag(v), whose eigenvalues are at most its largest row sum.
    step = 1 / jnp.maximum((jnp.abs(product).sum(1) + v).max(), jnp.finfo(jnp.float32).tiny)

    def slope(weights: Array) -> Array:
        """Half the gradient."""
        return tree.product(weights, product) + weights * v[None] - target

    def projected(weights: Array) -> Array:
        return jax.vmap(onto_simplex)(jnp.where(is_allowed[None], weights, -jnp.float32(1e6)))

    def gap(weights: Array) -> Array:
        g = slope(weights)
        return 2 * ((g * weights).sum(1) - jnp.where(is_allowed[None], g, jnp.inf).min(1))

    single_value = (v + jnp.diagonal(product))[None] - 2 * target  # the value of each single row, minus |h_i|^2
    begin = jax.nn.one_hot(jnp.argmin(jnp.where(is_allowed[None], single_value, jnp.inf), axis=1), n, dtype=jnp.float32)
    weights = projected_gradient(begin, slope, projected, gap, step, tolerance * scale)
    return jnp.where(is_allowed.any(), weights, jnp.eye(n, dtype=jnp.float32))


def onto_simplex(point: Array) -> Array:
    """(n,) float32, the nearest point whose entries are not negative and have the sum 1."""
    with jax.numpy_dtype_promotion("standard"):  # optax's projection needs it
        return projection_simplex(point).astype(jnp.float32)
