"""FedDANE: clients' steps are corrected by the difference between everyone's gradient and their own.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE: A Federated Newton-Type Method, Asilomar 2019,
https://arxiv.org/abs/2001.01920. Official code: https://github.com/litian96/FedDANE.
Participants send their gradients at the server's model; each then minimises its loss, shifted so that its gradient
there is everyone's, plus ``mu/2 |w - theta|^2``; the server averages.

Differences from the paper: both communications of a round are with the same participants, as in the code, whose sampler
is seeded by the round; the paper draws them anew.
"""

from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import check_weighting, client_weight, traffic
from fljax.algorithms.fedavg import deploy_shared
from fljax.client import local_optimizer, predictor, proximal, train_clients, training_loss
from fljax.client.gradient import client_gradients
from fljax.client.objectives import Loss
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, Batch, ClientData, Cohort, Key, Metrics, Model, Params, State, Work


class FedDANEHyper(NamedTuple):
    """Numbers of FedDANE.

    lr: clients' learning rate, > 0.
    mu: proximal weight, >= 0.
    lr_decay: factor on `lr` per round, in (0, 1]; None: constant.
    momentum: of the clients' SGD, in [0, 1); None: none.
    """

    lr: Array | float = 0.05
    mu: Array | float = 0.0
    lr_decay: Array | float | None = None
    momentum: Array | float | None = None


@cache
def feddane(model: Model, work: Work, *, weighting: str = "size") -> Algorithm:
    """FedDANE: ``w_i = argmin F_i(w) + <gbar - g_i, w> + mu/2 |w - theta|^2``; ``theta <- mean of w_i``.

    ``g_i = grad F_i(theta)``, ``gbar`` is their mean. The reported loss includes both terms.

    Args:
        model: the network.
        work: local effort.
        weighting: of both means, "size" (omega_i = n_i) or "uniform".
    """
    check_weighting(weighting)
    loss = training_loss(model)

    def init(key: Key, hyper: FedDANEHyper, data: ClientData) -> State:
        return State(server=model.init(key), clients=())

    def round(key: Key, hyper: FedDANEHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        theta, n_clients = state.server, cohort.ids.shape[0]
        start = tree.everyone(theta, n_clients)
        # First communication: g_i = grad F_i(theta); gbar = their weighted mean.
        sent = client_gradients(cohort.key, start, cohort.data, loss, work.batch_size)
        mean = weighted_mean(sent.params, client_weight(weighting, cohort, sent.ok))
        correction = jax.tree.map(lambda gbar, g: gbar - g, tree.broadcast(mean, n_clients), sent.params)
        # Second: w <- w - eta (g_b(w) + gbar - g_i + mu (w - theta)).
        corrected = proximal(shifted(loss), hyper.mu)
        optimizer = local_optimizer(hyper, work, cohort.round)
        trained = train_clients(cohort.key, start, cohort.data, corrected, optimizer, work, start, correction)
        ok = sent.ok & trained.ok
        theta = weighted_mean(trained.params, client_weight(weighting, cohort, ok), empty=theta)
        n_parameters = tree.size(theta)
        return State(theta, ()), {"loss": trained.loss, "ok": ok, **traffic(2 * n_parameters, 2 * n_parameters)}

    return Algorithm(init, round, deploy_shared, predictor(model))


def shifted(loss: Loss) -> Loss:
    """``loss(w) + <shift, w>``, whose gradient adds ``shift``: the first of the client's own rows."""

    def linear(params: Params, batch: Batch, key: Key, shift: Params, *own: Any) -> tuple[Array, Params]:
        value, updated = loss(params, batch, key, *own)
        pairs = zip(jax.tree.leaves(shift), jax.tree.leaves(tree.split_statistics(params)[0]), strict=True)
        return value + jnp.stack([jnp.vdot(s, w) for s, w in pairs]).sum(), updated

    return linear
