"""The Hopkins statistic: a measure of clustering tendency."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.choices import Positive
from fljax.keys import descend
from fljax.server.checks import check_key
from fljax.server.entry import checked, compiled
from fljax.server.gram import matrices_and_mask
from fljax.types import AnyArray, Key, Stacked


@checked()
@partial(compiled, static_argnames=("n_probes", "n_draws"))
def hopkins(key: Key, x: Stacked, n_probes: Positive, n_draws: Positive = 20, where: AnyArray | None = None) -> Array:
    """``H = sum z / (sum z + sum v)``: about 0.5 for uniform points, near 1 for tight clusters (Hopkins, Skellam 1954).

    ``v_j`` is the distance of a point, drawn without replacement, to its nearest other point; ``z_j`` the distance of a
    place, drawn uniformly in the points' bounding box, to the nearest point. Distances are L2 with exponent 1 (as in
    FedTSDP), not d. A single draw with few probes is very noisy, so the mean over ``n_draws`` draws is returned.

    Args:
        key: random key.
        x: (n, d) array, or a pytree with leaves (n, ...).
        n_probes: number of points and of places per draw, static, at least 1. If fewer points count, each of them is
            used once, with as many places.
        n_draws: number of independent draws, static, at least 1; with 1 it is the statistic itself.
        where: (n,) bool, points that count; None: all.

    Returns:
        () in [0, 1]; 0.5 with fewer than two points, or if all points are equal. The gradient is that for fixed draws,
        and of little use.

    Raises:
        ValueError: n_probes or n_draws below 1.
    """
    check_key(key)
    matrices, where = matrices_and_mask(x, where, None)
    points = jnp.concatenate(matrices, axis=1)
    low = jnp.where(where[:, None], points, jnp.inf).min(axis=0)
    high = jnp.where(where[:, None], points, -jnp.inf).max(axis=0)
    points = jnp.where(where[:, None], points, 0)

    def nearest(places: Array, is_allowed: Array) -> Array:
        """The distance of each place to its nearest allowed point, one place at a time: (m, d), (m, n) -> (m,)."""

        def one(place: Array, is_allowed: Array) -> Array:
            square = jnp.square(points - place[None, :]).sum(axis=1)
            return jnp.sqrt(jnp.where(is_allowed, square, jnp.inf).min())

        return jax.lax.map(lambda args: one(*args), (places, is_allowed))

    (n, d), m = points.shape, min(n_probes, points.shape[0])

    def draw(number: Array) -> Array:
        # The random generator and the nearest-point search are compiled once, though both are used twice.
        uniform = partial(jax.random.uniform, shape=(max(n, m * d),), dtype=jnp.float32)
        point_numbers, place_numbers = jax.vmap(uniform)(descend(key, number, np.arange(2)))
        probe = jnp.argsort(jnp.where(where, point_numbers[:n], jnp.inf))[:m]
        places = low[None, :] + place_numbers[: m * d].reshape(m, d) * (high - low)[None, :]
        is_used = where[probe]
        is_other = where[None, :] & (probe[:, None] != jnp.arange(n)[None, :])
        is_allowed = jnp.concatenate([is_other, jnp.broadcast_to(where[None, :], is_other.shape)])
        v, z = jnp.split(nearest(jnp.concatenate([points[probe], places]), is_allowed), 2)
        sum_v, sum_z = jnp.where(is_used, v, 0).sum(), jnp.where(is_used, z, 0).sum()
        total = sum_v + sum_z
        return jnp.where(total > 0, sum_z / jnp.where(total > 0, total, 1), 0.5)

    value = jax.lax.map(draw, jnp.arange(n_draws)).mean()
    return jnp.where(where.sum() >= 2, value, 0.5)
