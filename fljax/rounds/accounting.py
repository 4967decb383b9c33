"""Clients' weights in an average, their clusters, and the traffic of a round: the same in every method."""

from typing import Literal

import jax.numpy as jnp
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.choices import check_choices
from fljax.rounds.wrapping import halves_of, with_halves
from fljax.types import Algorithm, ClientData, Cohort, Metrics, Trained

Weighting = Literal["size", "uniform"]
"""omega_i, a participant's weight in an average: n_i, the number of its examples, or 1."""


def traffic(uplink: Array | float, downlink: Array | float | None = None) -> Metrics:
    """Metrics: floats sent per participant and round, each way; scalars such as losses and ids count 1 each.

    ``downlink`` None: the same as ``uplink``.
    """
    downlink = uplink if downlink is None else downlink
    return {"uplink": jnp.asarray(uplink, jnp.float32), "downlink": jnp.asarray(downlink, jnp.float32)}


def reported(trained: Trained, uplink: Array | float, downlink: Array | float | None = None) -> Metrics:
    """The metrics of every round: losses, which results are finite, and `traffic`."""
    return {"loss": trained.loss, "ok": trained.ok, **traffic(uplink, downlink)}


def in_first_round(cohort: Cohort, floats: Array | float) -> Array:
    """``floats`` in the first round, 0 later: traffic that occurs only once, or before the first round."""
    return jnp.asarray(floats, jnp.float32) * (cohort.round == 0).astype(jnp.float32)


def client_weight(weighting: Weighting, cohort: Cohort, ok: Array) -> Array:
    """omega_i of the participants ``(cohort,)``: n_i or 1, and 0 for those that dropped out or diverged.

    Raises:
        ValueError: there is no such weighting.
    """
    check_choices(client_weight, {"weighting": weighting})
    counts = (cohort.active & ok).astype("float32")
    return counts * cohort.data.size.astype("float32") if weighting == "size" else counts


def total_weight(weighting: Weighting, data: ClientData) -> Array:
    """() the sum of omega_i over all clients."""
    return (data.size.sum() if weighting == "size" else jnp.asarray(data.n_clients)).astype("float32")


@checked_kinds
def not_independent(algorithm: Algorithm) -> Algorithm:
    """The method, marked: a client's message depends on other clients' data too.

    A mean of such messages is not private, even if each is clipped; secure sums of them are possible.
    """
    return algorithm if halves_of(algorithm).sees == "each" else with_halves(algorithm, sees="sum")


def memberships(share: Array, cohort: Cohort) -> Metrics:
    """Metrics from shares (cohort, clusters): each participant's main cluster, and the number of such clusters."""
    label = jnp.argmax(share, axis=1).astype(jnp.int32)
    return {"label": label, "n_clusters": n_occupied(label, cohort, share.shape[1])}


def n_occupied(label: Array, cohort: Cohort, n_clusters: int) -> Array:
    """Number of clusters with an active participant, from the ``label`` (cohort,) of each participant."""
    return occupied(jnp.where(cohort.active, label, -1), n_clusters).sum(dtype=jnp.int32)


def occupied(label: Array, n_clusters: int) -> Array:
    """(n_clusters,) bool: clusters that occur in ``label``; -1 stands for no cluster."""
    return jnp.bincount(jnp.where(label < 0, n_clusters, label), length=n_clusters) > 0
