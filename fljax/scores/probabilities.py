"""Scores of predicted probabilities (the softmax of a network's outputs): Brier score and calibration error."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.scores.tasks import of_task

BINS = 15
"""Number of bins of `ece`, as in Guo et al."""


@of_task("classification")
def brier(outputs: Array, y: Array) -> Array:
    """Squared distance between an example's probabilities and its one-hot class (Brier, 1950).

    Returns:
        (batch,) in [0, 2].
    """
    difference = jax.nn.softmax(outputs) - jax.nn.one_hot(y, outputs.shape[1], dtype=outputs.dtype)
    return jnp.square(difference).sum(axis=1)


@of_task("classification")
def ece(outputs: Array, y: Array, is_there: Array) -> Array:
    """Expected calibration error, with 15 bins (Guo et al., ICML 2017).

    Mean over examples of the difference, within bins of equal width, between the predicted class's probability and its
    accuracy. A client with few examples has few per bin, which alone makes the error positive.

    Returns:
        () in [0, 1].
    """
    probabilities = jax.nn.softmax(outputs)
    confidence, is_correct = probabilities.max(axis=1), (probabilities.argmax(axis=1) == y).astype(probabilities.dtype)
    # A bin contains its upper end, not its lower end.
    bin = jnp.clip(jnp.ceil(confidence * BINS).astype(jnp.int32) - 1, 0, BINS - 1)
    differences = jnp.zeros(BINS, probabilities.dtype).at[bin].add(jnp.where(is_there, is_correct - confidence, 0))
    return jnp.abs(differences).sum() / is_there.sum(dtype=probabilities.dtype)
