import jax.numpy as jnp
import numpy as np
from sklearn.metrics import davies_bouldin_score

from fljax.server.cluster_scores import davies_bouldin


def test_davies_bouldin_is_scikit_learns():
    rng = np.random.default_rng(1)
    x, label = rng.normal(size=(15, 3)), np.arange(15) % 4
    some_in_none = np.where(np.arange(15) > 12, -1, label)
    for some_label, is_counted in ((label, label >= 0), (some_in_none, some_in_none >= 0)):
        score = davies_bouldin(jnp.asarray(x, jnp.float32), jnp.asarray(some_label), 4)
        np.testing.assert_allclose(score, davies_bouldin_score(x[is_counted], some_label[is_counted]), rtol=1e-5)
    far_x = (x + 3e4).astype(np.float32)
    expected = davies_bouldin_score(far_x.astype(np.float64), label)
    np.testing.assert_allclose(davies_bouldin(jnp.asarray(far_x), jnp.asarray(label), 4), expected, rtol=1e-5)
    assert davies_bouldin(jnp.asarray(x, jnp.float32), jnp.asarray(label), 5) == np.inf  # the last is empty
    assert davies_bouldin(jnp.zeros((4, 2)), jnp.arange(4) % 2, 2) == np.inf
