"""LG-FedAvg: local representations, and last layers that are shared.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning with
Local and Global Representations, 2020, https://arxiv.org/abs/2001.01523.
Official code: https://github.com/pliang279/LG-FedAvg.
Clients train body and head together, and send the head only; the server averages it.

Differences from the paper: the start is a common random model and not one trained by FedAvg; clients are tested with
their own body and the global head, not with an ensemble of all of them.
"""

from functools import cache

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import FedAvgHyper
from fljax.algorithms.partial import compose_rows, deploy_composed, last_layers, part_mean, split
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, State, Work


class LGFedAvgHyper(FedAvgHyper):
    """Numbers of LG-FedAvg: those of FedAvg."""


@cache
def lg_fedavg(model: Model, work: Work, *, n_shared: int = 1, weighting: str = "uniform") -> Algorithm:
    """LG-FedAvg: ``(body_i, head_i) = LocalTrain(body_i, head)``; ``head <- sum_i omega_i head_i / sum_i omega_i``.

    Args:
        model: the network.
        work: local effort.
        n_shared: how many of the last layers are shared; all of them is FedAvg.
        weighting: "uniform" or "size" (omega_i = n_i).
    """
    check_weighting(weighting)
    head_layers = last_layers(model, n_shared, "n_shared")

    def init(key: Key, hyper: LGFedAvgHyper, data: ClientData) -> State:
        body, head = split(model.init(key), head_layers)
        return State(server=head, clients=tree.broadcast(body, data.size.shape[0]))

    def round(key: Key, hyper: LGFedAvgHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        head = state.server
        start = compose_rows(head, state.clients, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        bodies, heads = split(trained.params, head_layers)
        head = part_mean(heads, client_weight(weighting, cohort, trained.ok), empty=head)
        n_sent = tree.size(head)
        return State(head, bodies), {"loss": trained.loss, "ok": trained.ok, **traffic(n_sent, n_sent)}

    return Algorithm(init, round, deploy_composed, predictor(model))
