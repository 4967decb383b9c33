"""Angles between subspaces."""

import math
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.choices import check_choices
from fljax.matrices import singular_values
from fljax.placement import whole
from fljax.server.checks import check_axes
from fljax.types import AnyArray

_ENTRIES = 2**15
"""Entries of the small matrices that are rotated at once: they stay in the cache of one core."""


def principal_angles(basis: AnyArray) -> Array:
    """Angles between subspaces (PACFL): ``arccos`` of the singular values of ``U_i' U_j``.

    Args:
        basis: (n, d, p) orthonormal columns U_i; a zero column has an angle of 90 degrees to every other.

    Returns:
        (n, n, p) degrees, smallest first; the error is about 0.05 near 0 degrees, the resolution of a float32 cosine.

    Raises:
        ValueError: the bases are not of shape (n, d, p).
    """
    return jnp.sort(jnp.moveaxis(_pairwise_angles(basis), 0, -1))


def subspace_distance(basis: Array, angle: Literal["smallest", "sum"] = "smallest") -> Array:
    """The smallest of the principal angles between subspaces, or the sum of all: (n, n) degrees.

    From the angles of `principal_angles`, but without keeping all of them in memory.
    """
    check_choices(subspace_distance, {"angle": angle})
    return _pairwise_angles(basis, jnp.min if angle == "smallest" else jnp.sum)[0]


def _pairwise_angles(basis: AnyArray, reduce: Callable[..., Array] | None = None) -> Array:
    """The angles of all pairs, (p, n, n), or one number per pair if ``reduce`` is given, (1, n, n).

    Computed tile by tile in the upper triangle, so that the matrices ``U_i' U_j`` of a tile stay in cache.
    """
    n, d, p = check_axes("basis", basis, "n", "d", "p")
    basis = whole(tree.at_least_float32(basis))
    side = min(n, max(8, math.isqrt(_ENTRIES // (p * (p + p % 2))) // 8 * 8))
    n_tiles = -(-n // side)
    tiles = jnp.pad(basis, ((0, n_tiles * side - n), (0, 0), (0, 0))).reshape(n_tiles, side, d, p)
    rows = tiles.transpose(0, 3, 1, 2).reshape(n_tiles, p * side, d)
    upper = jnp.asarray(np.stack(np.triu_indices(n_tiles)), jnp.int32)

    def of_tile(i: Array, j: Array) -> Array:
        products = tree.product(rows[i], rows[j].T).reshape(p, side, p, side).transpose(0, 2, 1, 3)
        angles = jnp.degrees(jnp.arccos(jnp.clip(singular_values(products), 0.0, 1.0)))
        return angles if reduce is None else reduce(angles, axis=0, keepdims=True)

    def put(tile: Array, matrix: Array) -> Array:
        i, j = upper[:, tile]
        angles, zero = of_tile(i, j), jnp.int32(0)
        matrix = lax.dynamic_update_slice(matrix, angles.transpose(0, 2, 1), (zero, j * side, i * side))
        return lax.dynamic_update_slice(matrix, angles, (zero, i * side, j * side))

    start = jnp.zeros((p if reduce is None else 1, n_tiles * side, n_tiles * side), basis.dtype)
    return lax.fori_loop(0, upper.shape[1], put, start)[:, :n, :n]
