"""FedAMP: each client is held near a mixture of all models, in which models near its own have larger weights.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021,
https://arxiv.org/abs/2007.03797.
The server computes a mixture u_i for each client, with weights that fall with the distance between models (attentive
message passing); the client trains its own model near u_i.

Differences from the paper: the mixtures of a round use the models of its participants only. If the sum of a client's
weights on the others would exceed 1, they are scaled to sum to 1, which the paper requires of alpha. PFLlib's local
loss has the distance to the mixture without its gradient, so its clients train alone, as here with lambda 0. All
clients start from the same model; a new client starts from the mean of all models and trains alone.
"""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import proximal, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import method, reported, train
from fljax.rounds.peers import of_peers
from fljax.server.aggregate import mix
from fljax.server.distance import pairwise_squared_l2
from fljax.types import Algorithm, Cohort, Key, Metrics, Model, State, Work


@hyper
class FedAMPHyper(LocalHyper):
    lam: Scalar = number(1.0, "lambda: the proximal weight is lambda / alpha; 0: standalone training", least=0)
    alpha: Scalar = number(1.0, "alpha_k: step size of the message passing, on the scale of A'", above=0)
    sigma: Scalar = number(1.0, "squared distance at which a model's weight falls to 1/e", above=0)


@method(FedAMPHyper, "Huang et al., AAAI 2021", "https://arxiv.org/abs/2007.03797", kind="personalised")
def fedamp(model: Model, work: Work) -> Algorithm:
    """FedAMP: ``u_i = sum_j xi_ij w_j``; ``w_i <- argmin F_i(w) + lambda / (2 alpha) |w - u_i|^2``, from w_i.

    ``xi_ij = alpha A'(|w_i - w_j|^2)`` with ``A'(x) = exp(-x / sigma) / sigma``; ``xi_ii`` is 1 minus their sum.
    """

    def round(key: Key, hyper: FedAMPHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        xi = attention(hyper, pairwise_squared_l2(state.clients), cohort.active)
        mixtures = mix(xi, state.clients)
        loss = proximal(training_loss(model), hyper.lam / hyper.alpha)
        trained = train(hyper, state.clients, cohort, loss, work, mixtures)
        return State((), trained.params), reported(trained, tree.row_size(trained.params))

    return of_peers(model, work, round)


def attention(hyper: FedAMPHyper, squared: Array, active: Array) -> Array:
    """xi (clients, clients) between the active clients, from squared distances; each row sums to 1."""
    is_other = ~jnp.eye(squared.shape[0], dtype=bool) & active[None]
    weight = jnp.where(is_other, hyper.alpha / hyper.sigma * jnp.exp(-squared / hyper.sigma), 0.0)
    weight = weight / jnp.maximum(weight.sum(1, keepdims=True), 1.0)
    return weight + jnp.diag(1 - weight.sum(1))
