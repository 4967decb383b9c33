"""Which class is taken for which, client by client."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.client.measure import client_sums
from fljax.run.evaluate import matched
from fljax.types import Batch, ClientData, ModelTable, Params


def confusion_matrices(
    predict: Callable[[Params, Array], Array], models: ModelTable, data: ClientData, n_classes: int
) -> Array:
    """Counts (clients, true class, told class) of each client's examples under the model it holds.

    An example whose outputs are not all numbers is told no class, and counted nowhere.

    Args:
        predict: ``(params, x) -> logits (batch, outputs)``, an algorithm's.
        models: the deployed ones.
        data: a split.
        n_classes: number of classes; outputs beyond are never told.

    Raises:
        ValueError: there is an example of a class beyond, or the models are those of other clients.
    """
    largest = 0 if isinstance(data.pool.y, jax.core.Tracer) else int(np.asarray(data.pool.y).max(initial=0))
    if largest >= n_classes:
        raise ValueError(f"n_classes={n_classes} and a label {largest}; give {largest + 1} or more")
    return _confusion_matrices(predict, *matched(models, data), n_classes)


@partial(jax.jit, static_argnames=("predict", "n_classes"), inline=True)
def _confusion_matrices(
    predict: Callable[[Params, Array], Array], models: ModelTable, data: ClientData, n_classes: int
) -> Array:

    def score(params: Params, batch: Batch) -> Array:
        logits = predict(params, batch.x)
        told = batch.y * n_classes + jnp.argmax(logits[:, :n_classes], axis=-1)
        told = jnp.where(jnp.isnan(logits).any(axis=-1), -1, told)  # argmax would tell the first class that is NaN
        return jax.nn.one_hot(told, n_classes**2, dtype=jnp.float32)

    sums = client_sums(score, models, data)
    return sums.astype(jnp.int32).reshape(-1, n_classes, n_classes)
