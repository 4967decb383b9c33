"""Matrix factorisations without deadlocks, however many are computed at once.

On a CPU, JAX divides LAPACK's work on a batch of matrices among the threads of the pool in which the call itself runs,
and waits for them: with as many such calls at once as there are threads, from several layers or devices, a program
waits for ever. Work on a single matrix is not divided. So large matrices go to LAPACK one after another, and small
matrices do not use LAPACK.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from fljax.tree import product

SWEEPS = 8
"""Number of sweeps of `one_sided_jacobi`; each about squares the columns' small deviations from orthogonality."""


def _one_after_another(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` in a loop under `vmap`, as by JAX's `sequential_vmap`, which however has no forward-mode derivative
    in several directions at once."""
    op = custom_vmap(function)

    @op.def_vmap
    def rule(axis_size: int, is_batched: list[bool], matrix: Array) -> tuple[Any, Any]:
        # A matrix that is not batched gets here if only its tangents are.
        out = lax.map(op, matrix) if is_batched[0] else function(matrix)
        return out, jax.tree.map(lambda _: is_batched[0], out)

    return op


def largest_eigenpairs(matrix: Array, n: int | None = None) -> tuple[Array, Array]:
    """The n largest eigenvalues of a symmetric matrix, in descending order, and their eigenvectors, as columns.

    All if n is None, or if the matrix has fewer; under `vmap` one matrix after another.
    """
    values, vectors = _eigh(matrix)
    return values[::-1][:n], vectors[:, ::-1][:, :n]


@_one_after_another
def _eigh(matrix: Array) -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(matrix)
    return values, vectors


@_one_after_another
def eigvalsh(matrix: Array) -> Array:
    """Only the eigenvalues (n,), ascending, of a symmetric matrix; under `vmap` one after another."""
    return jnp.linalg.eigvalsh(matrix)


@_one_after_another
def svd(matrix: Array) -> tuple[Array, Array, Array]:
    """``u, s, v`` with ``u * s @ v`` the matrix (rows, columns); under `vmap` one after another."""
    u, s, v = jnp.linalg.svd(matrix, full_matrices=False)
    return u, s, v


def orthonormal(columns: Array) -> Array:
    """Columns (rows, n), orthonormalised by Gram-Schmidt; a column in the span of those before it becomes 0.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.matrices import orthonormal
        >>> orthonormal(jnp.array([[3.0, 1.0, 2.0], [4.0, 1.0, 1.0]])).round(2).tolist()
        [[0.6..., 0.8..., 0.0], [0.8..., -0.6..., 0.0]]
    """

    def one(i: Array, basis: Array) -> Array:
        before, column = jnp.where(jnp.arange(basis.shape[1]) < i, basis, 0.0), basis[:, i]
        rest = column
        for _ in range(2):  # the first pass leaves rounding errors
            rest = rest - product(before, product(before.T, rest))
        length = jnp.linalg.norm(rest)
        is_new = length > 1e-6 * jnp.linalg.norm(column)
        return basis.at[:, i].set(jnp.where(is_new, rest / jnp.where(is_new, length, 1.0), 0.0))

    return lax.fori_loop(0, columns.shape[1], one, columns)


def one_sided_jacobi(columns: Array) -> tuple[Array, Array]:
    """A few columns (rows, n), rotated so that they are orthogonal, longest first, and the rotation (n, n).

    The lengths of the rotated columns are the matrix's singular values; the columns of the rotation are its right
    singular vectors. Computed by rotations of pairs of columns (Hestenes, 1958), n / 2 pairs at once.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.matrices import one_sided_jacobi
        >>> jnp.linalg.norm(one_sided_jacobi(jnp.array([[3.0, 0.0], [4.0, 5.0]]))[0], axis=0).round(3).tolist()
        [6.708..., 2.236...]
    """
    n, n_even = columns.shape[1], columns.shape[1] + columns.shape[1] % 2
    rotated, rotation = _rotated((_with_even_columns(columns), jnp.eye(n_even, dtype=columns.dtype)))
    order = jnp.argsort(-jnp.square(rotated[:, :n]).sum(axis=0))
    return rotated[:, order], rotation[:n, order]


def singular_values(matrices: Array) -> Array:
    """Singular values, unsorted, of many small matrices (rows, n, ...) side by side: (n, ...); see `one_sided_jacobi`.

    For matrices that fit the cache together, this takes a tenth of the time of `one_sided_jacobi` under `vmap`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.matrices import singular_values
        >>> matrix = jnp.array([[3.0, 0.0], [4.0, 5.0]])
        >>> jnp.sort(singular_values(matrix[:, :, None]), axis=0).ravel().round(3).tolist()
        [2.236..., 6.708...]
    """
    (rotated,) = _rotated((_with_even_columns(matrices),))
    return jnp.linalg.norm(rotated[:, : matrices.shape[1]], axis=0)


def _with_even_columns(columns: Array) -> Array:
    """``columns`` (rows, n, ...), with one more column of zeros if n is odd."""
    return jnp.pad(columns, [(0, 0), (0, columns.shape[1] % 2)] + [(0, 0)] * (columns.ndim - 2))


def _rotated(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Arrays (rows, even, ...) after the rotations that make the first array's columns orthogonal."""

    def rotate(arrays: tuple[Array, ...], pair: tuple[Array, Array]) -> tuple[tuple[Array, ...], None]:
        i, j = pair
        a, b = arrays[0][:, i], arrays[0][:, j]
        inner_product = (a * b).sum(axis=0)
        length_difference = jnp.square(b).sum(axis=0) - jnp.square(a).sum(axis=0)
        is_orthogonal = inner_product == 0
        zeta = length_difference / jnp.where(is_orthogonal, 1.0, 2 * inner_product)
        sign = jnp.where(zeta < 0, -1.0, jnp.ones_like(zeta))
        tangent = sign / (jnp.abs(zeta) + jnp.sqrt(1 + jnp.square(zeta)))
        tangent = jnp.where(is_orthogonal, 0.0, tangent)
        cosine = (1 / jnp.sqrt(1 + jnp.square(tangent)))[None]
        sine = cosine * tangent[None]

        def rotated(array: Array) -> Array:
            a, b = array[:, i], array[:, j]
            return array.at[:, i].set(cosine * a - sine * b).at[:, j].set(sine * a + cosine * b)

        return tuple(map(rotated, arrays)), None

    pairs = _pairs(arrays[0].shape[1])
    return lax.fori_loop(0, SWEEPS, lambda _, arrays: lax.scan(rotate, arrays, pairs)[0], arrays)


def _pairs(n: int) -> tuple[Array, Array]:
    """(n - 1, n / 2) each: all pairs of n columns in rounds of disjoint pairs, as in a round-robin tournament."""
    rounds = [[0, *(1 + (place + shift) % (n - 1) for place in range(n - 1))] for shift in range(n - 1)]
    order = jnp.asarray(rounds, jnp.int32)
    return order[:, : n // 2], order[:, : n // 2 - 1 : -1]
