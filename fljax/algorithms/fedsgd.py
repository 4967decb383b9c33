"""FedSGD: distributed gradient descent, one full gradient a client and round.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from Decentralized
Data, AISTATS 2017 (as its baseline), https://arxiv.org/abs/1602.05629.
Participants send the gradient of their whole loss; the server takes one step along the weighted mean.

Differences from the paper: none. ``work.batch_size`` only bounds the memory of a gradient, which is summed batch by
batch.
"""

from functools import cache
from typing import NamedTuple

import jax
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import deploy_shared
from fljax.client import predictor, training_loss
from fljax.client.gradient import client_gradients
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, State, Work


class FedSGDHyper(NamedTuple):
    """Numbers of FedSGD.

    lr: the server's learning rate eta, > 0.
    lr_decay: factor on it per round, in (0, 1]; None: constant.
    """

    lr: Array | float = 0.1
    lr_decay: Array | float | None = None


@cache
def fedsgd(model: Model, work: Work, *, weighting: str = "size") -> Algorithm:
    """FedSGD: ``g_i = grad F_i(theta)``; ``theta <- theta - eta sum_i omega_i g_i / sum_i omega_i``.

    Args:
        model: the network.
        work: local effort.
        weighting: "size" (omega_i = n_i) or "uniform" (omega_i = 1).

    Raises:
        ValueError: ``work.epochs`` is not 1, ``work.optimizer`` is not "sgd", or ``weighting`` is unknown.
    """
    check_weighting(weighting)
    if work.epochs != 1 or work.optimizer != "sgd":
        raise ValueError(f"fedsgd takes one gradient step a round; use epochs=1 and optimizer='sgd', not {work}")

    def init(key: Key, hyper: FedSGDHyper, data: ClientData) -> State:
        return State(server=model.init(key), clients=())

    def round(key: Key, hyper: FedSGDHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, statistics = tree.split_statistics(state.server)
        models = tree.everyone(state.server, cohort.ids.shape[0])
        sent = client_gradients(cohort.key, models, cohort.data, training_loss(model), work.batch_size)
        zero = jax.tree.map(lambda leaf: 0 * leaf, theta)
        gradient = weighted_mean(sent.params, client_weight(weighting, cohort, sent.ok), empty=zero)
        lr = hyper.lr if hyper.lr_decay is None else hyper.lr * hyper.lr_decay ** cohort.round.astype("float32")
        theta = jax.tree.map(lambda w, g: w - lr * g, theta, gradient)
        n_parameters = tree.size(theta)
        metrics = {"loss": sent.loss, "ok": sent.ok, **traffic(n_parameters, n_parameters)}
        return State(tree.join_statistics(theta, statistics), ()), metrics

    return Algorithm(init, round, deploy_shared, predictor(model))
