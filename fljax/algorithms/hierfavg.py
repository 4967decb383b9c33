"""HierFAVG: edge servers average their clients' models in every round, and the cloud the edges' models in some rounds.

Liu, Zhang, Song, Letaief: Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020,
https://arxiv.org/abs/1905.06641. Official code: https://github.com/LuminLiu/HierFL.

::

    w_i  <- LocalTrain(w^l)                        every client i of edge l
    w^l  <- sum_i |D_i| w_i / |D^l|                at every edge l, in every round
    w^l  <- w = sum_l |D^l| w^l / |D|              at the cloud, in every kappa_2-th round

Differences from the paper: local work is counted in epochs, not in kappa_1 steps, and clients may be absent. |D^l| are
then the examples that edge l has averaged since the cloud's last round: with everyone in every round the paper's
weights, and with the cloud in every round FedAvg's, whoever participates. An edge without participants keeps its model;
if it had none since the cloud's last round, it sends nothing, and receives the cloud's model like the others. A round
in which nobody participates does not count. The code samples clients at each edge; here a round's participants are
drawn from all clients, as in every method. A new client joins the edge whose model has the least training loss.
"""

from numbers import Integral
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax import tree
from fljax.choices import Positive
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Weighting, clustered, mean, method
from fljax.rounds.wrapping import halves_of, with_halves
from fljax.server.aggregate import weighted_mean
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Params, State, Upload, Work

Assignment = Literal["blocks", "turns", "random"]

EDGES = 0xED6E
"""Folded into the run's first key for the random assignment of clients to edges."""


@hyper
class HierFAVGHyper(LocalHyper):
    cloud_every: Scalar = number(
        2.0,
        "kappa_2: rounds from one average of the cloud to the next, rounded; 1 is FedAvg, inf is FedAvg at each edge",
        least=1,
        infinite=True,
    )


class Cloud(NamedTuple):
    """What the cloud knows, beside the edges' models."""

    model: Params  # w, its last average
    weight: Array  # (edges,) |D^l|: the weight of all models that each edge has averaged since
    n_rounds: Array  # () int32 number of rounds with participants since


@method(HierFAVGHyper, "Liu et al., ICC 2020", "https://arxiv.org/abs/1905.06641", kind="clustered")
def hierfavg(
    model: Model,
    work: Work,
    n_edges: Positive = 2,
    *,
    assignment: Assignment = "blocks",
    edge: tuple[int, ...] | None = None,
    deployed: Literal["edge", "cloud"] = "edge",
    weighting: Weighting = "size",
    combine: Combining = mean,
) -> Algorithm:
    """HierFAVG: ``w^l <- mean of its w_i`` in every round; in every kappa_2-th, ``w^l <- w = mean of the w^l``.

    The metrics ``edge_uplink`` and ``edge_downlink`` () are the floats that all edges together send to the cloud, and
    receive from it, in a round; ``uplink`` and ``downlink`` are those between a client and its edge. Only these two
    take time under a clock.

    Args:
        n_edges: L, the number of edge servers.
        assignment: the clients of an edge. "blocks": consecutive ones, so that partitions in groups have as many edges
            as groups, and each group at one edge; "turns": client i is at edge ``i mod L``, so that all edges have
            clients of all groups; "random": as many at each, drawn by the run's seed.
        edge: (clients,) the edge of each client, 0 to ``n_edges - 1``, in place of ``assignment``.
        deployed: "edge": clients are tested with their edge's model; "cloud": with the cloud's last average.
        combine: how an edge combines its clients' models; the cloud averages.

    Raises:
        ValueError: ``edge`` is no tuple, or names an edge that does not exist. ``init`` raises it if there are more
            edges than clients, or if ``edge`` does not have one entry per client.
    """
    if edge is not None and not np.iterable(edge):
        raise ValueError(f"edge={edge!r} is not a tuple; give the edge of each client, such as (0, 0, 1)")
    for place in edge or ():
        if not (isinstance(place, Integral) and 0 <= place < n_edges):
            raise ValueError(
                f"edge has an entry {place!r}; with n_edges={n_edges} give whole numbers 0 to {n_edges - 1}"
            )

    def begin(key: Key, hyper: HierFAVGHyper, data: ClientData) -> Clusters:
        w, n_clients = model.init(key), data.n_clients
        drawn_by = jax.random.fold_in(key, EDGES)
        label = edges_of(drawn_by, n_clients, n_edges, assignment) if edge is None else given(edge, n_clients)
        return Clusters(tree.broadcast(w, n_edges), label, kept=Cloud(w, jnp.zeros(n_edges, jnp.float32), jnp.int32(0)))

    def clouds_model(key: Key, hyper: HierFAVGHyper, state: State, data: ClientData) -> ModelTable:
        return tree.everyone(state.server.kept.model, data.n_clients)

    deploy = clouds_model if deployed == "cloud" else None
    rounds = clustered(model, work, Rule(begin), combine=combine, weighting=weighting, deploy=deploy)
    if deployed == "cloud":  # new clients are at no edge
        rounds = rounds._replace(join=lambda key, hyper, state, data, n_rounds: clouds_model(key, hyper, state, data))
    halves = halves_of(rounds)

    def receive(key: Key, hyper: HierFAVGHyper, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        state, metrics = halves.receive(key, hyper, state, cohort, upload)
        clusters, cloud = state.server, state.server.kept
        weight = cloud.weight + jax.ops.segment_sum(upload.weight, upload.start.row, n_edges)
        total, sends = weight.sum(), weight > 0
        n_rounds = cloud.n_rounds + (upload.weight > 0).any().astype(jnp.int32)
        is_due = n_rounds.astype(jnp.float32) >= jnp.round(hyper.cloud_every)
        # Of shares, not of examples: one edge's mean is then its model to the last bit.
        w = weighted_mean(clusters.centers, weight / jnp.where(total > 0, total, 1.0), empty=cloud.model)
        edge_models = tree.where(is_due, tree.broadcast(w, n_edges), clusters.centers)
        known = tree.where(is_due, Cloud(w, jnp.zeros_like(weight), jnp.int32(0)), Cloud(cloud.model, weight, n_rounds))
        floats = tree.size(w) * is_due.astype(jnp.float32)
        metrics |= {"edge_uplink": floats * sends.sum().astype(jnp.float32), "edge_downlink": floats * n_edges}
        return State(clusters._replace(centers=edge_models, kept=known), state.clients), metrics

    return with_halves(rounds, receive=receive)


def edges_of(key: Key, n_clients: int, n_edges: int, assignment: Assignment) -> Array:
    """(clients,) int32 edge of each client, by an ``assignment`` that gives each edge as many, within one.

    Raises:
        ValueError: there are more edges than clients.
    """
    if n_edges > n_clients:
        raise ValueError(f"n_edges={n_edges}, but the data has {n_clients} clients; choose n_edges <= {n_clients}")
    client = np.arange(n_clients)
    label = client % n_edges if assignment == "turns" else client * n_edges // n_clients
    label = jnp.asarray(label, jnp.int32)
    return jax.random.permutation(key, label) if assignment == "random" else label


def given(edge: tuple[int, ...], n_clients: int) -> Array:
    """(clients,) int32 edge of each client, as given.

    Raises:
        ValueError: there is not one per client.
    """
    if len(edge) != n_clients:
        raise ValueError(f"edge has {len(edge)} entries, but the data has {n_clients} clients; give one per client")
    return jnp.asarray(edge, jnp.int32)
