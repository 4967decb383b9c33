"""Angles of all pairs of subspaces, tile by tile, held to NumPy's singular values."""

import jax
import numpy as np
import pytest

from fljax.server import principal_angles
from fljax.server.angles import subspace_distance


def subspaces(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Bases of n subspaces, and the angles of all pairs in double precision."""
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(n, 16, p)))[0]
    products = np.einsum("idp,jdq->ijpq", basis, basis)
    return basis.astype(np.float32), np.degrees(np.arccos(np.clip(np.linalg.svd(products, compute_uv=False), 0, 1)))


def test_angles_of_all_pairs_are_numpys():
    """Of as many as take several tiles, of which the last is not full."""
    basis, expected = subspaces(100, 3)
    angles, is_other = np.asarray(jax.jit(principal_angles)(basis)), ~np.eye(100, dtype=bool)
    np.testing.assert_allclose(angles[is_other], expected[is_other], atol=1e-3)
    np.testing.assert_allclose(np.cos(np.radians(angles)), np.cos(np.radians(expected)), atol=1e-6)
    np.testing.assert_allclose(angles[:48, 48:], angles[48:, :48].transpose(1, 0, 2), atol=0)


def test_angles_with_types_of_64_bits():
    basis, expected = subspaces(5, 2)
    is_other = ~np.eye(5, dtype=bool)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        np.testing.assert_allclose(
            principal_angles(jax.numpy.asarray(basis))[is_other], np.sort(expected)[is_other], atol=1e-3
        )
        actual = principal_angles(jax.numpy.asarray(basis, "float64"))
    assert actual.dtype == "float64"


@pytest.mark.parametrize("angle", ["smallest", "sum"])
def test_a_distance_is_the_smallest_angle_or_the_sum_of_all(angle):
    basis, expected = subspaces(5, 2)
    actual, is_other = np.asarray(jax.jit(subspace_distance, static_argnums=1)(basis, angle)), ~np.eye(5, dtype=bool)
    expected = expected.min(-1) if angle == "smallest" else expected.sum(-1)
    np.testing.assert_allclose(actual[is_other], expected[is_other], atol=1e-3)
    np.testing.assert_allclose(actual, expected, atol=0.1)  # arccos near 0 loses digits


def test_an_angle_that_is_none_is_refused():
    with pytest.raises(ValueError, match="angle"):
        subspace_distance(np.eye(3, dtype=np.float32)[:, :, None], "largest")  # pyright: ignore[reportArgumentType]
