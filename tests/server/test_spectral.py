import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.cluster import SpectralClustering
from sklearn.manifold import SpectralEmbedding
from sklearn.metrics import adjusted_rand_score

from fljax.server.spectral import spectral_embedding, spectral_labels


@pytest.fixture(scope="module")
def affinity():
    """Of three groups of 5, 7 and 6 points, among clients that do not count."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(n, 2)) + center for n, center in ((5, (0, 0)), (7, (3, 1)), (6, (1, 4)))])
    is_counted = np.ones(20, bool)
    is_counted[[3, 11]] = False
    matrix = np.full((20, 20), 7.0)
    matrix[np.ix_(is_counted, is_counted)] = np.exp(-0.3 * np.square(x[:, None] - x[None]).sum(-1))
    return matrix, is_counted


def test_labels_and_eigenvectors_are_scikit_learns(affinity):
    matrix, is_counted = affinity
    counted_matrix = matrix[np.ix_(is_counted, is_counted)]
    label = np.asarray(spectral_labels(jnp.asarray(matrix, jnp.float32), 3, jnp.asarray(is_counted)))
    expected_label = SpectralClustering(3, affinity="precomputed", assign_labels="cluster_qr").fit_predict(
        counted_matrix
    )
    assert adjusted_rand_score(expected_label, label[is_counted]) == 1
    assert (label[~is_counted] == -1).all()
    actual = np.asarray(spectral_embedding(jnp.asarray(matrix, jnp.float32), 4, jnp.asarray(is_counted)))
    expected = SpectralEmbedding(3, affinity="precomputed").fit_transform(counted_matrix)
    sign = np.sign((actual[is_counted, 1:] * expected).sum(0))
    np.testing.assert_allclose(actual[is_counted, 1:] * sign, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(actual[~is_counted], 0)
    np.testing.assert_allclose(actual[is_counted, 0], actual[0, 0], rtol=1e-4)


def test_no_more_eigenvectors_than_clients(affinity):
    is_counted = jnp.arange(20) < 3
    actual = spectral_embedding(jnp.asarray(affinity[0], jnp.float32), 25, is_counted)
    assert actual.shape == (20, 25)
    np.testing.assert_array_equal(actual[:, 3:], 0)
    counted_matrix = affinity[0][:3, :3] * (1 - np.eye(3))
    root_of_degree = np.sqrt(counted_matrix.sum(1))
    vectors = (
        np.linalg.eigh(counted_matrix / (root_of_degree[:, None] * root_of_degree))[1][:, ::-1]
        / root_of_degree[:, None]
    )  # of negative values too
    np.testing.assert_allclose(np.abs(actual[:3, :3]), np.abs(vectors), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="n_components"):
        spectral_embedding(jnp.ones((3, 3)), 0)
