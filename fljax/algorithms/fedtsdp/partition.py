"""FedTSDP's clusters: the test of cluster tendency, two stages of DBSCAN, and the clusters of absent clients."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.server.dbscan import dbscan
from fljax.server.distance import pairwise_l2
from fljax.server.divergence import js_divergence
from fljax.server.hopkins import hopkins
from fljax.server.labels import canonical, noise_to_singletons
from fljax.types import Key, Stacked

Stages = Literal["both", "outputs", "weights"]
"""Both stages, or only one."""


def tendency(key: Key, outputs: Array, counts: Array, n_probes: int | None, n_draws: int) -> tuple[Array, Array]:
    """Mean and standard deviation over draws of the Hopkins statistic of the outputs (clients, batch, classes)."""
    n_clients = outputs.shape[0]
    flat, n_probes = outputs.reshape(n_clients, -1), n_probes or max(2, n_clients // 4)
    draws = lax.map(lambda k: hopkins(k, flat, n_probes, 1, counts), jax.random.split(key, n_draws))
    return draws.mean(), draws.std()


def two_stages(hyper: Any, outputs: Array, models: Stacked, counts: Array, stages: Stages) -> Array:
    """The participants' clusters (cohort,): by outputs, then within those by weights; noise clients are singletons.

    Args:
        hyper: has ``eps_outputs``, ``eps_weights`` and ``min_samples``, see `FedTSDPHyper`.
        outputs: (cohort, batch, classes) distributions over the classes.
        models: (cohort, ...).
        counts: (cohort,) bool: clients that count; the others get -1.
        stages: static.
    """
    one_group, min_samples = jnp.where(counts, 0, -1), jnp.ceil(hyper.min_samples).astype(jnp.int32)
    distance, eps = [], []
    if stages != "weights":
        distance, eps = [js_divergence(outputs, counts)], [hyper.eps_outputs]
    if stages != "outputs":
        distance, eps = [*distance, pairwise_l2(models, counts)], [*eps, hyper.eps_weights]

    def stage(group: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        label = dbscan(*inputs, min_samples, counts, group)
        return noise_to_singletons(label, counts), None

    # In a loop, so that the program contains DBSCAN once.
    return lax.scan(stage, one_group, (jnp.stack(distance), jnp.stack(eps)))[0]


def everyones_cluster(old: Array, new: Array, ids: Array) -> Array:
    """The partition of all clients (clients,) from that of the participants.

    Args:
        old: (clients,) clusters so far.
        new: (cohort,) new clusters of the participants; -1 for one that does not count.
        ids: (cohort,) of the participants.

    Returns:
        (clients,) canonical. An absent client joins the new cluster with most of its former co-members, the lowest in a
        tie; the members of an old cluster without participants stay together.
    """
    n_clients = old.shape[0]
    # Numbered by client, not by position in the cohort, so that ties do not depend on the cohort's order.
    new = canonical(jnp.full(n_clients, -1, jnp.int32).at[ids].set(new))
    target = jnp.where(new >= 0, new, n_clients)
    n_moved = jnp.zeros((n_clients, n_clients), jnp.int32).at[old, target].add(1, mode="drop")
    followed = jnp.where(n_moved.max(axis=1) > 0, jnp.argmax(n_moved, axis=1), n_clients + jnp.arange(n_clients))[old]
    return canonical(jnp.where(new >= 0, new, followed))
