"""D-PSGD: no server; each client trains its own model and averages it with its neighbours'.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for
Decentralized Parallel Stochastic Gradient Descent, NeurIPS 2017, https://arxiv.org/abs/1705.09056.
Models spread over a graph by a mixing matrix W: the nearer its second eigenvalue is to 0, the sooner all models agree.

Differences from the paper: a client may make several steps per round, as in DFedAvg (Sun, Li, Wang, TPAMI 2023), and by
default the trained models are mixed. ``mixing="beside"`` is the paper's order: a client's own step is added to the mean
of its neighbours' models from before their steps. Clients are tested with their own models. W has Metropolis weights
between the participants, so it is doubly stochastic for any set of them; on a complete graph with full participation
this is FedAvg with equal weights. ``contacts`` is randomised gossip (Boyd, Ghosh, Prabhakar, Shah: IEEE TIT 2006): in
each round a participant draws so many of its neighbours, and mixes with them and with those that drew it.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import Positive, Seed
from fljax.numbers import LocalHyper
from fljax.rounds import method
from fljax.rounds.gossip import Graph, between_neighbours, metropolis, neighbours_mean
from fljax.rounds.local import local_of
from fljax.server.aggregate import mix
from fljax.types import Algorithm, Cohort, Model, Stacked, Trained, Work


@method(LocalHyper, "Lian et al., NeurIPS 2017", "https://arxiv.org/abs/1705.09056")
def dpsgd(
    model: Model,
    work: Work,
    *,
    graph: Graph = "ring",
    degree: Positive = 4,
    graph_seed: Seed = 0,
    time_varying: bool = False,
    contacts: Positive | None = None,
    mixing: Literal["after", "beside", "replace"] = "after",
) -> Algorithm:
    """D-PSGD: ``w_i <- sum_j W_ij LocalTrain(w_j)``.

    Args:
        mixing: "after" training; "beside" it: ``w_i <- sum_j W_ij w_j + (LocalTrain(w_i) - w_i)``; "replace": after
            training, by the plain mean of the neighbours' models without a client's own, so that with the graph
            "pairs", varying, models walk from client to client.
    """
    train = local_of(work, model)

    def step(hyper: LocalHyper, models: Stacked, adjacent: Array, cohort: Cohort) -> Trained:
        weights = neighbours_mean if mixing == "replace" else metropolis
        W, trained = weights(adjacent, cohort.active), train(hyper, tree.own(models), cohort)
        mixed = mix(W, trained.params)
        if mixing == "beside":
            stepped = jax.tree.map(jnp.add, mix(W, models), tree.subtract(trained.params, models))
            # Running statistics are mixed after training: a variance plus a difference of two could be negative.
            mixed = tree.join_statistics(tree.trainable(stepped), tree.split_statistics(mixed)[1])
        return trained._replace(params=mixed)

    return between_neighbours(model, work, step, graph, degree, graph_seed, time_varying, contacts)
