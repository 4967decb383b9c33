"""FedDWS: FedDist with clients weighted by their data.

As in the code of Long, Xie, Shen, Zhou, Wang, Jiang: Multi-center federated learning: clients clustering for better
personalization, World Wide Web Journal 2023, https://arxiv.org/abs/2005.01026 (a baseline there).
Clients train the server's model; the server goes part of the way to their mean, weighted by size.

Differences from the code: its branch has a further factor 1/m and an undefined variable, so it never ran; here the step
is FedDist's, and ``literal=True`` has the step 1/m of m participants.
"""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import client_weight, traffic
from fljax.algorithms.fedavg import deploy_shared
from fljax.algorithms.feddist import towards
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, State, Work


class FedDWSHyper(NamedTuple):
    """Numbers of FedDWS.

    lr: clients' learning rate, > 0.
    step: share of the way to the clients' mean, in (0, 1]; 1 is FedAvg. Unused with `literal`.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    step: Array | float = 0.6
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def feddws(model: Model, work: Work, *, literal: bool = False) -> Algorithm:
    """FedDWS: ``theta <- theta + step (sum_i n_i w_i / sum_i n_i - theta)``.

    ``literal`` is whether the step is 1/m, m the participants that count, as the code's comment has it.
    """

    def init(key: Key, hyper: FedDWSHyper, data: ClientData) -> State:
        return State(server=model.init(key), clients=())

    def round(key: Key, hyper: FedDWSHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta = state.server
        start = tree.everyone(theta, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        mean = weighted_mean(trained.params, client_weight("size", cohort, trained.ok), empty=theta)
        n_counted = client_weight("uniform", cohort, trained.ok).sum()
        theta = towards(theta, mean, 1 / jnp.maximum(n_counted, 1.0) if literal else hyper.step)
        n_parameters = tree.size(theta)
        return State(theta, ()), {"loss": trained.loss, "ok": trained.ok, **traffic(n_parameters, n_parameters)}

    return Algorithm(init, round, deploy_shared, predictor(model))
