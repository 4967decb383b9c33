"""FedDist: the server goes part of the way to the clients' mean, as Reptile does.

As in the code of Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better
personalization, World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026 (a baseline there), after Nichol, Achiam,
Schulman: On First-Order Meta-Learning Algorithms, 2018, https://arxiv.org/abs/1803.02999.
Clients train the server's model; the server moves towards their mean by a step of 0.6.

Differences from the code: none. The method of the same name of Ek et al., PerCom 2021, is another one.
"""

from functools import cache
from typing import NamedTuple

import jax
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import client_weight, traffic
from fljax.algorithms.fedavg import deploy_shared
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, Params, State, Work


class FedDistHyper(NamedTuple):
    """Numbers of FedDist.

    lr: clients' learning rate, > 0.
    step: share of the way to the clients' mean, in (0, 1]; 1 is FedAvg of equal weights. The code has 0.6.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    step: Array | float = 0.6
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def feddist(model: Model, work: Work) -> Algorithm:
    """FedDist: ``theta <- theta - step/m sum_i (theta - w_i)`` over the m participants."""

    def init(key: Key, hyper: FedDistHyper, data: ClientData) -> State:
        return State(server=model.init(key), clients=())

    def round(key: Key, hyper: FedDistHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta = state.server
        start = tree.everyone(theta, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        mean = weighted_mean(trained.params, client_weight("uniform", cohort, trained.ok), empty=theta)
        theta = towards(theta, mean, hyper.step)
        n_parameters = tree.size(theta)
        return State(theta, ()), {"loss": trained.loss, "ok": trained.ok, **traffic(n_parameters, n_parameters)}

    return Algorithm(init, round, deploy_shared, predictor(model))


def towards(theta: Params, mean: Params, step: Array | float) -> Params:
    """``theta + step (mean - theta)``; running statistics too."""
    return jax.tree.map(lambda w, goal: w + step * (goal - w), theta, mean)
