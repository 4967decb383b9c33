"""Scores of a ranking: whether the examples of a class have its largest outputs.

In a classification, the ranking is by a class's probability (softmax), one class against the rest; with several labels
per example, by a label's output. Both scores are averaged over the classes, or labels, of which a client has positive
and negative examples; a client without such a class is NaN, and counts in no average.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fljax.scores.tasks import of_task


@of_task("classification", "labels")
def auc(outputs: Array, y: Array, is_there: Array) -> Array:
    """Area under the ROC curve (true over false positives).

    It is the share of pairs, of a positive and a negative example of the class, that are in the right order; ties count
    half.

    Returns:
        () in [0, 1]; by chance 0.5.
    """
    return _over_classes(_auc, outputs, y, is_there)


@of_task("classification", "labels")
def average_precision(outputs: Array, y: Array, is_there: Array) -> Array:
    """Average precision (area under the precision-recall curve).

    It is the mean, over the examples of a class, of the precision at that example's output: the share of the class
    among examples with at least this output.

    Returns:
        () in (0, 1]; by chance the share of the examples that have the class.
    """
    return _over_classes(_average_precision, outputs, y, is_there)


def _over_classes(score, outputs: Array, y: Array, is_there: Array) -> Array:
    """Mean over the columns whose class has positive and negative examples."""
    if y.ndim == 1:
        outputs, has = jax.nn.log_softmax(outputs), y[:, None] == jnp.arange(outputs.shape[1])[None]
    else:
        has = y > 0
    has, has_not = has & is_there[:, None], ~has & is_there[:, None]
    values = jax.vmap(score, in_axes=1)(outputs, has, has_not)
    is_scored = has.any(axis=0) & has_not.any(axis=0)
    has_no_nan = ~(jnp.isnan(outputs) & is_there[:, None]).any()  # NaN has no rank
    return jnp.where(has_no_nan, jnp.where(is_scored, values, 0).sum() / is_scored.sum(dtype=values.dtype), jnp.nan)


def _auc(value: Array, has: Array, has_not: Array) -> Array:
    negatives = jnp.sort(jnp.where(has_not, value, jnp.inf))
    below, up_to = (jnp.searchsorted(negatives, value, side=side).astype(value.dtype) for side in ("left", "right"))
    wins = jnp.where(has, (below + up_to) / 2, 0).sum()
    return wins / (has.sum(dtype=value.dtype) * has_not.sum(dtype=value.dtype))


def _average_precision(value: Array, has: Array, has_not: Array) -> Array:
    def as_sure(mask: Array) -> Array:
        """Number of examples of ``mask`` with at least each example's value."""
        return (len(value) - jnp.searchsorted(jnp.sort(jnp.where(mask, value, -jnp.inf)), value)).astype(value.dtype)

    n_positive = as_sure(has)
    precision = n_positive / jnp.maximum(n_positive + as_sure(has_not), 1)
    return jnp.where(has, precision, 0).sum() / has.sum(dtype=value.dtype)
