"""FedRC: soft clusters that group clients by concept, and not by labels or features.

Guo, Tang, Lin: FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust Clustering, ICML
2024, https://arxiv.org/abs/2301.12379. Official code: https://github.com/LINs-lab/FedRC.
As FedEM, but an example's responsibility for a cluster is its likelihood there divided by the share of its label in the
cluster, so that a cluster with many examples of a label does not attract more of them.

Differences from the paper: responsibilities within a round are those of its start, as in the code and in FedEM. The
label shares are those of the clients' last E steps: absent clients count with what they sent last, and clients that
have never participated do not count (in the code, as one example in every cluster, spread over all labels).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.fedem import em_loss, mixed
from fljax.choices import Positive
from fljax.client.example_loss import example_loss
from fljax.client.features import head_shape
from fljax.data.federation import present
from fljax.data.labels import check_classes
from fljax.numbers import LocalHyper
from fljax.rounds import Combining, Weighting, check_not_private, client_weight, mean, method, reported, train
from fljax.rounds.accounting import memberships
from fljax.rounds.combine_parts import of_each_learner
from fljax.server.assign import mixture_weights, responsibilities
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Model, ModelTable, Stacked, State, Work

FLOOR = 1e-8
"""Least mass of a label in a cluster, as in the code."""


class FedRCServer(NamedTuple):
    """What the server keeps."""

    learners: Stacked  # (clusters, ...)
    mass: Array  # (clusters, classes) sum over all clients of gamma, by label
    memory: Any  # state of `combine`


class Memberships(NamedTuple):
    """What a client keeps."""

    omega: Array  # (clusters,) on the simplex
    mass: Array  # (clusters, classes) its part of the server's mass


# Clients also send the labels' masses, which uplink bricks would not change.
@method(LocalHyper, "Guo et al., ICML 2024", "https://arxiv.org/abs/2301.12379", kind="clustered", sends=False)
def fedrc(
    model: Model, work: Work, n_clusters: Positive = 3, *, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """FedRC: ``gamma_ik(x, y) ~ omega_ik exp(-l_k(x, y)) / C_k(y)``; ``omega_ik = mean gamma_ik``; learners by gamma.

    ``C_k(y)``, the share of label y in cluster k, is ``sum gamma_ik [label y] / sum gamma_ik`` over all examples.
    The reported loss is the sum of the learners' weighted mean losses.

    Args:
        model: the network of every cluster, whose last layer is dense.
        n_clusters: K; 1 is FedAvg. The paper has 3.
        combine: how the server combines the clients' copies of a learner.
    """
    check_not_private(work, "clients of FedRC weight learners by their examples' responsibilities, without noise")
    combining, loss = of_each_learner(combine), em_loss(model, by_concept)

    def init(key: Key, hyper: LocalHyper, data: ClientData) -> State:
        check_classes(data.pool.y)
        learners, n_clients = jax.vmap(model.init)(jax.random.split(key, n_clusters)), data.n_clients
        n_classes = head_shape(model, tree.first(learners))[1]
        initial = Memberships(
            jnp.full((n_clients, n_clusters), 1 / n_clusters, jnp.float32),
            jnp.zeros((n_clients, n_clusters, n_classes), jnp.float32),
        )
        return State(FedRCServer(learners, initial.mass.sum(0), combining.init(hyper, learners)), initial)

    def round(key: Key, hyper: LocalHyper, state: State, cohort: Cohort) -> tuple[State, Metrics]:
        (learners, mass, memory), old, n = state.server, state.clients, cohort.n_clients
        share = label_shares(mass)
        # E step.
        y = cohort.data.pool.y[cohort.data.index]
        gamma = by_concept(example_loss(model, learners, cohort.data), y, old.omega, share)
        # M step.
        start = tree.everyone(learners, n)
        trained = train(hyper, start, cohort, loss, work, start, old.omega, tree.everyone(share, n))
        estimated = new_memberships(gamma, y, present(cohort.data), old)
        weight = client_weight(weighting, cohort, trained.ok)
        new = tree.where(cohort.active & trained.ok, estimated, old)
        mass = jnp.maximum(mass + (new.mass - old.mass).sum(0), 0.0)
        learners, memory = combining.apply(hyper, memory, learners, trained.params, weight)
        n_sent = n_clusters * tree.row_size(learners) + share.size
        metrics = reported(trained, n_sent) | memberships(new.omega, cohort)
        return State(FedRCServer(learners, mass, memory), new), metrics

    def deploy(key: Key, hyper: LocalHyper, state: State, data: ClientData) -> ModelTable:
        learners = tree.broadcast(state.server.learners, data.n_clients)
        return tree.own({"learners": learners, "pi": state.clients.omega})

    return Algorithm(init, round, deploy, mixed(model), loss=model.loss)


def new_memberships(gamma: Array, y: Array, is_example: Array, old: Memberships) -> Memberships:
    """The mean of gamma (clients, capacity, clusters) over the rows with ``is_example``, and its sum by label y."""
    by_label = jax.nn.one_hot(y, old.mass.shape[-1], dtype=jnp.float32)
    mass = jnp.einsum("nek,nec->nkc", jnp.where(is_example[..., None], gamma, 0.0), by_label, precision="highest")
    return Memberships(mixture_weights(gamma, is_example, empty=old.omega), mass)


def label_shares(mass: Array) -> Array:
    """C_k(y), (clusters, classes), from the masses of gamma; uniform for a cluster without mass."""
    mass = jnp.maximum(mass, FLOOR)
    return mass / mass.sum(1, keepdims=True)


def by_concept(losses: Array, y: Array, omega: Array, share: Array) -> Array:
    """The E step: ``gamma_k ~ omega_k exp(-l_k) / C_k(y)``, from losses (..., clusters) and labels (...)."""
    return responsibilities(losses + jnp.log(share).T[y], omega)
