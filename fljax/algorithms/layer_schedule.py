"""Which layers DC-PFL's clients exchange in which round, and what that costs."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.algorithms.accounting import traffic
from fljax.algorithms.splitting import Structure
from fljax.server.aggregate import cluster_mean
from fljax.server.distance import layer_discrepancy
from fljax.server.layers import where_layers
from fljax.types import Metrics, Stacked

EQUAL = 1e-6
"""A group whose mean discrepancy, of parameters scaled to [0, 1], is below this has equal members but for rounding."""


class LayerTable(NamedTuple):
    """Group models with the history of their layers. A group has the row of its label."""

    theta: Stacked  # (clients, ...) each layer as it was last averaged
    averaged: Array  # (clients, layers) int32 rounds that were done when it was
    interval: Array  # (clients, layers) int32 tau_kl, rounds between two averages: 1 or alpha


def average_due(
    table: LayerTable, layers: tuple[str, ...], due: Array, sent: Stacked, weight: Array, label: Array, round: Array
) -> LayerTable:
    """``Theta_kl <- mean of w_il over group k`` where ``due[k, l]``; a group without participants keeps what it has.

    Args:
        table: its rows are the groups of ``label``.
        layers: the model's, in the order of the table's columns.
        due: (clients, layers) bool, by group.
        sent: (cohort, ...) uploaded models.
        weight: (cohort,) 0: does not count.
        label: (cohort,) groups of the participants.
        round: () int32.
    """
    averaged = due & _met(table, weight, label)
    theta = where_layers(layers, averaged, cluster_mean(sent, weight, label, empty=table.theta), table.theta)
    return table._replace(theta=theta, averaged=jnp.where(averaged, round + 1, table.averaged))


def reschedule(
    table: LayerTable,
    layers: tuple[str, ...],
    sent: Stacked,
    weight: Array,
    label: Array,
    low: Array | float,
    alpha: Array | float,
) -> LayerTable:
    """New intervals from the discrepancies D_kl between the models sent and their groups'; arguments as above."""
    discrepancy = layer_discrepancy(sent, table.theta, jnp.where(weight > 0, label, -1), layers)
    interval = intervals(discrepancy, low, alpha)
    return table._replace(interval=jnp.where(_met(table, weight, label), interval, table.interval))


def refreshed(table: LayerTable, layers: tuple[str, ...], stale: Array, label: Array, own: Stacked) -> Stacked:
    """Clients' models with their ``stale`` (cohort, layers) layers taken from their group's."""
    return where_layers(layers, stale, tree.take(table.theta, label), own)


def stale(table: LayerTable, label: Array, seen: Array) -> Array:
    """(cohort, layers) bool: averaged by the client's group since the client last took part, ``seen`` rounds in."""
    return table.averaged[label] >= seen[:, None]


def _met(table: LayerTable, weight: Array, label: Array) -> Array:
    """(clients, 1) bool: groups of which somebody counts."""
    return (jax.ops.segment_sum(weight, label, table.averaged.shape[0]) > 0)[:, None]


def rounds_between(alpha: Array | float) -> Array:
    """``alpha`` as a whole number of rounds, at least 1."""
    return jnp.maximum(jnp.round(jnp.asarray(alpha, jnp.float32)), 1).astype(jnp.int32)


def intervals(discrepancy: Array, low: Array | float, alpha: Array | float) -> Array:
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


def exchanged(n_floats: Array, sent: Array, fetched: Array, groups: Structure, ids: Array) -> Metrics:
    """Uplink and downlink ``(cohort,)``: the layers sent and fetched, and a loss.

    In a trial round everyone sends a whole model and fetches one, and those whose group would split fetch a second
    model and send a second loss. A group of one exchanges nothing but losses.

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
    splits = (groups.on_trial & (n_next < n_members)).astype(jnp.float32)
    up, down = ((layers | groups.on_trial).astype(jnp.float32) @ n_floats for layers in (sent, fetched))
    together = n_members > 1
    return traffic(jnp.where(together, up, 0.0) + 1 + splits, jnp.where(together, down * (1 + splits), 0.0))
