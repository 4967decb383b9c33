"""Spectral clustering of an affinity matrix, of fixed shape."""

from functools import partial

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.matrices import largest_eigenpairs, svd
from fljax.server.checks import check_square, everyone
from fljax.server.entry import checked, compiled
from fljax.types import AnyArray


@checked()
@partial(compiled, static_argnames="n_components")
def spectral_embedding(affinity: AnyArray, n_components: Positive, where: AnyArray | None = None) -> Array:
    r"""The first eigenvectors of the normalised Laplacian, divided by the square roots of the degrees.

    They are the eigenvectors of :math:`L = I - D^{-1/2} A D^{-1/2}` with the smallest eigenvalues. The first eigenvalue
    is 0; its column is constant if the graph is connected.

    Args:
        affinity: (n, n) A, symmetric, 0 or more; larger is more similar. The diagonal is ignored.
        n_components: at least 1, static; columns beyond the number of clients that count are 0.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        (n, n_components); rows are 0 where ``where`` is False. The sign of a column is arbitrary.

    Raises:
        ValueError: the matrix is not square, lengths differ, or n_components is below 1.

    Source: von Luxburg, A tutorial on spectral clustering, Statistics and Computing 2007.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import spectral_embedding
        >>> alike = jnp.array([[1.0, 0.9, 0.1, 0.1], [0.9, 1.0, 0.1, 0.2], [0.1, 0.1, 1.0, 0.8], [0.1, 0.2, 0.8, 1.0]])
        >>> a, b, c, d = jnp.sign(spectral_embedding(alike, 2)[:, 1]).tolist()
        >>> a == b, c == d, a == c
        (True, True, False)
    """
    n = check_square("affinity", affinity)
    mask = everyone(n, where, "affinity")
    masked = jnp.where(mask[:, None] & mask[None] & ~jnp.eye(n, dtype=bool), affinity, 0)
    masked = tree.at_least_float32(masked)
    degree = masked.sum(1)
    root = jnp.sqrt(jnp.where(degree > 0, degree, 1))
    # Eigenvalues of the clients that count are at least -1, so those of the others, -2, come last.
    normal = masked / (root[:, None] * root[None]) - jnp.diag(jnp.where(mask, 0, 2).astype(masked.dtype))
    vectors = largest_eigenpairs(normal, n_components)[1] / root[:, None]
    vectors = jnp.pad(vectors, ((0, 0), (0, n_components - vectors.shape[1])))
    return jnp.where(mask[:, None] & (jnp.arange(n_components) < mask.sum())[None], vectors, 0)


@checked()
@partial(compiled, static_argnames="n_clusters")
def spectral_labels(affinity: AnyArray, n_clusters: Positive, where: AnyArray | None = None) -> Array:
    """Labels by spectral clustering: from the eigenvectors by a pivoted QR decomposition, without randomness.

    Args:
        affinity: (n, n), see `spectral_embedding`.
        n_clusters: at least 1, static.
        where: (n,) bool, the clients that count; None: all.

    Returns:
        (n,) int32 below ``n_clusters``; -1 where ``where`` is False.

    Raises:
        ValueError: the matrix is not square, lengths differ, or n_clusters is below 1.

    Source: Damle, Minden, Ying: Simple, direct and efficient multi-way spectral clustering, Information and Inference
    2019; ``assign_labels="cluster_qr"`` of scikit-learn.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import spectral_labels
        >>> alike = jnp.array([[1.0, 0.9, 0.1, 0.1], [0.9, 1.0, 0.1, 0.2], [0.1, 0.1, 1.0, 0.8], [0.1, 0.2, 0.8, 1.0]])
        >>> a, b, c, d = spectral_labels(alike, 2).tolist()
        >>> a == b, c == d, a == c
        (True, True, False)
    """
    mask = everyone(check_square("affinity", affinity), where, "affinity")
    rows = spectral_embedding(affinity, n_clusters, mask)

    def pivot(remaining: Array, _: None) -> tuple[Array, Array]:
        """The rows made orthogonal to the longest row, and the index of the longest row."""
        longest = jnp.argmax(jnp.square(remaining).sum(1))
        direction = remaining[longest] / jnp.maximum(jnp.linalg.norm(remaining[longest]), 1e-30)
        return remaining - tree.product(remaining, direction)[:, None] * direction[None], longest

    pivots = lax.scan(pivot, rows, None, length=n_clusters)[1]
    u, _, v = svd(rows[pivots].T)
    rotated = tree.product(rows, tree.product(u, v))
    return jnp.where(mask, jnp.argmax(jnp.abs(rotated), axis=1).astype(jnp.int32), -1)
