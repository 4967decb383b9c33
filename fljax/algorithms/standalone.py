"""Standalone training (NonFed): no collaboration.

The baseline of every personalised method: each client trains its own model on its own data and sends nothing.

Differences: rounds are kept, so that a comparison gives it the same local epochs as the federated methods; a client
that does not take part in a round does not train in it.
"""

from functools import cache
from typing import NamedTuple

from fljax import tree
from fljax.algorithms.accounting import traffic
from fljax.algorithms.fedavg import FedAvgHyper
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, State, Work


class StandaloneHyper(FedAvgHyper):
    """Numbers of standalone training: those of FedAvg."""


@cache
def standalone(model: Model, work: Work) -> Algorithm:
    """Standalone: ``W_i <- LocalTrain(W_i)``, from a common initial model."""

    def init(key: Key, hyper: StandaloneHyper, data: ClientData) -> State:
        return State(server=(), clients=tree.broadcast(model.init(key), data.size.shape[0]))

    def round(key: Key, hyper: StandaloneHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, state.clients, cohort.data, training_loss(model), optimizer, work)
        return State((), trained.params), {"loss": trained.loss, "ok": trained.ok, **traffic(0, 0)}

    return Algorithm(init, round, deploy_own, predictor(model))


def deploy_own(key: Key, hyper: NamedTuple, state: State, data: ClientData) -> ModelTable:
    """Every client is tested with its own model."""
    return tree.own(state.clients)
