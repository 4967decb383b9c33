"""Rounds without a server: graphs of neighbours, mixing weights, and distances between models."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.keys import descend, uniforms
from fljax.matrices import eigvalsh
from fljax.rounds.accounting import reported
from fljax.rounds.peers import of_peers
from fljax.types import Algorithm, Cohort, Key, Metrics, Model, Stacked, State, Trained, Work

Graph = Literal["complete", "ring", "torus", "regular", "pairs"]
""""complete": all pairs; "ring": two neighbours; "torus": a grid with four; "regular": random, with equally many;
"pairs": random, with one neighbour each."""

CONTACT = 0xCA11
"""Folded into a round's key for the neighbours with whom clients exchange models."""


def graph_of(kind: Graph, n: int, degree: int = 4, seed: int = 0) -> np.ndarray:
    """(n, n) bool adjacency matrix, symmetric, with False on the diagonal.

    Args:
        kind: the graph. A torus is the grid nearest to a square; with one row it is a ring. "pairs" of an odd number of
            clients leave one client alone.
        n: number of clients.
        degree: number of neighbours of each client in the random regular graph.
        seed: of the random graphs.

    Raises:
        ValueError: no random regular graph has n clients of that degree.
    """
    if kind == "complete":
        return ~np.eye(n, dtype=bool)
    if kind == "ring":
        return _circulant(n, (1,))
    if kind == "torus":
        rows = max(r for r in range(1, int(n**0.5) + 1) if n % r == 0)
        grid = np.arange(n).reshape(rows, n // rows)
        return _graph_of_edges(n, [(grid, np.roll(grid, 1, axis)) for axis in (0, 1)])
    rng = np.random.default_rng(seed)
    if kind == "pairs":
        pairs = rng.permutation(n)[: n - n % 2].reshape(-1, 2)
        return _graph_of_edges(n, [(pairs[:, 0], pairs[:, 1])])
    if not 1 <= degree < n or degree * n % 2:
        raise ValueError(
            f"degree={degree}: for a regular graph of {n} clients choose 1 to {n - 1}, an even degree if the number of "
            "clients is odd"
        )
    return _regular(rng, n, degree)


def _regular(rng: np.random.Generator, n: int, degree: int) -> np.ndarray:
    """A random regular graph: edges of a circulant graph swap endpoints until its structure is gone."""
    adjacent = _circulant(n, tuple(range(1, degree // 2 + 1)))
    if degree % 2:
        adjacent |= _graph_of_edges(n, [(np.arange(n), (np.arange(n) + n // 2) % n)])
    edges = np.argwhere(np.triu(adjacent))
    for first, second in rng.integers(len(edges), size=(20 * len(edges), 2)):
        (a, b), (c, d) = edges[first], rng.permutation(edges[second])
        if len({a, b, c, d}) == 4 and not adjacent[a, d] and not adjacent[c, b]:
            adjacent[[a, b, c, d], [b, a, d, c]] = False
            adjacent[[a, d, c, b], [d, a, b, c]] = True
            edges[first], edges[second] = (a, d), (c, b)
    return adjacent


def _circulant(n: int, steps: tuple[int, ...]) -> np.ndarray:
    clients = np.arange(n)
    return _graph_of_edges(n, [(clients, (clients + step) % n) for step in steps])


def _graph_of_edges(n: int, edges: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    adjacent = np.zeros((n, n), bool)
    for sources, targets in edges:
        adjacent[sources.ravel(), targets.ravel()] = adjacent[targets.ravel(), sources.ravel()] = True
    np.fill_diagonal(adjacent, False)
    return adjacent


def permuted(key: Array, adjacent: Array) -> Array:
    """The graph with its places permuted among the clients; a time-varying graph has a new key in every round."""
    order = jax.random.permutation(key, adjacent.shape[0])
    return adjacent[order[:, None], order[None, :]]


def contacted(key: Key, ids: Array, adjacent: Array, active: Array, n_contacts: int) -> Array:
    """The links of a round in which each client draws some of its neighbours, (clients, clients) bool, symmetric.

    As in randomised gossip (Boyd, Ghosh, Prabhakar, Shah 2006), both ends of a link exchange models, whichever end drew
    it: a client has at least ``n_contacts`` links, or all, and more if others draw it.

    Args:
        key: of the round.
        ids: (clients,) from which the draws derive, so that the order of clients does not matter.
        adjacent: (clients, clients) the graph.
        active: (clients,) bool; others neither draw nor are drawn.
        n_contacts: number of active neighbours that each client draws; all if it has fewer.
    """
    linked = adjacent & active[:, None] & active[None, :]
    keys = descend(jax.random.fold_in(key, CONTACT), ids[:, None], ids[None, :])
    ticket = jnp.where(linked, uniforms(keys.reshape(-1)).reshape(linked.shape), jnp.inf)
    last_drawn = jnp.sort(ticket, axis=1)[:, min(n_contacts, len(ids)) - 1]
    drawn = linked & (ticket <= last_drawn[:, None])
    return drawn | drawn.T


def metropolis(adjacent: Array, active: Array) -> Array:
    """The mixing matrix W (clients, clients): symmetric, rows and columns sum to 1 (Xiao, Boyd 2004).

    ``W_ij = 1 / (1 + max(d_i, d_j))`` between neighbours that are ``active`` (clients,), the rest is W_ii; d_i is the
    number of i's active neighbours. On a regular graph with full participation all weights are 1 / (1 + d).
    """
    linked = adjacent & active[:, None] & active[None, :]
    degree = linked.sum(axis=1)
    larger_degree = jnp.maximum(degree[:, None], degree[None, :]).astype(jnp.float32)
    weight = jnp.where(linked, 1 / (1 + larger_degree), 0.0)
    return weight + jnp.diag(1 - weight.sum(axis=1))


def neighbours_mean(adjacent: Array, active: Array) -> Array:
    """The matrix (clients, clients) of each client's mean over its active neighbours; itself if it has none."""
    linked = adjacent & active[None, :]
    degree = linked.sum(axis=1)
    mean = linked.astype(jnp.float32) / jnp.maximum(degree, 1).astype(jnp.float32)[:, None]
    return mean + jnp.diag((degree == 0).astype(jnp.float32))


def spectral_gap(mixing: Array, active: Array) -> Array:
    """``1 - |lambda_2|`` of the mixing matrix among the ``active`` (clients,), () in [0, 1].

    1: one round makes all models equal; 0: the graph is not connected. Without active clients it is 1.
    """
    present = active.astype(mixing.dtype)
    active_mixing = mixing * present[:, None] * present[None, :]
    deviation = active_mixing - present[:, None] * present[None, :] / jnp.maximum(present.sum(), 1)
    return jnp.clip(1 - jnp.abs(eigvalsh(deviation)).max(), 0, 1)


def consensus_distance(models: Stacked, active: Array) -> Array:
    """Root of the mean squared distance of the ``active`` clients' parameters from their mean, ()."""
    weight = active.astype(jnp.float32) / jnp.maximum(active.sum(), 1).astype(jnp.float32)

    def squared(leaf: Array) -> Array:
        values = jnp.where(active[:, None], tree.as_matrix(leaf), 0)
        deviations = values - (weight[:, None] * values).sum(axis=0)[None, :]
        return (weight * jnp.square(deviations).sum(axis=1)).sum()

    return jnp.sqrt(sum((squared(leaf) for leaf in jax.tree.leaves(tree.trainable(models))), jnp.float32(0)))


@checked_kinds
def between_neighbours(
    model: Model,
    work: Work,
    step: Callable[[Any, Stacked, Array, Cohort], Trained],
    graph: Graph,
    degree: int,
    graph_seed: int,
    time_varying: bool,
    contacts: int | None = None,
) -> Algorithm:
    """A method whose clients send their model to each present neighbour; ``State.server`` is the graph.

    ``step(hyper, models, adjacent, cohort)`` returns the participants' training from ``models`` (cohort, ...), with the
    adjacency matrix ``adjacent`` (cohort, cohort). The graph's arguments are those of `graph_of`; with
    ``time_varying``, clients change places in it in every round, and with ``contacts``, each draws so many of its
    neighbours, see `contacted`. The metrics ``spectral_gap`` and ``consensus_distance`` () describe the `metropolis`
    weights of the round's links and the models after it.
    """

    def round(key: Key, hyper: Any, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        whole_graph = permuted(key, state.server) if time_varying else state.server
        adjacent, active = whole_graph[cohort.ids[:, None], cohort.ids[None, :]], cohort.active
        if contacts is not None:
            adjacent = contacted(key, cohort.ids, adjacent, active, contacts)
        trained = step(hyper, state.clients, adjacent, cohort)
        n_links = (adjacent & active[:, None] & active[None, :]).sum(axis=1).astype(jnp.float32)
        metrics = reported(trained, n_links * tree.row_size(trained.params))
        metrics |= {"spectral_gap": spectral_gap(metropolis(adjacent, active), active)}
        metrics |= {"consensus_distance": consensus_distance(trained.params, active)}
        return State(state.server, trained.params), metrics

    return of_peers(model, work, round, lambda n: jnp.asarray(graph_of(graph, n, degree, graph_seed)))
