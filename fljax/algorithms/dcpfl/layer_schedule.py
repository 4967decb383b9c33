"""Which layers DC-PFL's clients exchange in which round, and the traffic of this."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.algorithms.dcpfl.splitting import Structure, is_warmup
from fljax.algorithms.dcpfl.units import Units
from fljax.numbers import Scalar
from fljax.rounds import Sent, traffic
from fljax.server.aggregate import cluster_mean
from fljax.server.discrepancy import layer_discrepancy
from fljax.server.inherit import inherit
from fljax.server.layers import due_layers
from fljax.types import Metrics, Stacked

EQUAL = 1e-6
"""A mean discrepancy (of parameters scaled to [0, 1]) below this is rounding error: the group's members are equal."""


class LayerTable(NamedTuple):
    """Group models and the history of their layers; a group's label is its row."""

    theta: Stacked  # (clients, ...) each layer as it was last averaged
    averaged: Array  # (clients, layers) int32 rounds done after its last average
    interval: Array  # (clients, layers) int32 tau_kl, rounds between two averages: 1 or alpha


def synchronise(
    hyper: Any, table: LayerTable, units: Units, before: Structure, groups: Structure, sent: Sent, round: Array
) -> tuple[LayerTable, Array]:
    """Averages the layers that are due; when all are due, also computes new intervals.

    Args:
        hyper: has ``alpha``, ``low`` and ``warmup``.
        table: its rows are the groups of ``before``.
        units: what counts as a layer.
        before: the groups when the round began.
        groups: after the round; after a split, each group takes over its parent's row.
        sent: the uploaded models, who counts, and their groups.
        round: () int32.

    Returns:
        The table, and (clients, layers) bool by group: which layers were due.
    """
    table = inherit(table, before.label, groups.label)
    # All layers: in the warm-up, every alpha rounds, and when a trial needs whole models or ends with them.
    full = is_warmup(hyper, round) | due_layers(round, rounds_between(hyper.alpha)) | before.on_trial | groups.on_trial
    due = full | due_layers(round, table.interval)
    table = average_due(table, units, due, sent, round)
    return lax.cond(full, lambda t: reschedule(t, units, sent, hyper.low, hyper.alpha), lambda t: t, table), due


def average_due(table: LayerTable, units: Units, due: Array, sent: Sent, round: Array) -> LayerTable:
    """``Theta_kl <- mean of w_il over group k`` where ``due[k, l]``; a group without participants keeps its model."""
    is_averaged = due & _has_participants(table, sent)
    theta = units.where(is_averaged, cluster_mean(*sent, empty=table.theta), table.theta)
    return table._replace(theta=theta, averaged=jnp.where(is_averaged, round + 1, table.averaged))


def reschedule(table: LayerTable, units: Units, sent: Sent, low: Scalar, alpha: Scalar) -> LayerTable:
    """New intervals from the discrepancies D_kl between the models sent and their groups' models."""
    label = jnp.where(sent.weight > 0, sent.label, -1)
    discrepancy = layer_discrepancy(units.apart(sent.params), units.apart(table.theta), label, units.names)
    interval = intervals(discrepancy, low, alpha)
    return table._replace(interval=jnp.where(_has_participants(table, sent), interval, table.interval))


def refreshed(table: LayerTable, units: Units, stale: Array, label: Array, models: Stacked) -> Stacked:
    """Clients' models, their ``stale`` (cohort, layers) layers replaced by those of the group's model."""
    return units.where(stale, tree.take(table.theta, label), models)


def stale(table: LayerTable, label: Array, n_done: Array) -> Array:
    """(cohort, layers) bool: averaged by the client's group since the client's last participation, ``n_done``."""
    return table.averaged[label] >= n_done[:, None]


def _has_participants(table: LayerTable, sent: Sent) -> Array:
    """(clients, 1) bool: groups with a participant of positive weight."""
    return (jax.ops.segment_sum(sent.weight, sent.label, table.averaged.shape[0]) > 0)[:, None]


def rounds_between(alpha: Scalar) -> Array:
    """``alpha`` as a whole number of rounds, at least 1."""
    return jnp.maximum(jnp.round(jnp.asarray(alpha, jnp.float32)), 1).astype(jnp.int32)


def intervals(discrepancy: Array, low: Scalar, alpha: Scalar) -> Array:
    """``tau_kl``: alpha where ``D_kl < low * D_k`` (their mean over layers), else 1; alpha where members are equal.

    Args:
        discrepancy: (groups, layers) of `fljax.server.layer_discrepancy`.
        low: share of the mean below which a layer differs little.
        alpha: rounds between two averages of such a layer.

    Returns:
        (groups, layers) int32.
    """
    mean = discrepancy.mean(axis=1, keepdims=True)
    return jnp.where((discrepancy < low * mean) | (mean < EQUAL), rounds_between(alpha), 1)


def layer_traffic(n_floats: Array, sent: Array, fetched: Array, groups: Structure, ids: Array) -> Metrics:
    """Uplink and downlink ``(cohort,)``: the layers sent and fetched, and a loss.

    In a trial round every participant sends and fetches a whole model; participants whose group would split fetch a
    second model and send a second loss. A group of one exchanges only losses.

    Args:
        n_floats: (layers,) sizes.
        sent: (cohort, layers) bool.
        fetched: (cohort, layers) bool.
        groups: at the start of the round.
        ids: (cohort,) of the participants.
    """
    n_members, n_next = (
        jnp.bincount(label, length=label.shape[0])[label][ids] for label in (groups.label, groups.next_label)
    )
    # Groups only ever split, so a group of the same size is the same group.
    is_split = (groups.on_trial & (n_next < n_members)).astype(jnp.float32)
    up, down = (
        jnp.where(layers | groups.on_trial, n_floats, 0).astype(jnp.float32).sum(-1) for layers in (sent, fetched)
    )
    has_peers = n_members > 1
    return traffic(jnp.where(has_peers, up, 0.0) + 1 + is_split, jnp.where(has_peers, down * (1 + is_split), 0.0))
