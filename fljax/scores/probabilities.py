"""Scores of the probabilities that a network tells (the softmax of its outputs): how far they are from what comes."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.scores.tasks import of_task

BINS = 15
"""Of `ece`, as Guo et al. have them."""


@of_task("classification")
def brier(outputs: Array, y: Array) -> Array:
    """Squared distance of an example's probabilities from its class (Brier, 1950).

    Returns:
        (batch,) in [0, 2].
    """
    away = jax.nn.softmax(outputs) - jax.nn.one_hot(y, outputs.shape[1], dtype=outputs.dtype)
    return jnp.square(away).sum(axis=1)


@of_task("classification")
def ece(outputs: Array, y: Array, is_there: Array) -> Array:
    """Expected calibration error, of 15 bins (Guo et al., ICML 2017).

    Mean over examples of the distance, within bins of equal width, between how sure the told class is and how often it
    is right. A client of few examples has few in a bin, and an error above 0 by that alone.

    Returns:
        () in [0, 1].
    """
    told = jax.nn.softmax(outputs)
    sure, right = told.max(axis=1), (told.argmax(axis=1) == y).astype(told.dtype)
    bin = jnp.clip(jnp.ceil(sure * BINS).astype(jnp.int32) - 1, 0, BINS - 1)  # a bin has its upper end, not its lower
    off = jnp.zeros(BINS, told.dtype).at[bin].add(jnp.where(is_there, right - sure, 0))
    return jnp.abs(off).sum() / is_there.sum(dtype=told.dtype)
