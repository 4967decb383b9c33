"""Bulyan: repeated selection of models by Krum, then a mean of the entries near every coordinate's median."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax import tree
from fljax.server.checks import check_one, everyone, n_rows
from fljax.server.entry import checked, compiled
from fljax.server.krum import BAD_CLIENTS, scores_and_reach, symmetric_distances
from fljax.server.robust import by_coordinate, is_within_reach
from fljax.types import AnyArray, Params, Stacked


@checked(n_attackers=BAD_CLIENTS)
@compiled
def bulyan(
    stacked: Stacked, n_attackers: ArrayLike, where: AnyArray | None = None, empty: Params | None = None
) -> Params:
    """The mean of every coordinate over the ``m - 4 f`` entries nearest to the median, among ``m - 2 f`` chosen models.

    Models are chosen one after another, each by `krum` among the remaining ones. El Mhamdi, Guerraoui, Rouault: The
    Hidden Vulnerability of Distributed Learning in Byzantium, ICML 2018. The paper requires ``m >= 4 f + 3`` for m
    participants; with fewer, at least one model is chosen and at least one entry averaged.

    If two entries are equally far from the median, the lower comes first. Differentiable with respect to the models,
    with the choice of models and entries held fixed.

    Args:
        stacked: (clients, d) array or leaves (clients, ...). Means of integers are rounded, as in `mix`.
        n_attackers: f, number of attackers to tolerate; 0 (the mean) or more, may be traced.
        where: (clients,) bool participants; None: all. Clients with NaN or a norm above 3e18 are excluded.
        empty: one model, the result without participants; None: zeros.

    Returns:
        One model.
    """
    check_one(n_attackers=n_attackers)
    n, f = n_rows("stacked", stacked), jnp.asarray(n_attackers, jnp.int32)
    where = everyone(n, where, "stacked") & is_within_reach(stacked)
    square = symmetric_distances(lax.stop_gradient(stacked), where)
    m = where.sum(dtype=jnp.int32)
    n_chosen = jnp.clip(m - 2 * f, jnp.minimum(m, 1), m)
    n_averaged = jnp.clip(n_chosen - 2 * f, 1, jnp.maximum(n_chosen, 1))

    def choose(i: Array, is_chosen: Array) -> Array:
        score, reach = scores_and_reach(square, where & ~is_chosen, f)
        reach = jnp.where(score == score.min(), reach, jnp.inf)
        return jnp.where(i < n_chosen, is_chosen.at[jnp.argmin(reach)].set(True), is_chosen)

    is_chosen = lax.fori_loop(0, n, choose, jnp.zeros(n, bool))
    return by_coordinate(
        lambda column: _near_median(tree.at_least_float32(column), is_chosen, n_averaged), stacked, is_chosen, empty
    )


def _near_median(column: Array, is_chosen: Array, n_averaged: Array) -> Array:
    """(width,) the mean of the ``n_averaged`` chosen entries nearest to their median, from (n, width)."""
    n = jnp.maximum(is_chosen.sum(), 1)
    values = jnp.sort(jnp.where(is_chosen[:, None], column, jnp.inf), axis=0)
    median = (values[(n - 1) // 2] + values[n // 2]) / 2
    order = jnp.argsort(jnp.abs(values - median[None]), axis=0, stable=True)
    is_near = jnp.arange(values.shape[0])[:, None] < n_averaged
    nearest = jnp.where(is_near, jnp.take_along_axis(values, order, axis=0), 0)
    return nearest.sum(axis=0) / n_averaged.astype(values.dtype)
