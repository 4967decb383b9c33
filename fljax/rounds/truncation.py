"""Low-rank updates: every matrix by as many of its largest singular values as keep a share of its energy."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.matrices import largest_eigenpairs
from fljax.types import Stacked


def truncated_updates(updates: Stacked, energy: Array) -> tuple[Stacked, Array]:
    """Updates (rows, ...) whose matrices have lost their smallest singular values, and (rows,) floats that are sent.

    A matrix of m rows and n columns by k singular values is ``min(k (m + n + 1), m n)`` floats: the factors U, Sigma
    and V, or the matrix. Leaves with less than two axes are sent as they are.
    """
    floats: list[Array] = []

    def approximated(leaf: Array) -> Array:
        if leaf.ndim < 3:
            floats.append(jnp.full(leaf.shape[0], leaf[0].size, jnp.float32))
            return leaf
        approximation, rank = jax.vmap(truncated, (0, None))(leaf.reshape(len(leaf), -1, leaf.shape[-1]), energy)
        n_rows, n_columns = approximation.shape[1:]
        floats.append(jnp.minimum(rank * (n_rows + n_columns + 1), float(n_rows * n_columns)))
        return approximation.reshape(leaf.shape)

    approximations = tree.map_trainable(approximated, updates)
    return approximations, jnp.stack(floats).sum(0)


def truncated(matrix: Array, energy: Array) -> tuple[Array, Array]:
    """``matrix`` by its fewest singular values whose squares exceed a share ``energy`` of their sum, and their number.

    The singular vectors of the shorter side are the eigenvectors of its Gram matrix.
    """
    wide = matrix.shape[0] < matrix.shape[1]
    a = tree.at_least_float32(matrix.T if wide else matrix)
    largest = jnp.abs(a).max()
    scale = jnp.where(largest > 0, largest, 1.0)  # squares of very large or small numbers would leave float32
    a = a / scale
    squared, vectors = largest_eigenpairs(tree.product(a.T, a))
    squared = jnp.maximum(squared, 0.0)
    total = jnp.cumsum(squared)
    is_kept = (total - squared <= energy * total[-1]) & (squared > 0)
    basis = jnp.where(is_kept[None], vectors, 0.0)
    approximation = tree.product(tree.product(a, basis), basis.T) * scale
    return tree.as_before(approximation.T if wide else approximation, matrix), is_kept.sum().astype(jnp.float32)
