"""FedAvg: average what clients train.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017, https://arxiv.org/abs/1602.05629.
Clients train the server's model on their own data; the server averages what comes back.

Differences from the paper: ``weighting="uniform"`` averages the participants equally, as several code bases do.
"""

from functools import cache
from typing import NamedTuple

from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.client import cross_entropy, local_optimizer, predictor, train_clients
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, Assigned, ClientData, Cohort, Key, Metrics, Model, State, Work


class FedAvgHyper(NamedTuple):
    """Numbers of FedAvg.

    lr: clients' learning rate, > 0.
    lr_decay: factor on it per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def fedavg(model: Model, work: Work, *, weighting: str = "size") -> Algorithm:
    """FedAvg: ``w_i = LocalTrain(theta)``; ``theta <- sum_i omega_i w_i / sum_i omega_i``.

    Args:
        model: the network.
        work: local effort.
        weighting: "size" (omega_i = n_i) or "uniform" (omega_i = 1).
    """
    check_weighting(weighting)

    def init(key: Key, hyper: FedAvgHyper, data: ClientData) -> State:
        return State(server=model.init(key), clients=())

    def round(key: Key, hyper: FedAvgHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta = state.server
        start = tree.everyone(theta, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, cross_entropy(model), optimizer, work)
        weight = client_weight(weighting, cohort, trained.ok)
        theta = weighted_mean(trained.params, weight, empty=theta)
        n_parameters = tree.size(theta)
        return State(theta, ()), {"loss": trained.loss, "ok": trained.ok, **traffic(n_parameters, n_parameters)}

    return Algorithm(init, round, deploy_shared, predictor(model))


def deploy_shared(key: Key, hyper: NamedTuple, state: State, data: ClientData) -> Assigned:
    """Every client is tested with the server's one model."""
    return tree.everyone(state.server, data.size.shape[0])
