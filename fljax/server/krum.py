"""Krum and Multi-Krum: the models that are closest to their nearest neighbours (Blanchard et al. 2017)."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax.server.aggregate import weighted_mean
from fljax.server.checks import check_one, everyone, n_rows
from fljax.server.distance import pairwise_squared_l2
from fljax.server.entry import checked, compiled, count_from
from fljax.server.robust import is_within_reach
from fljax.types import AnyArray, Params, Stacked

BAD_CLIENTS = count_from(0, "number of attackers to tolerate")


@checked(n_attackers=BAD_CLIENTS)
@compiled
def krum_scores(stacked: Stacked, n_attackers: ArrayLike, where: AnyArray | None = None) -> Array:
    """Krum's score: the sum of a client's squared distances to its ``m - f - 2`` nearest other participants.

    Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017, which
    requires ``m >= 2 f + 3`` for m participants; with fewer, at least one neighbour counts.

    Args:
        stacked: (clients, d) array or leaves (clients, ...).
        n_attackers: f, number of attackers to tolerate; 0 or more, may be traced.
        where: (clients,) bool participants; None: all.

    Returns:
        (clients,) float32; +inf outside ``where``, and for clients with NaN or with a norm above 3e18, whose squared
        distances may overflow float32.
    """
    check_one(n_attackers=n_attackers)
    where = everyone(n_rows("stacked", stacked), where, "stacked") & is_within_reach(stacked)
    return scores_and_reach(symmetric_distances(stacked, where), where, n_attackers)[0]


def symmetric_distances(stacked: Stacked, where: Array) -> Array:
    """(n, n) squared distances of all pairs, exactly symmetric."""
    square = pairwise_squared_l2(stacked, where)
    return jnp.maximum(square, square.T)  # otherwise the scores of two mutual nearest neighbours might differ


def scores_and_reach(square: Array, where: Array, n_attackers: ArrayLike) -> tuple[Array, Array]:
    """`krum_scores` from squared distances (n, n), and each client's sum over all other participants."""
    n = where.shape[0]
    pairs = where[:, None] & where[None, :] & ~jnp.eye(n, dtype=bool)
    sorted_square = jnp.sort(jnp.where(pairs, square, jnp.inf), axis=1)
    m = where.sum()
    n_near = jnp.clip(m - jnp.asarray(n_attackers, jnp.int32) - 2, 1, jnp.maximum(m - 1, 1))
    is_near = jnp.arange(n, dtype=n_near.dtype) < n_near
    score = jnp.where(is_near[None, :] & (sorted_square < jnp.inf), sorted_square, 0).sum(axis=1)
    reach = jnp.where(pairs, square, 0).sum(axis=1)
    return jnp.where(where, score, jnp.inf), jnp.where(where, reach, jnp.inf)


def krum(
    stacked: Stacked, n_attackers: ArrayLike, where: AnyArray | None = None, empty: Params | None = None
) -> Params:
    """The client model with the lowest of `krum_scores`; ties and arguments as in `multi_krum`."""
    return multi_krum(stacked, n_attackers, 1, where, empty)


@checked(n_attackers=BAD_CLIENTS, n_selected=count_from(1, "number of models averaged"))
@compiled
def multi_krum(
    stacked: Stacked,
    n_attackers: ArrayLike,
    n_selected: ArrayLike,
    where: AnyArray | None = None,
    empty: Params | None = None,
) -> Params:
    """The mean of the ``n_selected`` client models with the lowest `krum_scores`.

    Among clients with equal scores, such as two mutual nearest neighbours, the one with the smallest sum of squared
    distances to all participants comes first, so that the order of clients does not matter; then the lowest index.
    Differentiable with respect to the models, with the selection held fixed.

    Args:
        stacked: (clients, d) array or leaves (clients, ...).
        n_attackers: f, number of attackers to tolerate; may be traced.
        n_selected: number of models averaged, at least 1; may be traced. All, if there are fewer participants.
        where: (clients,) bool participants; None: all.
        empty: one model, the result without participants; None: zeros.

    Returns:
        One model.
    """
    check_one(n_attackers=n_attackers, n_selected=n_selected)
    where = everyone(n_rows("stacked", stacked), where, "stacked") & is_within_reach(stacked)
    score, reach = scores_and_reach(symmetric_distances(lax.stop_gradient(stacked), where), where, n_attackers)
    index = jnp.arange(score.shape[0])
    is_nearer = (reach[None] < reach[:, None]) | ((reach[None] == reach[:, None]) & (index[None] < index[:, None]))
    is_before = (score[None] < score[:, None]) | ((score[None] == score[:, None]) & is_nearer)
    weight = (is_before.sum(axis=1) < jnp.asarray(n_selected, index.dtype)) & (score < jnp.inf)
    return weighted_mean(stacked, weight, empty)
