"""FedDrift: a client whose loss rises starts a new model, and models that fit each other's clients merge.

Jothimurugesan, Hsieh, Wang, Joshi, Gibbons: Federated Learning under Distributed Concept Drift, AISTATS 2023,
https://arxiv.org/abs/2206.00799. Official code: https://github.com/microsoft/FedDrift.
Every ``every`` rounds a participant chooses the model with the least loss on its present data. If that loss is higher
than last time by more than ``rise`` (the paper's delta), its data have drifted: it starts a new model alone, which can
be merged the next time. `fljax.drift` makes federations that change.

Differences from the code: losses are compared, as in the paper; the code compares accuracies. A cluster's data are its
participants' present data, without past data. A model that no client holds is deleted at once. All clients start with
one model, as in one of the code's commands; in another, with one model each. A new model starts from the initial model;
in the code, from a copy of the client's best model. A merged model is weighted by examples; in the code, by clients and
times. A new client joins the cluster with the least training loss.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.choices import Positive
from fljax.client.measure import cross_loss
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Clusters, Combining, Rule, Sent, Weighting, clustered, mean, method, one_cluster, traffic
from fljax.rounds.accounting import occupied
from fljax.rounds.clustered import After
from fljax.rounds.combine import as_combine, memory_of
from fljax.server.aggregate import cluster_mean
from fljax.server.linkage import linkage
from fljax.server.tree_cuts import cut
from fljax.types import Algorithm, ClientData, Cohort, Key, Model, Params, Work


@hyper
class FedDriftHyper(LocalHyper):
    rise: Scalar = number(0.1, "rise of a client's loss that counts as drift; inf is FedAvg", least=0, infinite=True)
    merge: Scalar = number(0.1, "clusters merge up to this distance; in the paper equal to rise", least=0)
    every: Scalar = number(5.0, "rounds between two choices of models", least=1)


class Known(NamedTuple):
    """What the server remembers."""

    loss: Array  # (clients,) least loss of the last choice; the largest float before the first
    fresh: Params  # the initial model, from which a new model starts
    asked: Array  # () number of models sent to participants in this round to choose from; 0: none
    renewed: Array  # (models,) bool: models not among them, started or merged since


@method(FedDriftHyper, "Jothimurugesan et al., AISTATS 2023", "https://arxiv.org/abs/2206.00799", kind="clustered")
def feddrift(
    model: Model, work: Work, *, n_models: Positive = 8, weighting: Weighting = "size", combine: Combining = mean
) -> Algorithm:
    """FedDrift: ``a_i = argmin_k F_i(theta_k)``, a new model if ``min_k F_i`` rose by more; FedAvg in each.

    Clusters i, j merge (complete linkage) where ``max(L_ij - L_ii, L_ji - L_jj, 0) <= merge``; ``L_ij`` is the loss of
    model i on the data of cluster j. A merged model is the mean by examples.

    Args:
        n_models: largest number of models; when it is reached, a drifting client keeps the best model instead.
    """
    combining = as_combine(combine)

    def begin(key: Key, hyper: FedDriftHyper, data: ClientData) -> Clusters:
        theta, no_losses = model.init(key), jnp.full(data.n_clients, jnp.finfo(jnp.float32).max, jnp.float32)
        known = Known(no_losses, theta, jnp.float32(0), jnp.zeros(n_models, bool))
        return one_cluster(theta, data.n_clients, n_models, known)

    def before(hyper: FedDriftHyper, clusters: Clusters, cohort: Cohort) -> Clusters:
        def choose() -> Clusters:
            result = chosen(hyper, clusters, cohort, cross_loss(model, clusters.centers, cohort.data))
            # A deleted model leaves no momentum to a new one in its row.
            new_memory = memory_of(combining, hyper, tree.broadcast(clusters.kept.fresh, n_models))
            return result._replace(memory=tree.where(occupied(clusters.label, n_models), clusters.memory, new_memory))

        due = jnp.mod(cohort.round.astype(jnp.float32), jnp.round(hyper.every)) == 0
        unchanged = clusters._replace(kept=clusters.kept._replace(asked=jnp.float32(0)))
        return lax.cond(due, choose, lambda: unchanged)

    def after(key: Key, hyper: FedDriftHyper, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
        asked, n_parameters = clusters.kept.asked, tree.size(clusters.kept.fresh)
        n_renewed = clusters.kept.renewed[clusters.label[cohort.ids]].astype(jnp.float32)
        n_received = jnp.where(asked > 0, asked + n_renewed, 1.0)
        return clusters, sent, traffic(n_parameters + asked, n_parameters * n_received)

    return clustered(model, work, Rule(begin, before, after), combine=combine, weighting=weighting)


def chosen(hyper: FedDriftHyper, clusters: Clusters, cohort: Cohort, loss: Array) -> Clusters:
    """The clusters after participants have chosen among the models that have a client.

    Args:
        hyper: rise and merge.
        clusters: before.
        cohort: the clients that choose.
        loss: (cohort, models) of every model on each participant's data.
    """
    (last_loss, fresh, *_), ids, n_models = clusters.kept, cohort.ids, loss.shape[1]
    loss = jnp.where(jnp.isnan(loss), jnp.inf, loss)  # no client chooses a model whose loss is NaN
    is_held = occupied(clusters.label, n_models)
    is_new, held_loss = ~is_held, jnp.where(is_held[None], loss, jnp.inf)
    least_loss, best = held_loss.min(1), held_loss.argmin(1).astype(jnp.int32)
    counts = cohort.active & (cohort.data.size > 0) & jnp.isfinite(least_loss)
    # A client whose loss has risen starts a new model; the one with the lowest id gets the first free row.
    drifted = counts & (least_loss > last_loss[ids] + hyper.rise)
    place = (drifted[None] & (ids[None] < ids[:, None])).sum(1)
    free = jnp.argsort(is_held, stable=True).astype(jnp.int32)
    is_alone = drifted & (place < is_new.sum())
    choice = jnp.where(is_alone, free[jnp.minimum(place, n_models - 1)], best)
    label = clusters.label.at[ids].set(jnp.where(counts, choice, clusters.label[ids]))
    centers = tree.where(is_new, tree.broadcast(fresh, n_models), clusters.centers)
    # Existing models are compared, and merged, on the data of the clients that hold them now.
    mass = jnp.where((choice[:, None] == jnp.arange(n_models)[None]) & counts[:, None], cohort.data.size[:, None], 0)
    slot = merged(loss, jnp.where(is_new[None], 0, mass).astype(jnp.float32), hyper.merge)
    total = jnp.where(is_new, 0, mass.sum(0)).astype(jnp.float32)
    is_merged = jnp.bincount(slot, length=n_models) > 1
    least_loss = last_loss.at[ids].set(jnp.where(counts, least_loss, last_loss[ids]))
    known = Known(least_loss, fresh, is_held.sum().astype(jnp.float32), is_new | is_merged)
    return clusters._replace(centers=cluster_mean(centers, total, slot, centers), label=slot[label], kept=known)


def merged(loss: Array, mass: Array, height: Scalar) -> Array:
    """(models,) int32: the model that each one is merged into, the first of its group; itself if it does not merge.

    Args:
        loss: (cohort, models) of every model on each participant's data.
        mass: (cohort, models) examples of a participant, in the column of its model; a column of 0 does not merge.
        height: largest distance between models that merge.
    """
    total, n = mass.sum(0), loss.shape[1]
    present = total > 0
    finite = jnp.where(jnp.isfinite(loss), loss, jnp.finfo(jnp.float32).max / 4)
    mean_losses = tree.product(finite.T, mass) / jnp.maximum(total, 1)[None]
    rise = mean_losses - jnp.diagonal(mean_losses)[:, None]
    group = cut(linkage(jnp.maximum(jnp.maximum(rise, rise.T), 0.0), "complete", present), height, present)
    same_group = (group[:, None] == group[None]) & present[None] & present[:, None] | jnp.eye(n, dtype=bool)
    return jnp.argmax(same_group, axis=1).astype(jnp.int32)
