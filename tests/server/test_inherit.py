import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.server.inherit import inherit


@pytest.mark.slow
def test_every_cluster_takes_the_row_of_its_first_member():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 9))
        old_label, new_label = rng.integers(0, n, n), rng.integers(-1, n, n)
        rows = {"w": jnp.asarray(rng.normal(size=(n, 2)), jnp.float32)}
        inherited = np.asarray(
            jax.jit(inherit)(rows, jnp.asarray(old_label, jnp.int32), jnp.asarray(new_label, jnp.int32))["w"]
        )
        for cluster in range(n):
            members = np.flatnonzero(new_label == cluster)
            source = old_label[members[0]] if len(members) else cluster
            np.testing.assert_array_equal(inherited[cluster], rows["w"][source])


def test_who_was_in_no_cluster_brings_no_row():
    rows = jnp.array([10.0, 20.0, 30.0])
    np.testing.assert_array_equal(inherit(rows, jnp.array([-1, 0, 0]), jnp.array([0, 0, 0])), [10, 20, 30])
    np.testing.assert_array_equal(inherit(rows, jnp.array([-1, 1, 1]), jnp.array([2, 0, 0])), [20, 20, 30])
