"""FedBABU: learn the body under a head that is never trained, then fine-tune on each client.

Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification, ICLR 2022,
https://arxiv.org/abs/2106.06042. Official code: https://github.com/jhoon-oh/FedBABU.
Clients train the body under the common random head and send it; the server averages it; before a test each client
fine-tunes the whole model on its own training data.

Differences from the paper: the learning rate decays by a constant factor a round, not at one half and three quarters of
the rounds. Accuracy before fine-tuning, which the paper reports too, is that of ``ft_epochs=0``. FedCR's code trains
the head in the rounds, which makes its "FedBABU" FedPer; this is the original.
"""

from functools import cache
from typing import NamedTuple

from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import deploy_shared
from fljax.algorithms.partial import compose, last_layers, part_mean, split
from fljax.algorithms.tuned import tuned
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.client.freeze import frozen
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, State, Work


class FedBABUHyper(NamedTuple):
    """Numbers of FedBABU.

    lr: clients' learning rate on the body, > 0. The official code has 0.1.
    ft_lr: clients' learning rate when they fine-tune, > 0; None: `lr`, not decayed.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none. The official code has 0.9.
    """

    lr: Array | float = 0.05
    ft_lr: Array | float | None = None
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def fedbabu(model: Model, work: Work, *, n_head: int = 1, ft_epochs: int = 5, weighting: str = "uniform") -> Algorithm:
    """FedBABU: ``body_i = LocalTrain(body | head_0)``; ``body <- mean of body_i``; test after fine-tuning all layers.

    Args:
        model: the network.
        work: local effort.
        n_head: how many of the last layers are the head; 0 is FedAvg with fine-tuning.
        ft_epochs: epochs that a client fine-tunes before it is tested; 0 tests the global model itself.
        weighting: "uniform" or "size" (omega_i = n_i).
    """
    check_weighting(weighting)
    head_layers = last_layers(model, n_head, "n_head")

    def init(key: Key, hyper: FedBABUHyper, data: ClientData) -> State:
        return State(server=model.init(key), clients=())

    def round(key: Key, hyper: FedBABUHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        start = tree.everyone(state.server, cohort.ids.shape[0])
        optimizer = local_optimizer(hyper, work, cohort.round)
        loss = frozen(training_loss(model), head_layers)
        trained = train_clients(cohort.key, start, cohort.data, loss, optimizer, work)
        body, head = split(state.server, head_layers)
        bodies, _ = split(trained.params, head_layers)
        body = part_mean(bodies, client_weight(weighting, cohort, trained.ok), empty=body)
        n_shared = tree.size(body)
        metrics = {"loss": trained.loss, "ok": trained.ok, **traffic(n_shared, n_shared)}
        return State(compose(body, head), ()), metrics

    deploy = tuned(deploy_shared, training_loss(model), work, ft_epochs)
    return Algorithm(init, round, deploy, predictor(model))
