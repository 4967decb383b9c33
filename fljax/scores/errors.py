"""Scores of a regression."""

import jax.numpy as jnp
from jax import Array

from fljax.scores.tasks import of_task


@of_task("regression")
def rmse(outputs: Array, y: Array, is_there: Array) -> Array:
    """Root mean squared error; with several targets, over all of them together.

    Returns:
        (), in the targets' unit.
    """
    squared = jnp.square(outputs - y.reshape(outputs.shape)).mean(axis=1)
    return jnp.sqrt(jnp.where(is_there, squared, 0).sum() / is_there.sum(dtype=jnp.float32))
