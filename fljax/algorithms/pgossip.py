"""Personalised gossip: no server; each client trains its own model near the mean of its neighbours' models.

Vanhaesebrouck, Bellet, Tommasi: Decentralized Collaborative Learning of Personalized Models over Networks, AISTATS
2017, https://arxiv.org/abs/1610.05202.
The clients of a graph jointly minimise ``sum_i F_i(w_i) + lambda/4 sum_ij A_ij/d_i |w_i - w_j|^2``: neighbours' models
are held near each other but need not agree.

Differences from the paper: each client minimises its part for fixed neighbours by SGD, all clients at once in a round,
whereas the paper's ADMM wakes pairs of clients one after another; all neighbours have equal weights, and so do all F_i.
"""

from jax import Array

from fljax.choices import Positive, Seed
from fljax.client.objectives import proximal, training_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import method, train
from fljax.rounds.gossip import Graph, between_neighbours, neighbours_mean
from fljax.server.aggregate import mix
from fljax.types import Algorithm, Cohort, Model, Stacked, Trained, Work


@hyper
class PersonalGossipHyper(LocalHyper):
    lam: Scalar = number(0.5, "lambda: proximal weight to the neighbours' mean; 0: standalone training", least=0)


@method(
    PersonalGossipHyper, "Vanhaesebrouck et al., AISTATS 2017", "https://arxiv.org/abs/1610.05202", kind="personalised"
)
def pgossip(
    model: Model,
    work: Work,
    *,
    graph: Graph = "ring",
    degree: Positive = 4,
    graph_seed: Seed = 0,
    time_varying: bool = False,
    contacts: Positive | None = None,
) -> Algorithm:
    """Personalised gossip: ``w_i <- argmin F_i(w) + lambda/2 |w - m_i|^2``, from w_i; ``m_i = sum_j A_ij w_j/d_i``."""

    def step(hyper: PersonalGossipHyper, models: Stacked, adjacent: Array, cohort: Cohort) -> Trained:
        m = mix(neighbours_mean(adjacent, cohort.active), models)
        return train(hyper, models, cohort, proximal(training_loss(model), hyper.lam), work, m)

    return between_neighbours(model, work, step, graph, degree, graph_seed, time_varying, contacts)
