"""Batches in evaluation, and whether a network's output for an example depends on them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from fljax.data.federation import minibatch
from fljax.types import Batch, ClientData, ModelTable, Params, Stacked

BATCH_SIZE = 100
"""Number of examples per batch: large enough for a matrix unit, small enough to waste little on the last batch."""


class Batching(NamedTuple):
    """How examples are scored; static."""

    size: int  # examples per batch
    is_mixing: bool  # whether the output for an example depends on the rest of its batch
    result: Any  # shape and dtype of the score of a batch of one example


def batching(
    score: Callable[[Params, Batch], Any], models: Stacked | ModelTable, data: ClientData, batch_size: int = BATCH_SIZE
) -> Batching:
    """The batching for ``score(params, batch)`` on ``data`` with ``models``.

    Batches are at most as long as a client's row of the index. If a module of the network uses batch statistics in
    evaluation too (its ``reads_batch`` is True, as in `fljax.models.norm.Norm` "untracked"), batches have
    ``batch_size`` places, however long the rows are: a client's score must not depend on other clients' data.
    """
    reads_batch: list[bool] = []

    def listen(call: Callable[..., Any], args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> Any:
        reads_batch.append(bool(getattr(context.module, "reads_batch", False)))
        return call(*args, **kwargs)

    def of_first(params: Stacked, pool: Any) -> Any:
        example = minibatch(pool, jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32))
        with nn.intercept_methods(listen):
            return score(jax.tree.map(lambda leaf: leaf[0], params), example)

    result = jax.eval_shape(of_first, models.params if isinstance(models, ModelTable) else models, data.pool)
    is_mixing = any(reads_batch)
    return Batching(batch_size if is_mixing else min(batch_size, data.index.shape[1]), is_mixing, result)
