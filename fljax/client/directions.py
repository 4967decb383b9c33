"""Main directions of clients' examples: a summary of their data without the examples."""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive, check_choices
from fljax.client.map import map_clients
from fljax.data.federation import minibatch
from fljax.matrices import eigh
from fljax.types import ClientData, Examples


def main_directions(data: ClientData, n: Positive) -> Array:
    """The first left singular vectors of each client's examples (features x examples), which are not centred.

    They come from the eigenvectors of the Gram matrix of the examples or of the features, whichever are fewer.

    Args:
        data: the clients' rows.
        n: number of directions.

    Returns:
        (clients, features, n), directions as columns. Directions beyond the rank of a client's data are 0, and so are
        those with a singular value below 1/1000 of the first, which float32 cannot distinguish from noise.

    Raises:
        ValueError: ``n`` is not positive.
    """
    check_choices(main_directions, {"n": n})

    def one(pool: Examples, index: Array, size: Array) -> Array:
        counts = (jnp.arange(index.shape[0]) < size).astype(jnp.float32)
        x = minibatch(pool, index, counts).x.reshape(index.shape[0], -1)
        x = jnp.where(counts[:, None] > 0, x, 0.0)
        few_features = x.shape[1] < x.shape[0]
        squared, vectors = eigh(tree.product(x.T, x) if few_features else tree.product(x, x.T))
        squared, vectors = squared[::-1][:n], vectors[:, ::-1][:, :n]
        real = squared > 1e-6 * squared[0]
        if not few_features:
            vectors = tree.product(x.T, vectors) / jnp.sqrt(jnp.where(real, squared, 1.0))[None]
        found = jnp.where(real[None], vectors, 0.0)
        return jnp.pad(found, ((0, 0), (0, n - found.shape[1])))

    return map_clients(one, data)
