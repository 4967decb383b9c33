"""Scores of the class that is told: whether it is among the likeliest, and how well each class is known."""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.scores.tasks import of_task


@of_task("classification")
def top3(outputs: Array, y: Array) -> Array:
    """Whether the true class is among the three of the largest outputs.

    Returns:
        (batch,) bool.
    """
    return _among(outputs, y, 3)


@of_task("classification")
def top5(outputs: Array, y: Array) -> Array:
    """Whether the true class is among the five of the largest outputs.

    Returns:
        (batch,) bool.
    """
    return _among(outputs, y, 5)


@of_task("classification")
def balanced_accuracy(outputs: Array, y: Array, is_there: Array) -> Array:
    """Mean over the classes that a client has of the share of their examples that is told rightly (recall).

    Returns:
        () in [0, 1].
    """
    own = jax.nn.one_hot(y, outputs.shape[1], dtype=jnp.float32) * is_there[:, None].astype(jnp.float32)
    right = own * (outputs.argmax(axis=1) == y).astype(jnp.float32)[:, None]
    n = own.sum(axis=0)
    recall = right.sum(axis=0) / jnp.maximum(n, 1)
    known = ~(jnp.isnan(outputs) & is_there[:, None]).any()
    return jnp.where(known, recall.sum() / (n > 0).sum(dtype=jnp.float32), jnp.nan)


def _among(outputs: Array, y: Array, k: int) -> Array:
    """Of equal outputs those of the lower classes come first, as `jax.lax.top_k` has them."""
    _, told = jax.lax.top_k(outputs, min(k, outputs.shape[1]))
    return (told == y[:, None]).any(axis=1)
