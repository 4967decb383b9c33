"""What deployed models make of each client's examples."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fljax.client.each_example import of_each_example
from fljax.run.check_network import check_predicts
from fljax.run.evaluate import check_given, matched
from fljax.run.regression import Predict
from fljax.types import ClientData, ModelTable


def predictions(predict: Predict, models: ModelTable, data: ClientData) -> Array:
    """Outputs of each client's examples under the model that it holds: (clients, capacity, outputs).

    Those of example ``data.index[i, j]`` of client i stand at ``[i, j]``, so that ``[i, : data.size[i]]`` is all of
    them and ``data.pool.y[data.index[i, : data.size[i]]]`` their labels. What fills a shorter client's row is NaN, and
    so are the outputs of a client without a model (a row that is none of the table).

    Args:
        predict: ``(params, x) -> outputs (batch, outputs)``, an algorithm's: logits, or a regression's numbers.
        models: the deployed ones.
        data: a split.

    Raises:
        ValueError: the models are those of other clients, ``data`` is no split, or ``predict`` cannot take its
            examples.
    """
    check_given(models, data)
    check_predicts(predict, models, data)
    return _predictions(predict, *matched(models, data))


@partial(jax.jit, static_argnames="predict", inline=True)
def _predictions(predict: Predict, models: ModelTable, data: ClientData) -> Array:
    return of_each_example(lambda params, batch: predict(params, batch.x), models, data, jnp.nan)
