"""The outputs of deployed models for each client's examples."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fljax.checks.network import check_predicts
from fljax.client.each_example import of_each_example
from fljax.metrics.evaluate import check_given, matched
from fljax.metrics.regression import Predict
from fljax.types import ClientData, ModelTable


def predictions(predict: Predict, models: ModelTable, data: ClientData) -> Array:
    """Outputs of each client's model for its examples: (clients, capacity, outputs).

    The outputs of example ``data.index[i, j]`` of client i are at ``[i, j]``, so ``[i, : data.size[i]]`` are all of the
    client's outputs and ``data.pool.y[data.index[i, : data.size[i]]]`` their labels (`ClientData.with_own_rows`, if
    the clients share their rows). Padding is NaN, and so are the
    outputs of a client without a model (a row number out of range).

    Args:
        predict: ``(params, x) -> outputs (batch, outputs)``, of an algorithm: logits, or a regression's predictions.
        models: the deployed models.
        data: a split.

    Raises:
        ValueError: the models belong to other clients, ``data`` is no split, or ``predict`` cannot take its examples.
    """
    check_given(models, data)
    check_predicts(predict, models, data)
    return _predictions(predict, *matched(models, data))


@partial(jax.jit, static_argnames="predict", inline=True)
def _predictions(predict: Predict, models: ModelTable, data: ClientData) -> Array:
    return of_each_example(lambda params, batch: predict(params, batch.x), models, data, jnp.nan)
