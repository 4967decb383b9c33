"""In which batches a network meets examples in evaluation, and whether that matters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from fljax.data.federation import minibatch
from fljax.types import Batch, ClientData, ModelTable, Params, Stacked

BATCH_SIZE = 100
"""Examples scored at once: large enough for a matrix unit, small enough to waste little on a client's last batch."""


class Batching(NamedTuple):
    """How examples are scored; static."""

    size: int  # of a batch
    is_mixing: bool  # what a network makes of an example depends on the others of its batch
    result: Any  # shape and dtype of what a batch of one example gives


def batching(
    score: Callable[[Params, Batch], Any], models: Stacked | ModelTable, data: ClientData, batch_size: int = BATCH_SIZE
) -> Batching:
    """Of ``score(params, batch)`` on ``data`` under ``models``.

    Batches are no longer than a client's row. Where a module of the network says that it reads the batch at hand in
    evaluation too (``reads_batch``, as `fljax.models.norm.Norm` "untracked" does), they have ``batch_size`` places
    however long the rows are: what a client's examples come to must not depend on others' data.
    """
    found: list[bool] = []

    def listen(call: Callable[..., Any], args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> Any:
        found.append(bool(getattr(context.module, "reads_batch", False)))
        return call(*args, **kwargs)

    def of_first(params: Stacked, pool: Any) -> Any:
        example = minibatch(pool, jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32))
        with nn.intercept_methods(listen):
            return score(jax.tree.map(lambda leaf: leaf[0], params), example)

    result = jax.eval_shape(of_first, models.params if isinstance(models, ModelTable) else models, data.pool)
    is_mixing = any(found)
    return Batching(batch_size if is_mixing else min(batch_size, data.index.shape[1]), is_mixing, result)
