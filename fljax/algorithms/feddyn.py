"""FedDyn: a linear term per client aligns its local optimum with the global one.

Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization, ICLR 2021,
https://arxiv.org/abs/2111.04263. Official code: https://github.com/alpemreacar/FedDyn.
Client i minimises its loss minus ``<g_i, w>`` plus a proximal term, where ``g_i`` is its gradient at its last local
model; the server corrects the mean by the accumulated moves of the clients.

Differences from the paper: local problems are solved approximately, by ``work``. As in the paper, alpha is the same for
all clients; the official code divides it by the client's share of the examples. The tested model is the server's; the
code also tests the mean of all clients' last models. PFLlib's proximal term has the distance, not its square.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import predictor, proximal, shifted, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Combining, Weighting, client_weight, mean, method, reported, train
from fljax.rounds.accounting import total_weight
from fljax.rounds.averaging import held_by_all
from fljax.rounds.combine import as_combine, goal_of
from fljax.types import Algorithm, ClientData, Cohort, Exchange, Key, Metrics, Model, Params, State, Upload, Work


@hyper
class FedDynHyper(LocalHyper):
    alpha: Scalar = number(0.1, "weight of the proximal term; the paper has 0.1, 0.01 and 0.001", above=0)


class FedDynServer(NamedTuple):
    """What the server keeps."""

    shared: Params  # theta
    drift: Params  # h / alpha: minus the sum of moves, divided by the total weight of all clients
    total: Array  # () sum of omega_i over all clients
    memory: Any  # state of `combine`, for theta
    h_memory: Any  # state of `combine`, for h


@method(FedDynHyper, "Acar et al., ICLR 2021", "https://arxiv.org/abs/2111.04263")
def feddyn(model: Model, work: Work, *, weighting: Weighting = "uniform", combine: Combining = mean) -> Algorithm:
    """FedDyn: ``w_i = argmin F_i(w) - <g_i, w> + alpha/2 |w - theta|^2``; ``g_i <- g_i - alpha (w_i - theta)``.

    ``h <- h - alpha sum_{i in S} omega_i (w_i - theta) / sum_{all i} omega_i``; ``theta <- mean(w_i) - h / alpha``.
    The reported loss includes all terms.

    Args:
        combine: how the server combines the w_i, for theta and for h.
    """
    combining, rule, loss = as_combine(combine), goal_of(combine), training_loss(model)

    def init(key: Key, hyper: FedDynHyper, data: ClientData) -> State:
        theta, total = model.init(key), total_weight(weighting, data)
        zero = jax.tree.map(jnp.zeros_like, tree.trainable(theta))
        server = FedDynServer(theta, zero, total, combining.init(hyper, theta), rule.init(hyper, theta))
        return State(server, tree.broadcast(zero, data.n_clients))

    def send(key: Key, hyper: FedDynHyper, state: State, cohort: Cohort) -> Upload:
        theta, g = state.server.shared, state.clients
        start, shift = tree.everyone(theta, cohort.n_clients), jax.tree.map(jnp.negative, g)
        trained = train(hyper, start, cohort, proximal(shifted(loss), hyper.alpha), work, start, shift)
        weight = client_weight(weighting, cohort, trained.ok)
        new_g = jax.tree.map(lambda g, d: g - hyper.alpha * d, g, tree.moves(trained.params, theta))
        return Upload(start, trained.params, weight, trained._replace(params=tree.where(weight > 0, new_g, g)))

    def receive(key: Key, hyper: FedDynHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        (theta, drift, total, memory, h_memory), weight, trained = state.server, upload.weight, upload.rest
        averaged, memory = combining.apply(hyper, memory, theta, upload.params, weight)
        goal, h_memory = rule.apply(hyper, h_memory, theta, upload.params, weight)
        (start, _), (averaged, statistics), (goal, _) = map(tree.split_statistics, (theta, averaged, goal))
        share, has_participants = weight.sum() / total, (weight > 0).any()
        drift = jax.tree.map(lambda h, to, t: h - share * (to - t), drift, goal, start)
        new_theta = jax.tree.map(lambda w, h, t: jnp.where(has_participants, w - h, t), averaged, drift, start)
        new = FedDynServer(tree.join_statistics(new_theta, statistics), drift, total, memory, h_memory)
        return State(new, trained.params), reported(trained, tree.size(theta))

    exchange = Exchange(send, receive, lambda server: server.shared)
    return Algorithm(init, exchange.round, held_by_all, predictor(model), loss=model.loss, exchange=exchange)
