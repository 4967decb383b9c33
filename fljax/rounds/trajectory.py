"""Local training that keeps the losses of its first steps, for methods whose server looks at how a client learns."""

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
        hyper: the method's numbers.
        start: models that participants start from.
        cohort: who takes part.
        loss: what each minimises.
        work: local effort.
        n_losses: S.

    Returns:
        What `train` returns, and losses (cohort, S), each at the parameters the batch was met with; 0 past a client's
        last step and where its result is not finite.
    """
    # The losses ride with the running statistics: no gradient, no optimiser and no term sees them.
    n_rows = tree.n_rows(start.params)
    theta, statistics = tree.split_statistics(start.params)
    kept = {
        "model": statistics,
        "losses": jnp.zeros((n_rows, n_losses), jnp.float32),
        "step": jnp.zeros(n_rows, jnp.int32),
    }
    begun = tree.join_statistics(theta, {tree.STATISTICS: kept})
    trained = train(hyper, start._replace(params=begun), cohort, _recorded(loss), work)
    theta, after = tree.split_statistics(trained.params)
    kept = after[tree.STATISTICS]
    return trained._replace(params=tree.join_statistics(theta, kept["model"])), kept["losses"]


def _recorded(loss: Loss) -> Loss:
    def recorded(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        theta, statistics = tree.split_statistics(params)
        kept = statistics[tree.STATISTICS]
        value, updated = loss(tree.join_statistics(theta, kept["model"]), batch, key, *own)
        theta, model = tree.split_statistics(updated)
        losses = kept["losses"].at[kept["step"]].set(value.astype(jnp.float32), mode="drop")
        kept = {"model": model, "losses": losses, "step": kept["step"] + 1}
        return value, tree.join_statistics(theta, {tree.STATISTICS: kept})

    return recorded
