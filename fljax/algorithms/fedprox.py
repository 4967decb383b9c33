"""FedProx: FedAvg whose clients are held near the server's model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020,
https://arxiv.org/abs/1812.06127.
Clients minimise their loss plus ``mu/2 |w - theta|^2``; the server averages.

Differences from the paper: clients do the same epochs each (no inexactness gamma_k); participants are sampled uniformly
and weighted by their sizes, as in FedAvg.
"""

from functools import cache
from typing import NamedTuple

from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import deploy_shared
from fljax.client import cross_entropy, local_optimizer, predictor, proximal, train_clients
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, State, Work


class FedProxHyper(NamedTuple):
    """Numbers of FedProx.

    lr: clients' learning rate, > 0.
    mu: proximal weight, >= 0; 0 is FedAvg. The penalty is mu/2 |w - theta|^2. Classic grid 0.001, 0.01, 0.1, 1.
    lr_decay: factor on the learning rate per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    mu: Array | float = 0.1
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def fedprox(model: Model, work: Work, *, weighting: str = "size") -> Algorithm:
    """FedProx: ``w_i = argmin F_i(w) + mu/2 |w - theta|^2`` by local steps; ``theta <- sum_i omega_i w_i / sum omega``.

    Args:
        model: the network.
        work: local effort.
        weighting: "size" (omega_i = n_i) or "uniform" (omega_i = 1).
    """
    check_weighting(weighting)

    def init(key: Key, hyper: FedProxHyper, data: ClientData) -> State:
        return State(server=model.init(key), clients=())

    def round(key: Key, hyper: FedProxHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta = state.server
        start = tree.everyone(theta, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        loss = proximal(cross_entropy(model), hyper.mu)
        trained = train_clients(cohort.key, start, cohort.data, loss, optimizer, work, start)
        theta = weighted_mean(trained.params, client_weight(weighting, cohort, trained.ok), empty=theta)
        n_parameters = tree.size(theta)
        return State(theta, ()), {"loss": trained.loss, "ok": trained.ok, **traffic(n_parameters, n_parameters)}

    return Algorithm(init, round, deploy_shared, predictor(model))
