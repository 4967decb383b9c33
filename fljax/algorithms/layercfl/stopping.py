"""When a cluster is split: CFL's test of stationarity, the distance of its halves, and each client's half."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.ops import segment_min, segment_sum

from fljax import tree
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.server.aggregate import cluster_mean
from fljax.server.gradient_bounds import gamma_limit
from fljax.types import Stacked


@hyper
class SplitHyper(LocalHyper):
    eps_1: Scalar | None = number(
        None,
        "a cluster is stationary if its mean update is shorter than this; None: eps_share of the largest so far",
        least=0,
        infinite=True,
    )
    eps_2: Scalar | None = number(
        None,
        "a member is not stationary if its update is longer than this; None: eps_ratio times eps_1; inf: never split",
        least=0,
        infinite=True,
    )
    eps_share: Scalar = number(0.1, "eps_1 as a share of the largest mean update so far; 0.1 in the paper", least=0)
    eps_ratio: Scalar = number(4.0, "eps_2 in units of eps_1; 1 to 10 in the paper, 4 in CFL's code", least=0)
    spacing: Scalar | None = number(
        None,
        "a cluster is split only if its halves are farther apart than this many times the median distance of a member "
        "to its nearest neighbour (1 - cosine, or L2); None: without this test",
        least=0,
    )
    r_min: Scalar = number(
        20, "no split up to this round, counted from 0; -1: splits from the first", least=-1, infinite=True
    )
    min_size: Scalar = number(2, "a cluster with this many members or fewer is not split", least=0, infinite=True)


@hyper
class LayerCFLHyper(SplitHyper):
    gamma_max: Scalar | None = number(
        0.5,
        "a split needs sqrt((1 - alpha_cross) / 2) above this (cosine measures); None: without this test",
        least=0,
        most=1,
    )


class Norms(NamedTuple):
    """How far the clusters are from stationarity."""

    mean: Array  # (clusters,) |sum_i n_i / n_k Delta_i|
    largest: Array  # (clusters,) max_i |Delta_i|
    n_members: Array  # (clusters,) members that count


def update_norms(updates: Stacked, weight: Array, label: Array, member: Array, centers: Stacked) -> Norms:
    """Norms over the whole model of each cluster's mean update and of its longest update; 0 for an empty cluster.

    A square that overflows float32 is replaced by float32's largest number, so that the stored norm stays finite.
    """
    zero = jax.tree.map(jnp.zeros_like, centers)
    mean = cluster_mean(updates, weight, label, empty=zero)
    length = _length(updates)
    largest = jnp.where(member, length[None, :], 0.0).max(axis=1)
    return Norms(_length(mean), largest, member.sum(axis=1).astype(jnp.float32))


def _length(models: Stacked) -> Array:
    return jnp.sqrt(jnp.minimum(tree.squared_norms(models), jnp.finfo(jnp.float32).max))


def is_ripe(hyper: SplitHyper, norms: Norms, peak: Array, round: Array) -> Array:
    """(clusters,) bool: ``mean < eps_1`` and ``largest > eps_2``, enough members, and late enough."""
    eps_1 = hyper.eps_share * peak if hyper.eps_1 is None else hyper.eps_1
    eps_2 = hyper.eps_ratio * eps_1 if hyper.eps_2 is None else hyper.eps_2
    stationary = (norms.mean < eps_1) & (norms.largest > eps_2)
    return stationary & (norms.n_members > hyper.min_size) & (round.astype(jnp.float32) > hyper.r_min)


def is_apart(hyper: Any, measure: str, alpha: Array, cross: Array, member: Array) -> Array:
    """(clusters,) bool: whether the halves of each cluster's bipartition are far enough apart to be split.

    ``cross`` (clients,) comes from `best_bipartition`; ``member`` (clusters, clients) marks the members that count.
    """
    alpha_cross = jnp.where(member, cross[None, :], -jnp.inf).max(axis=1)
    are_apart = jnp.isfinite(alpha_cross)
    if measure.startswith("cos") and hyper.gamma_max is not None:
        are_apart &= gamma_limit(alpha_cross) > hyper.gamma_max
    if hyper.spacing is not None:
        # For each participant's own cluster, since most clusters may have no participant.
        own_cluster, counts = jnp.argmax(member, axis=0), member.any(axis=0)
        same_cluster = (own_cluster[:, None] == own_cluster[None, :]) & counts[:, None] & counts[None, :]
        pair = same_cluster & ~jnp.eye(alpha.shape[0], dtype=bool)
        nearest = jnp.where(pair, alpha, -jnp.inf).max(axis=1)
        own_median = jnp.nanmedian(jnp.where(same_cluster, nearest[None, :], jnp.nan), axis=1)
        unknown = jnp.full(member.shape[0], jnp.nan, own_median.dtype)
        typical = unknown.at[jnp.where(counts, own_cluster, member.shape[0])].set(own_median, mode="drop")
        self_similarity = 1.0 if measure.startswith("cos") else 0.0
        are_apart &= self_similarity - alpha_cross > hyper.spacing * (self_similarity - typical)
    return are_apart


def everyones_side(side: Array, counts: Array, label: Array, ids: Array) -> Array:
    """(clients,) bool: the half of its cluster to which each client goes.

    Args:
        side: (cohort,) the participants' halves.
        counts: (cohort,) bool: participants that count.
        label: (clients,) clusters.
        ids: (cohort,) of the participants.

    Returns:
        False in the half of the cluster's first participant. Clients that are absent or do not count go to the larger
        half, in a tie to the first participant's.
    """
    n = label.shape[0]
    is_decided, is_second = (jnp.zeros(label.shape, bool).at[ids].set(value) for value in (counts, side))
    first = segment_min(jnp.where(is_decided, jnp.arange(n, dtype=jnp.int32), n), label, n)
    is_second ^= is_second[jnp.where(first < n, first, 0)][label]
    is_larger = segment_sum(jnp.where(is_decided, jnp.where(is_second, 1, -1), 0), label, n) > 0
    return jnp.where(is_decided, is_second, is_larger[label])
