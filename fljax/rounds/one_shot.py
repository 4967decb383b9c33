"""The rule of methods that group clients once: FedAvg for some rounds, then groups by the last updates sent."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.rounds.clustered import After, Clusters, Rule, Sent, as_labels, one_cluster
from fljax.types import ClientData, Cohort, Key, Model, Params, Stacked

Find = Callable[[Key, Any, Stacked, Array], Array]
"""``find(key, hyper, updates, has_sent) -> (clients,) labels``; an update is 0 where ``has_sent`` (clients,) is not."""


class Evidence(NamedTuple):
    """What the server keeps of a client's last upload, by which it is compared; never all 0."""

    none: Callable[[Params], Any]  # (initial model) -> zeros, those of one client that has sent nothing
    of: Callable[[Stacked, Stacked, Cohort], Any]  # (sent models, models they started from, cohort) -> (cohort, ...)


@checked_kinds
def one_shot_clustering(
    model: Model,
    find: Find,
    n_clusters: Positive | None = None,
    measure: Callable[[Stacked], Stacked] = tree.trainable,
) -> Rule:
    """One group for ``hyper.warmup`` rounds, a hyperparameter of the method; then the groups of ``find``.

    Args:
        model: the network.
        find: ``find(key, hyper, updates, has_sent) -> (clients,)`` labels from 0 of all clients, from the ``updates``
            (clients, ...) that they sent last. Where ``has_sent`` (clients,) is False, a client has sent no update: its
            row is 0, and it joins the largest group, whatever its label is.
        n_clusters: largest possible number of groups; None: the number of clients.
        measure: ``(updates) -> updates``, what is kept of them (clients, ...), without running statistics.

    Raises:
        ValueError: as a run starts: ``hyper`` has no ``warmup``, or ``find`` does not return a whole number per client.
    """

    def none(theta: Params) -> Params:
        return jax.tree.map(lambda leaf: jnp.zeros_like(tree.at_least_float32(leaf)), tree.trainable(theta))

    def update(sent: Stacked, start: Stacked, cohort: Cohort) -> Stacked:
        return measure(tree.subtract(sent, start))

    return clustering_once(model, find, n_clusters, Evidence(none, update))


def clustering_once(model: Model, find: Find, n_clusters: int | None, evidence: Evidence) -> Rule:
    """`one_shot_clustering` by other ``evidence`` than updates, which ``find`` gets in their place."""

    def begin(key: Key, hyper: Any, data: ClientData) -> Clusters:
        if not hasattr(hyper, "warmup"):
            raise ValueError(f"{type(hyper).__name__} has no field warmup, the rounds before groups form; add it")
        theta = model.init(key)
        # `kept` has the evidence of the last uploads, (clients, ...); 0: none yet.
        return one_cluster(theta, data.n_clients, n_clusters, tree.broadcast(evidence.none(theta), data.n_clients))

    def before(hyper: Any, clusters: Clusters, cohort: Cohort) -> Clusters:
        # Until the groups form, all clients are in the first cluster, and the other clusters copy its model.
        n_slots = tree.n_rows(clusters.centers)
        row = jnp.where(cohort.round.astype(jnp.float32) < hyper.warmup, 0, jnp.arange(n_slots, dtype=jnp.int32))
        centers, memory = tree.take((clusters.centers, clusters.memory), row)
        return clusters._replace(centers=centers, memory=memory)

    def after(key: Key, hyper: Any, clusters: Clusters, sent: Sent, cohort: Cohort) -> After:
        measured = evidence.of(sent.params, tree.take(clusters.centers, sent.label), cohort)
        update = tree.put(clusters.kept, cohort.ids, measured, sent.weight > 0)
        round = cohort.round.astype(jnp.float32)
        forms = (round < hyper.warmup) & (round + 1 >= hyper.warmup)
        label = lax.cond(forms, lambda: found(key, hyper, update), lambda: clusters.label)
        return clusters._replace(label=label, kept=update), sent._replace(label=label[cohort.ids]), {}

    def found(key: Key, hyper: Any, update: Stacked) -> Array:
        has_sent = tree.squared_norms(update) > 0
        label = as_labels("a rule's find", find(key, hyper, update, has_sent), has_sent.shape[0])
        return unseen_to_largest(label, has_sent)

    return Rule(begin, before, after)


def unseen_to_largest(label: Array, has_sent: Array) -> Array:
    """``label`` (clients,) where ``has_sent``; the other clients join the largest group, the first one in a tie."""
    n_slots = label.shape[0]
    largest = jnp.argmax(jnp.bincount(jnp.where(has_sent, label, n_slots), length=n_slots)).astype(jnp.int32)
    return jnp.where(has_sent, label, largest)
