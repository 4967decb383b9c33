"""FedPer: a shared base, and last layers that stay with each client.

Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers, 2019,
https://arxiv.org/abs/1912.00818.
Clients train base and head together, and send the base only; the server averages it.

Differences from the paper: heads start equal for all clients.
"""

from functools import cache

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import FedAvgHyper
from fljax.algorithms.partial import compose_rows, deploy_composed, last_layers, part_mean, split
from fljax.client import cross_entropy, local_optimizer, predictor, train_clients
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, State, Work


class FedPerHyper(FedAvgHyper):
    """Numbers of FedPer: those of FedAvg."""


@cache
def fedper(model: Model, work: Work, *, n_personal: int = 1, weighting: str = "size") -> Algorithm:
    """FedPer: ``(base_i, head_i) = LocalTrain(base, head_i)``; ``base <- sum_i omega_i base_i / sum_i omega_i``.

    Args:
        model: the network.
        work: local effort.
        n_personal: how many of the last layers stay with the client; 0 is FedAvg, all is standalone training.
        weighting: "size" (omega_i = n_i) or "uniform".
    """
    check_weighting(weighting)
    head_layers = last_layers(model, n_personal, "n_personal")

    def init(key: Key, hyper: FedPerHyper, data: ClientData) -> State:
        base, head = split(model.init(key), head_layers)
        return State(server=base, clients=tree.broadcast(head, data.size.shape[0]))

    def round(key: Key, hyper: FedPerHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        base = state.server
        start = compose_rows(base, state.clients, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, cross_entropy(model), optimizer, work)
        bases, heads = split(trained.params, head_layers)
        base = part_mean(bases, client_weight(weighting, cohort, trained.ok), empty=base)
        n_shared = tree.size(base)
        return State(base, heads), {"loss": trained.loss, "ok": trained.ok, **traffic(n_shared, n_shared)}

    return Algorithm(init, round, deploy_composed, predictor(model))
