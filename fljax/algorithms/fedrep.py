"""FedRep: a shared representation, learnt under heads that each client fits first.

Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning, ICML
2021, https://arxiv.org/abs/2102.07078. Official code: https://github.com/lgcollins/FedRep.
In a round a client fits its own head on the frozen body, then takes steps on the body under the frozen head, and sends
the body; the server averages it.

Differences from the paper: none in the rounds; as in the official code, clients are tested after fitting the head once
more (``ft_epochs``). Momentum starts at 0 in either phase. Running statistics follow both phases.
"""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.partial import compose_rows, deploy_composed, last_layers, part_mean, split
from fljax.algorithms.tuned import tuned
from fljax.client import local_optimizer, predictor, train_clients, training_loss
from fljax.client.freeze import frozen
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, Stacked, State, Trained, Work

HEAD_PHASE = 0x4EAD
"""Folded into a client's key for the batches of its head phase; those of the body phase are every method's."""


class FedRepHyper(NamedTuple):
    """Numbers of FedRep.

    lr: clients' learning rate in both phases, > 0. The official code has 0.01.
    ft_lr: clients' learning rate when they fit their heads before a test, > 0; None: `lr`, not decayed.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none. The official code has 0.5.
    """

    lr: Array | float = 0.05
    ft_lr: Array | float | None = None
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def fedrep(
    model: Model,
    work: Work,
    *,
    n_personal: int = 1,
    body_epochs: int = 1,
    ft_epochs: int = 10,
    weighting: str = "size",
) -> Algorithm:
    """FedRep: ``head_i`` by ``E - E_rep`` epochs, then ``body_i`` by ``E_rep``; ``body <- mean of body_i``.

    Args:
        model: the network.
        work: local effort; ``epochs`` is E, both phases together.
        n_personal: how many of the last layers are the head.
        body_epochs: E_rep, 0 to E.
        ft_epochs: epochs on the head alone before a client is tested; 0: none.
        weighting: "size" (omega_i = n_i) or "uniform".
    """
    check_weighting(weighting)
    if not 0 <= body_epochs <= work.epochs:
        raise ValueError(f"body_epochs={body_epochs} of epochs={work.epochs}; choose 0 <= body_epochs <= epochs")
    head_layers = last_layers(model, n_personal, "n_personal")
    body_layers = tuple(name for name in model.layers if name not in head_layers)
    loss = training_loss(model)

    def init(key: Key, hyper: FedRepHyper, data: ClientData) -> State:
        body, head = split(model.init(key), head_layers)
        return State(server=body, clients=tree.broadcast(head, data.size.shape[0]))

    def round(key: Key, hyper: FedRepHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        body = state.server
        start = compose_rows(body, state.clients, cohort.ids.shape[0])
        trained = alternated(hyper, start, cohort)
        bodies, heads = split(trained.params, head_layers)
        body = part_mean(bodies, client_weight(weighting, cohort, trained.ok), empty=body)
        n_shared = tree.size(body)
        return State(body, heads), {"loss": trained.loss, "ok": trained.ok, **traffic(n_shared, n_shared)}

    def alternated(hyper: FedRepHyper, start: Stacked, cohort: Cohort) -> Trained:
        optimizer = local_optimizer(hyper, work, cohort.round)
        head_keys = jax.vmap(lambda key: jax.random.fold_in(key, HEAD_PHASE))(cohort.key)
        phases = [(head_keys, body_layers, work.epochs - body_epochs), (cohort.key, head_layers, body_epochs)]
        trained = Trained(start, jnp.zeros(cohort.ids.shape), jnp.ones(cohort.ids.shape, bool))
        for keys, held, epochs in phases:
            if epochs:
                phase = work._replace(epochs=epochs)
                after = train_clients(keys, trained.params, cohort.data, frozen(loss, held), optimizer, phase)
                mean_loss = trained.loss + epochs / work.epochs * after.loss
                trained = Trained(after.params, mean_loss, trained.ok & after.ok)
        return trained._replace(params=tree.where(trained.ok, trained.params, start))

    deploy = tuned(deploy_composed, frozen(loss, body_layers), work, ft_epochs)
    return Algorithm(init, round, deploy, predictor(model))
