"""FedBN: each client keeps its own normalisation, everything else is averaged.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021,
https://arxiv.org/abs/2102.07623.
Clients train whole models, and send all but the normalisation layers; the server averages what it gets.
``kept="statistics"`` is SiloBN (Andreux et al., 2020, https://arxiv.org/abs/2008.07424), FedAvg whose clients keep
the running statistics alone: scale and bias are averaged.

Differences from the paper: the normalisation starts equal for all clients.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
from flax.traverse_util import flatten_dict, unflatten_dict

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import FedAvgHyper
from fljax.algorithms.partial import part_mean
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Work

_Path = tuple[str, ...]

KEPT: dict[str, Callable[[_Path], bool]] = {
    "norm": lambda path: path[0] == tree.STATISTICS or "norm" in path,
    "statistics": lambda path: path[0] == tree.STATISTICS,
}
"""Which parameters stay with the client: a predicate on their path in the model."""


class FedBNHyper(FedAvgHyper):
    """Numbers of FedBN: those of FedAvg."""


@cache
def fedbn(model: Model, work: Work, *, kept: str = "norm", weighting: str = "size") -> Algorithm:
    """FedBN: ``(theta_i, norm_i) = LocalTrain(theta, norm_i)``; ``theta <- sum_i omega_i theta_i / sum_i omega_i``.

    A part is kept as ``{path: leaf}``. A client that never took part trains its own normalisation from the start.

    Args:
        model: the network; it must have what ``kept`` names.
        work: local effort.
        kept: what stays with the client: "norm" (scale, bias and running statistics of every normalisation layer) or
            "statistics" (the running statistics of BatchNorm only).
        weighting: "size" (omega_i = n_i) or "uniform".

    Raises:
        ValueError: an unknown choice, or a model with nothing to keep.
    """
    check_weighting(weighting)
    _check_kept(kept, model)

    def init(key: Key, hyper: FedBNHyper, data: ClientData) -> State:
        theta, norm = divide(model.init(key), kept)
        return State(server=theta, clients=tree.broadcast(norm, data.size.shape[0]))

    def round(key: Key, hyper: FedBNHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta = state.server
        start = unflatten_dict(tree.broadcast(theta, cohort.ids.shape[0]) | state.clients)
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, training_loss(model), optimizer, work)
        thetas, norms = divide(trained.params, kept)
        theta = part_mean(thetas, client_weight(weighting, cohort, trained.ok), empty=theta)
        n_shared = tree.size(theta)
        return State(theta, norms), {"loss": trained.loss, "ok": trained.ok, **traffic(n_shared, n_shared)}

    def deploy(key: Key, hyper: FedBNHyper, state: State, data: ClientData) -> ModelTable:
        shared = jax.tree.map(lambda leaf: leaf[None], state.server)
        return tree.own(state.clients)._replace(params=unflatten_dict(shared | state.clients))

    return Algorithm(init, round, deploy, predictor(model))


def divide(params: Params, kept: str) -> tuple[dict[_Path, Any], dict[_Path, Any]]:
    """``params``, of one model or of many, as (shared, kept by the client), each ``{path: leaf}``."""
    leaves = flatten_dict(params)
    stays = KEPT[kept]
    return {p: leaf for p, leaf in leaves.items() if not stays(p)}, {p: leaf for p, leaf in leaves.items() if stays(p)}


def _check_kept(kept: str, model: Model) -> None:
    if kept not in KEPT:
        raise ValueError(f"kept={kept!r} is unknown; choose one of {', '.join(map(repr, KEPT))}")
    _, stays = divide(jax.eval_shape(model.init, jax.random.key(0)), kept)
    if not stays:
        allowed = {"norm": "a model with normalisation", "statistics": "a model with BatchNorm"}[kept]
        raise ValueError(f"kept={kept!r}: the model has nothing to keep; choose {allowed}, such as resnet18")
