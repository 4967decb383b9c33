"""Main directions of clients' examples: a summary of their data without the examples."""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.client.map import map_clients
from fljax.data.federation import minibatch
from fljax.matrices import largest_eigenpairs
from fljax.types import ClientData, Examples


@checked_kinds
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

    def one(pool: Examples, index: Array, size: Array) -> Array:
        is_example = (jnp.arange(index.shape[0]) < size).astype(jnp.float32)
        x = minibatch(pool, index, is_example).x.reshape(index.shape[0], -1)
        x = jnp.where(is_example[:, None] > 0, x, 0.0)
        has_few_features = x.shape[1] < x.shape[0]
        gram = tree.product(x.T, x) if has_few_features else tree.product(x, x.T)
        eigenvalues, vectors = largest_eigenpairs(gram, n)
        is_above_noise = eigenvalues > 1e-6 * eigenvalues[0]
        if not has_few_features:
            vectors = tree.product(x.T, vectors) / jnp.sqrt(jnp.where(is_above_noise, eigenvalues, 1.0))[None]
        directions = jnp.where(is_above_noise[None], vectors, 0.0)
        return jnp.pad(directions, ((0, 0), (0, n - directions.shape[1])))

    return map_clients(one, data)
