"""Angles between subspaces."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.matrices import turned
from fljax.server.checks import check_axes


def principal_angles(basis: Array) -> Array:
    """Angles between subspaces (PACFL): ``arccos`` of the singular values of ``U_i' U_j``.

    Args:
        basis: (n, d, p) orthonormal columns U_i; a column of 0 is at 90 degrees to everything.

    Returns:
        (n, n, p) degrees, smallest first; of angles near 0 within about 0.05, as far as a cosine in float32 tells.

    Raises:
        ValueError: the bases are not of shape (n, d, p).
    """
    check_axes("basis", basis, "n", "d", "p")
    basis = tree.at_least_float32(basis)
    across = jnp.einsum("idp,jdq->ijpq", basis, basis, precision="highest")
    cosine = jnp.linalg.norm(jax.vmap(jax.vmap(lambda matrix: turned(matrix)[0]))(across), axis=2)
    return jnp.degrees(jnp.arccos(jnp.clip(cosine, 0.0, 1.0)))
