"""The clients' side of DC-PFL: training from one model or, in a trial round, from those of both structures."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.measure import client_loss
from fljax.client.objectives import training_loss
from fljax.rounds import client_weight, train
from fljax.types import ClientData, Cohort, Model, Stacked, Trained, Work

TrialLoss = Literal["val", "train"]


class ClientSide(NamedTuple):
    """The clients' side of a round."""

    trained: Trained
    before: Array  # (clients,) training loss before training; unknown in a trial
    trial_loss: Array  # (2,) mean loss in the present groups and in those on trial; 0 in other rounds
    adopted: Array  # () bool: `trained` comes from the groups on trial


def client_side_of(model: Model, work: Work, trial_loss: TrialLoss) -> Callable[..., ClientSide]:
    """``(hyper, starts, on_trial, cohort) -> ClientSide``: tau local epochs from M0 and, where ``on_trial`` (), M1 too.

    ``starts`` (2, cohort, ...) are the models that the participants have in the present groups and in those on trial.
    """
    loss = training_loss(model)

    def trained_from(hyper: Any, starts: Stacked, on_trial: Array, cohort: Cohort) -> ClientSide:
        trial_data = cohort.val if trial_loss == "val" and cohort.val is not None else cohort.data
        no_losses = jnp.zeros(cohort.ids.shape, jnp.float32)

        def losses_of(models: Stacked, data: ClientData, is_needed: Array) -> Array:
            return lax.cond(is_needed, lambda: client_loss(model, models, data), lambda: no_losses)

        @partial(jax.jit, inline=True)  # so that it is traced once for its shapes and for the loop
        def in_structure(i: Array) -> tuple[Trained, Array]:
            trained = train(hyper, tree.take(starts, i), cohort, loss, work)
            return trained, losses_of(trained.params, trial_data, on_trial)

        def idle(i: Array) -> tuple[Trained, Array]:
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(in_structure, i))

        before = losses_of(tree.first(starts), cohort.data, ~on_trial)  # l_i(t), before local training
        # b. Both train on the same batches, otherwise noise would decide. One program serves both kinds of round.
        results, losses = lax.map(lambda i: lax.cond((i == 0) | on_trial, in_structure, idle, i), jnp.arange(2))
        # c. Adopt the split if the mean loss is strictly lower.
        counts = client_weight("uniform", cohort, results.ok.all(axis=0))
        no_means = jnp.zeros(2, jnp.float32)
        means = lax.cond(on_trial, lambda: jax.vmap(mean_loss, (0, None))(losses, counts), lambda: no_means)
        adopted = means[1] < means[0]
        return ClientSide(tree.take(results, adopted.astype(jnp.int32)), before, means, adopted)

    return trained_from


def mean_loss(value: Array, weight: Array) -> Array:
    """Mean over the clients with positive weight; NaN if there are none."""
    return jnp.where(weight > 0, value, 0.0).sum() / (weight > 0).sum().astype(jnp.float32)
