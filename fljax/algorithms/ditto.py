"""Ditto: a personal model for each client, held near the model of FedAvg.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021,
https://arxiv.org/abs/2012.04221. Official code: https://github.com/litian96/ditto.
The clients run FedAvg; beside it each trains a personal model on its loss plus ``lambda/2 |v - theta|^2``.

Differences from the paper: as in the official code, both branches see the same batches and the anchor is the model
received in the round; its dynamic choice of lambda by validation loss is left out, and a mean weighted by sizes is the
default (``weighting="uniform"`` is the code's). The personal model of a client that never took part starts at theta.
"""

from functools import cache
from typing import NamedTuple

from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.standalone import deploy_own
from fljax.client import local_optimizer, predictor, proximal, train_clients, training_loss
from fljax.rounds.joining import rounds_alone
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, State, Work


class DittoHyper(NamedTuple):
    """Numbers of Ditto.

    lr: clients' learning rate on the global model, > 0.
    lam: lambda, weight of the distance to the global model, >= 0; 0 is (FedAvg, standalone training). The penalty is
        lambda/2 |v - theta|^2. The official scripts have 1, FedCR's 0.1.
    personal_lr: clients' learning rate on their personal models, > 0; None: `lr`.
    lr_decay: factor on both learning rates per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD in both branches, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    lam: Array | float = 1.0
    personal_lr: Array | float | None = None
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def ditto(model: Model, work: Work, *, personal_epochs: int | None = None, weighting: str = "size") -> Algorithm:
    """Ditto: ``theta`` by FedAvg; ``V_i <- V_i - eta_p (g(V_i) + lambda (V_i - theta))``.

    The reported loss is that of the personal models, the distance included.

    Args:
        model: the network.
        work: local effort.
        personal_epochs: epochs on the personal model in a round; None: ``work.epochs``.
        weighting: of the global average, "size" (omega_i = n_i) or "uniform".
    """
    check_weighting(weighting)
    if personal_epochs is not None and personal_epochs < 1:
        raise ValueError(f"personal_epochs={personal_epochs} is not positive; choose personal_epochs >= 1, or None")
    personal_work = work if personal_epochs is None else work._replace(epochs=personal_epochs)

    def init(key: Key, hyper: DittoHyper, data: ClientData) -> State:
        theta = model.init(key)
        return State(server=theta, clients=tree.broadcast(theta, data.size.shape[0]))

    def round(key: Key, hyper: DittoHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, loss = state.server, training_loss(model)
        start = tree.everyone(theta, cohort.ids.shape[0])
        # Global branch: w_i = LocalTrain(theta), without the pull.
        optimizer = local_optimizer(hyper, work, cohort.round)
        sent = train_clients(cohort.key, start, cohort.data, loss, optimizer, work)
        # Personal branch: V_i <- V_i - eta_p (g(V_i) + lambda (V_i - theta)), on the same batches.
        personal_lr = hyper.lr if hyper.personal_lr is None else hyper.personal_lr
        optimizer = local_optimizer(hyper._replace(lr=personal_lr), work, cohort.round)
        pulled = proximal(loss, hyper.lam)
        personal = train_clients(cohort.key, state.clients, cohort.data, pulled, optimizer, personal_work, start)
        theta = weighted_mean(sent.params, client_weight(weighting, cohort, sent.ok), empty=theta)
        n_parameters = tree.size(theta)
        metrics = {"loss": personal.loss, "ok": sent.ok & personal.ok, **traffic(n_parameters, n_parameters)}
        return State(theta, personal.params), metrics

    def join(key: Key, hyper: DittoHyper, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        begun = State(state.server, tree.broadcast(state.server, data.size.shape[0]))
        return deploy_own(key, hyper, rounds_alone(round, key, hyper, begun, data, n_rounds), data)

    return Algorithm(init, round, deploy_own, predictor(model), join)
