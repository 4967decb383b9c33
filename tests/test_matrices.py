"""Factors of matrices, held to NumPy's; and that programs with several of them end."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.matrices import largest_eigenpairs, one_sided_jacobi, orthonormal, singular_values, svd


def columns(*shape):
    """Matrices whose columns are of very different lengths."""
    return (np.random.default_rng(0).normal(size=shape) * 0.3 ** np.arange(shape[-1])).astype(np.float32)


@pytest.mark.parametrize(("rows", "n"), [(3, 3), (200, 8), (7, 5), (2, 2), (5, 1), (3, 4)])
def test_turned_columns_are_the_singular_value_decomposition(rows, n):
    matrices = columns(9, rows, n)
    turned, rotation = jax.jit(jax.vmap(one_sided_jacobi))(matrices)
    values = np.linalg.svd(matrices, compute_uv=False)
    lengths = np.linalg.norm(turned, axis=1)
    np.testing.assert_allclose(lengths[:, : values.shape[1]], values, rtol=1e-4, atol=1e-6)
    assert (lengths[:, values.shape[1] :] < 1e-6).all()
    np.testing.assert_allclose(matrices @ np.asarray(rotation), turned, atol=2e-6)
    np.testing.assert_allclose(
        np.swapaxes(rotation, 1, 2) @ np.asarray(rotation), np.broadcast_to(np.eye(n), rotation.shape), atol=2e-6
    )


@pytest.mark.parametrize(("rows", "n"), [(3, 3), (2, 2), (5, 1), (3, 4)])
def test_singular_values_of_matrices_side_by_side_are_numpys(rows, n):
    matrices = columns(4, 5, rows, n)
    sorted_values = np.sort(jax.jit(singular_values)(matrices.transpose(2, 3, 0, 1)), axis=0)[::-1]
    values = np.linalg.svd(matrices, compute_uv=False).transpose(2, 0, 1)
    np.testing.assert_allclose(sorted_values[: len(values)], values, rtol=1e-4, atol=1e-6)
    assert (sorted_values[len(values) :] < 1e-6).all()


def test_columns_of_0_and_equal_ones_are_turned_too():
    turned, rotation = one_sided_jacobi(jnp.asarray([[0.0, 1.0, 0.0, 1.0], [0.0, 2.0, 0.0, 2.0]]))
    np.testing.assert_allclose(np.linalg.norm(turned, axis=0), [10**0.5, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(rotation.T @ rotation, np.eye(4), atol=1e-6)


def test_orthonormal_columns_span_what_numpys_do():
    matrices = columns(9, 50, 8)
    basis = np.asarray(jax.vmap(orthonormal)(matrices), np.float64)
    np.testing.assert_allclose(np.swapaxes(basis, 1, 2) @ basis, np.broadcast_to(np.eye(8), (9, 8, 8)), atol=2e-6)
    expected = np.linalg.qr(matrices.astype(np.float64))[0]
    np.testing.assert_allclose(np.abs((basis * expected).sum(axis=1)), 1, atol=1e-3)  # each column, up to its sign


def test_columns_that_others_span_become_0():
    basis = orthonormal(jnp.asarray([[1.0, 2.0, 0.0, 1.0], [1.0, 2.0, 0.0, 3.0]]))
    np.testing.assert_allclose(basis[:, 1:3], 0)
    np.testing.assert_allclose(basis[:, [0, 3]].T @ basis[:, [0, 3]], np.eye(2), atol=1e-6)


def test_one_after_another_is_as_all_at_once():
    matrices = columns(5, 6, 6)
    symmetric = matrices @ np.swapaxes(matrices, 1, 2)
    largest = jax.vmap(lambda matrix: largest_eigenpairs(matrix, 2))(symmetric)[0]
    np.testing.assert_allclose(largest, np.linalg.eigvalsh(symmetric)[:, :-3:-1], rtol=1e-6, atol=1e-6)
    u, s, v = jax.vmap(svd)(matrices)
    np.testing.assert_allclose((u * s[:, None]) @ v, matrices, atol=1e-6)


def test_nothing_else_has_lapack_factor_a_matrix():
    """Whose batches would be its own."""
    pattern = re.compile(
        r"jnp\.linalg\.(svd|eig|qr|cholesky|inv|pinv|solve|lstsq|det|slogdet|matrix_rank)|jax\.scipy\.linalg"
    )
    root = Path(fljax.__file__).parent
    file_names = [path.name for path in root.rglob("*.py") if pattern.search(path.read_text())]
    assert file_names == ["matrices.py"]


AT_ONCE = """
import jax
import jax.numpy as jnp
from fljax.matrices import largest_eigenpairs, orthonormal, svd, one_sided_jacobi

def draw(key):
    return jax.random.normal(key, (300, 300))

@jax.jit
@jax.vmap
def factors(keys):
    parts = [draw(key) for key in keys]
    whole = [largest_eigenpairs(part + part.T)[0].sum() + svd(part)[1].sum() for part in parts]
    thin = [jnp.abs(one_sided_jacobi(orthonormal(part[:, :8]))[0]).sum() for part in parts]
    return jnp.stack(whole + thin)

print(bool(jnp.isfinite(factors(jax.random.split(jax.random.key(0), (4, 3)))).all()))
"""


@pytest.mark.slow
def test_several_batches_at_once_end():
    """As many calls of LAPACK's as there are threads would wait for each other, were each one's batch divided."""
    process = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=300)
    assert process.stdout == "True\n", process.stderr[-500:]
