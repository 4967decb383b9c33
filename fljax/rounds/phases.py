"""Local training in phases, each on some layers while the others stay fixed: first the head, then the body."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax.numpy as jnp

from fljax import tree
from fljax.client.objectives import Loss
from fljax.rounds.cohort import keys_for
from fljax.rounds.local import train
from fljax.types import Cohort, ModelTable, Stacked, Trained, Work

HEAD_PHASE = 0x4EAD
"""Folded into a client's key for the batches of a head phase; the body phase uses the same batches as other methods."""


class Phase(NamedTuple):
    """A part of a client's local training."""

    frozen: tuple[str, ...]  # layers that stay fixed
    epochs: int  # 0: the phase is left out
    loss: Loss
    rows: tuple[Stacked | ModelTable, ...] = ()  # what the loss needs besides the batch, one row per client
    drawn_from: int | None = None  # folded into the clients' keys; None: the keys themselves


def train_in_phases(hyper: Any, start: ModelTable, cohort: Cohort, work: Work, phases: Iterable[Phase]) -> Trained:
    """The participants' local training, one phase after another; the optimiser restarts in each phase.

    The loss is the mean over all epochs. A client whose training diverges in a phase keeps its initial model.
    """
    phases = [phase for phase in phases if phase.epochs]
    initial, total = tree.stacked(start), sum(phase.epochs for phase in phases)
    trained = Trained(initial, jnp.zeros(cohort.ids.shape, jnp.float32), jnp.ones(cohort.ids.shape, bool))
    for phase in phases:
        phase_cohort = cohort
        if phase.drawn_from is not None:
            phase_cohort = cohort._replace(key=keys_for(cohort, phase.drawn_from))
        phase_work = work.for_epochs(phase.epochs)
        result = train(hyper, trained.params, phase_cohort, phase.loss, phase_work, *phase.rows, frozen=phase.frozen)
        mean_loss = trained.loss + phase.epochs / total * result.loss
        trained = Trained(result.params, mean_loss, trained.ok & result.ok)
    return trained._replace(params=tree.where(trained.ok, trained.params, initial))
