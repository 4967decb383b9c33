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
    counts = np.ones(20, bool)
    counts[[3, 11]] = False
    full = np.full((20, 20), 7.0)
    full[np.ix_(counts, counts)] = np.exp(-0.3 * np.square(x[:, None] - x[None]).sum(-1))
    return full, counts


def test_labels_and_eigenvectors_are_scikit_learns(affinity):
    full, counts = affinity
    among = full[np.ix_(counts, counts)]
    ours = np.asarray(spectral_labels(jnp.asarray(full, jnp.float32), 3, jnp.asarray(counts)))
    theirs = SpectralClustering(3, affinity="precomputed", assign_labels="cluster_qr").fit_predict(among)
    assert adjusted_rand_score(theirs, ours[counts]) == 1
    assert (ours[~counts] == -1).all()
    found = np.asarray(spectral_embedding(jnp.asarray(full, jnp.float32), 4, jnp.asarray(counts)))
    expected = SpectralEmbedding(3, affinity="precomputed").fit_transform(among)
    sign = np.sign((found[counts, 1:] * expected).sum(0))
    np.testing.assert_allclose(found[counts, 1:] * sign, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(found[~counts], 0)
    np.testing.assert_allclose(found[counts, 0], found[0, 0], rtol=1e-4)


def test_no_more_eigenvectors_than_clients(affinity):
    three = jnp.arange(20) < 3
    found = spectral_embedding(jnp.asarray(affinity[0], jnp.float32), 25, three)
    assert found.shape == (20, 25)
    np.testing.assert_array_equal(found[:, 3:], 0)
    among = affinity[0][:3, :3] * (1 - np.eye(3))
    root = np.sqrt(among.sum(1))
    vectors = np.linalg.eigh(among / (root[:, None] * root))[1][:, ::-1] / root[:, None]  # of negative values too
    np.testing.assert_allclose(np.abs(found[:3, :3]), np.abs(vectors), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="n_components"):
        spectral_embedding(jnp.ones((3, 3)), 0)
