"""Confusion matrices, client by client."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax.checks.arguments import check_count
from fljax.checks.network import check_predicts
from fljax.client.batching import batching
from fljax.client.map import map_clients
from fljax.client.minibatches import batch_rows
from fljax.data.federation import minibatch
from fljax.data.labels import check_classes
from fljax.metrics.evaluate import check_given, matched
from fljax.types import ClientData, Examples, ModelTable, Params


def confusion_matrices(
    predict: Callable[[Params, Array], Array], models: ModelTable, data: ClientData, n_classes: int
) -> Array:
    """Counts (clients, true class, predicted class) of each client's examples with its own model.

    An example with a NaN output has no predicted class and is not counted.

    Args:
        predict: ``(params, x) -> logits (batch, outputs)``, of an algorithm.
        models: the deployed models.
        data: a split.
        n_classes: number of classes; further outputs are ignored.

    Raises:
        ValueError: an example has a label beyond ``n_classes``, the models belong to other clients, or ``predict``
            cannot take the examples.
    """
    check_given(models, data)
    check_predicts(predict, models, data)
    check_count("n_classes", n_classes)
    check_classes(data.pool.y)
    largest = 0 if isinstance(data.pool.y, jax.core.Tracer) else int(np.asarray(data.pool.y).max(initial=0))
    if largest >= n_classes:
        raise ValueError(f"n_classes={n_classes}, but there is a label {largest}; give {largest + 1} or more")
    return _confusion_matrices(predict, *matched(models, data), int(n_classes))


@partial(jax.jit, static_argnames=("predict", "n_classes"), inline=True)
def _confusion_matrices(
    predict: Callable[[Params, Array], Array], models: ModelTable, data: ClientData, n_classes: int
) -> Array:
    batch_size = batching(lambda params, batch: predict(params, batch.x), models, data).size

    def of_client(pool: Examples, index: Array, size: Array, params: Params) -> Array:
        def counted(i: Array, table: Array) -> Array:
            rows, weight = batch_rows(index, size, i, batch_size)
            batch = minibatch(pool, rows, weight)
            logits = predict(params, batch.x)
            predicted = jnp.argmax(logits[:, :n_classes], axis=-1)
            # Of logits with NaN, argmax would choose the first class that is NaN.
            has_prediction = (weight > 0) & ~jnp.isnan(logits).any(axis=-1)
            return table.at[batch.y, predicted].add(has_prediction.astype(jnp.int32), mode="drop")

        return lax.fori_loop(0, -(-size // batch_size), counted, jnp.zeros((n_classes, n_classes), jnp.int32))

    return map_clients(of_client, data, models)
