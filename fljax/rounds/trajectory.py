"""Local training that records the losses of its first steps, for methods whose server uses them."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import Loss
from fljax.rounds.local import train
from fljax.types import Batch, Cohort, Key, ModelTable, Params, Trained, Work


def train_and_record(
    hyper: Any, start: ModelTable, cohort: Cohort, loss: Loss, work: Work, n_losses: int
) -> tuple[Trained, Array]:
    """As `fljax.rounds.local.train`, with the losses of each participant's first ``n_losses`` batches.

    Args:
        hyper: the method's hyperparameters.
        start: the participants' initial models.
        cohort: the participants.
        loss: the loss that each participant minimises.
        work: local work.
        n_losses: S.

    Returns:
        The result of `train`, and losses (cohort, S), each at the parameters before the batch's step; 0 after a
        client's last step and where the result is not finite.
    """
    # The losses are stored with the running statistics, where no gradient, optimiser or term sees them.
    n_rows = tree.n_rows(start.params)
    theta, statistics = tree.split_statistics(start.params)
    record = {
        "model": statistics,
        "losses": jnp.zeros((n_rows, n_losses), jnp.float32),
        "step": jnp.zeros(n_rows, jnp.int32),
    }
    start_params = tree.join_statistics(theta, {tree.STATISTICS: record})
    trained = train(hyper, start._replace(params=start_params), cohort, _recorded(loss), work)
    theta, new_statistics = tree.split_statistics(trained.params)
    record = new_statistics[tree.STATISTICS]
    return trained._replace(params=tree.join_statistics(theta, record["model"])), record["losses"]


def _recorded(loss: Loss) -> Loss:
    def recorded(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        theta, statistics = tree.split_statistics(params)
        record = statistics[tree.STATISTICS]
        value, updated = loss(tree.join_statistics(theta, record["model"]), batch, key, *own)
        theta, model = tree.split_statistics(updated)
        losses = record["losses"].at[record["step"]].set(value.astype(jnp.float32), mode="drop")
        record = {"model": model, "losses": losses, "step": record["step"] + 1}
        return value, tree.join_statistics(theta, {tree.STATISTICS: record})

    return recorded
