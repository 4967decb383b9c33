"""D-PSGD: no server; each client trains its own model and averages it with its neighbours'.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for
Decentralized Parallel Stochastic Gradient Descent, NeurIPS 2017, https://arxiv.org/abs/1705.09056.
Models spread over a graph by a mixing matrix W: the nearer its second eigenvalue is to 0, the sooner all agree.

Differences from the paper: a client may make several steps a round, as in DFedAvg (Sun, Li, Wang, TPAMI 2023), and by
default the trained models are mixed; ``mixing="beside"`` is the paper's order, in which a client's own step is added to
its neighbours' models before theirs. Clients are tested with their own models. W is Metropolis' of those who take part,
so that it is doubly stochastic whoever is there; on a complete graph with everyone this is FedAvg of equal weights.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fljax import tree
from fljax.choices import Natural, Positive
from fljax.numbers import LocalHyper
from fljax.rounds import method
from fljax.rounds.gossip import Graph, between_neighbours, graph_of, metropolis, renamed
from fljax.rounds.local import local_of
from fljax.rounds.peers import of_peers
from fljax.server.aggregate import mix
from fljax.types import Algorithm, Cohort, Key, Metrics, Model, State, Work


@method(LocalHyper, "Lian et al., NeurIPS 2017", "https://arxiv.org/abs/1705.09056")
def dpsgd(
    model: Model,
    work: Work,
    *,
    graph: Graph = "ring",
    degree: Positive = 4,
    graph_seed: Natural = 0,
    time_varying: bool = False,
    mixing: Literal["after", "beside"] = "after",
) -> Algorithm:
    """D-PSGD: ``w_i <- sum_j W_ij LocalTrain(w_j)``.

    Args:
        graph: "complete", "ring", "torus", "regular" (random) or "pairs" (random).
        degree: neighbours of each client in the graph "regular".
        graph_seed: of the random graphs.
        time_varying: whether clients have other places in the graph in every round.
        mixing: "after" training; "beside" it: ``w_i <- sum_j W_ij w_j + (LocalTrain(w_i) - w_i)``.
    """
    train = local_of(work, model)

    def round(key: Key, hyper: LocalHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        places = renamed(key, state.server) if time_varying else state.server
        near = places[cohort.ids[:, None], cohort.ids[None, :]]
        W = metropolis(near, cohort.active)
        trained = train(hyper, tree.own(state.clients), cohort)
        models = mix(W, trained.params if mixing == "after" else state.clients)
        if mixing == "beside":
            step = tree.subtract(trained.params, state.clients)
            # Running statistics are mixed after training: a variance and a difference of two may be below 0.
            statistics = tree.split_statistics(mix(W, trained.params))[1]
            trainable = tree.split_statistics(jax.tree.map(jnp.add, models, step))[0]
            models = tree.join_statistics(trainable, statistics)
        metrics = {"loss": trained.loss, "ok": trained.ok, **between_neighbours(models, near, W, cohort.active)}
        return State(state.server, models), metrics

    return of_peers(model, work, round, lambda n: jnp.asarray(graph_of(graph, n, degree, graph_seed)))
