"""The mean training losses of clients with the models that they would be tested with."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax.checks.state import deployed
from fljax.client.measure import client_sums
from fljax.client.objectives import checked_losses
from fljax.metrics.evaluate import matched
from fljax.types import Algorithm, Batch, ClientData, Key, Params, State


def client_losses(
    algorithm: Algorithm,
    hyper: Any,
    key: Key,
    state: State,
    data: ClientData,
    ids: Array,
    asked: ClientData,
    of: Callable[[Array], Array] | None = None,
) -> Array:
    """Mean loss of each of the clients ``ids`` on its examples, with the model deployed to it: ``(ids,)``.

    It is inf for a client to which the method deploys no model (row -1), and NaN for one without examples.

    Args:
        algorithm: the method; models are tested with its ``predict`` and ``loss``.
        hyper: its hyperparameters.
        key: for deploying the models.
        state: of the run.
        data: the training examples of all clients.
        ids: (ids,) int32.
        asked: the examples of these clients that count: all, as `fljax.data.federation.select` returns, or some.
        of: the function of the examples' losses, (batch,) to (batch,), whose mean is wanted; None: of the losses.
    """
    models = deployed(algorithm.deploy, key, hyper, state, data)
    models, with_model = matched(models._replace(row=models.row[ids]), asked)

    def score(params: Params, batch: Batch) -> Array:
        losses = checked_losses(algorithm.loss(algorithm.predict(params, batch.x), batch.y), batch.weight)
        return (losses if of is None else of(losses))[:, None]

    sums = client_sums(score, models, with_model)[:, 0]
    without = jnp.where(asked.size > 0, jnp.inf, jnp.nan)
    return jnp.where(with_model.size > 0, sums / jnp.maximum(with_model.size, 1).astype(jnp.float32), without)
