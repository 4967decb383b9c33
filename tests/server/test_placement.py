"""What the server computes of spread clients: whole on every device, so that no loop of it is an exchange a step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from fljax.run.collectives import collectives
from fljax.run.mesh import over_devices
from fljax.server import best_bipartition, dbscan, linkage, pairwise_cosine, pairwise_l2

N = 12


def tree(models):
    return linkage(pairwise_l2(models), "average")


def halves(models):
    return best_bipartition(pairwise_cosine(models), jnp.zeros(N, jnp.int32))


def density(models):
    return dbscan(1 - pairwise_cosine(models), 0.4, 2)


@pytest.mark.parametrize(("made", "most"), [(tree, 20), (halves, 4), (density, 4)])
def test_clusters_of_spread_models_are_found_without_an_exchange_a_step(made, most):
    """Left to XLA they are 284, 288 and 14 exchanges, for it spreads what is computed of spread rows."""
    models = np.random.default_rng(0).normal(size=(N, 40)).astype(np.float32)
    alone = jax.jit(made)(models)
    with over_devices() as mesh:
        assert mesh is not None
        spread = jax.device_put(models, NamedSharding(mesh, PartitionSpec("clients")))
        program = jax.jit(made).lower(spread).compile()
        found = program(spread)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), alone, found)
    exchanges = collectives(program, mesh.size)
    assert 0 < sum(one.times for one in exchanges) <= most  # the models themselves are spread
