"""Scores of predicted classes: top-k accuracy and balanced accuracy."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.scores.tasks import of_task


@of_task("classification")
def top3(outputs: Array, y: Array) -> Array:
    """Whether the true class has one of the three largest outputs.

    Returns:
        (batch,) bool.
    """
    return _among(outputs, y, 3)


@of_task("classification")
def top5(outputs: Array, y: Array) -> Array:
    """Whether the true class has one of the five largest outputs.

    Returns:
        (batch,) bool.
    """
    return _among(outputs, y, 5)


@of_task("classification")
def balanced_accuracy(outputs: Array, y: Array, is_there: Array) -> Array:
    """Mean recall: the share of a class's examples that is predicted correctly, averaged over the client's classes.

    Returns:
        () in [0, 1].
    """
    one_hot = jax.nn.one_hot(y, outputs.shape[1], dtype=jnp.float32) * is_there[:, None].astype(jnp.float32)
    correct = one_hot * (outputs.argmax(axis=1) == y).astype(jnp.float32)[:, None]
    n_examples = one_hot.sum(axis=0)
    recall = correct.sum(axis=0) / jnp.maximum(n_examples, 1)
    has_no_nan = ~(jnp.isnan(outputs) & is_there[:, None]).any()
    return jnp.where(has_no_nan, recall.sum() / (n_examples > 0).sum(dtype=jnp.float32), jnp.nan)


def _among(outputs: Array, y: Array, k: int) -> Array:
    """Whether the class is among the k largest outputs; ties go to the lower classes, as in `jax.lax.top_k`."""
    _, predicted = jax.lax.top_k(outputs, min(k, outputs.shape[1]))
    return (predicted == y[:, None]).any(axis=1)
