"""The weight of each client's proximal term: FedCPS's lambda_i, estimated from noise and spread."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.batch_gradients import gradient_variance
from fljax.client.objectives import proximal_per_client, training_loss
from fljax.numbers import Scalar
from fljax.rounds import train
from fljax.rounds.sharing import n_floats
from fljax.types import Cohort, Model, ModelTable, Stacked, Trained, Work

LambdaMode = Literal["fixed", "n_only", "adaptive", "per_client", "relative"]

FLOOR = 0.1
"""Least share of tau^2 relative to its first measurement, and of a client's tau^2 relative to its cluster's.

The proximal term itself makes the spread smaller."""

FLOORS: Mapping[LambdaMode, float] = {"adaptive": FLOOR, "per_client": FLOOR, "relative": 0.0}
"""Modes that measure a tau^2 -> its least value, as a share of its first measurement; "relative", a noise, may fall."""


class Spread(NamedTuple):
    """How far each cluster's members move away from its model; the server keeps it."""

    tau2: Array  # (clusters,) running mean of the squared drift per parameter; 0: not measured yet
    first: Array  # (clusters,) its first measurement
    away: Any = ()  # "per_client": (clusters,) running mean of the squared distance after training; 0: unknown


def no_spread(n_clusters: int, per_client: bool = False) -> Spread:
    """Before the first measurement."""
    zeros = jnp.zeros(n_clusters, jnp.float32)
    return Spread(zeros, zeros, zeros if per_client else ())


def update_spread(
    spread: Spread, drift: Array, weight: Array, label: Array, memory: Scalar, away: Any = (), floor: float = FLOOR
) -> Spread:
    """``tau^2 <- memory tau^2 + (1 - memory) mean drift`` over each cluster's members, with a lower bound.

    Args:
        spread: before the round.
        drift: (clients,) squared drift per parameter; values that are not finite do not count.
        weight: (clients,) 0: does not count.
        label: (clients,) int32 cluster of each client.
        memory: in [0, 1).
        away: (clients,) squared distance after training, if it is kept; averaged likewise, without a lower bound.
        floor: the lower bound as a share of the first measurement, in [0, 1].
    """
    mean, is_new = _member_mean(drift, weight, label, spread.tau2.shape[0])
    first = jnp.where(spread.first > 0, spread.first, mean)
    tau2 = jnp.where(is_new, jnp.maximum(_running_mean(spread.tau2, mean, memory), floor * first), spread.tau2)
    if isinstance(away, tuple):
        return Spread(tau2, first)
    mean, is_new = _member_mean(away, weight, label, spread.tau2.shape[0])
    return Spread(tau2, first, jnp.where(is_new, _running_mean(spread.away, mean, memory), spread.away))


def _member_mean(value: Array, weight: Array, label: Array, n_clusters: int) -> tuple[Array, Array]:
    """Mean over each cluster's members of positive weight, (clusters,), and whether there are any."""
    counts = (weight > 0) & jnp.isfinite(value)
    total = jax.ops.segment_sum(jnp.where(counts, value, 0.0), label, n_clusters)
    n_members = jax.ops.segment_sum(counts.astype(jnp.float32), label, n_clusters)
    return total / jnp.maximum(n_members, 1.0), n_members > 0


def _running_mean(old: Array, new: Array, memory: Scalar) -> Array:
    return jnp.where(old > 0, memory * old + (1 - memory) * new, new)


def spread_of(spread: Spread, label: Array, own_distance: Any) -> Array:
    """tau_i^2 (clients,): tau^2 of the client's cluster; with "per_client", times the client's own share.

    The share is the client's ``own_distance`` over its cluster's mean, at least `FLOOR`; 1 until both are known. A
    client that moves less than its cluster's mean gets a larger lambda next time, one that moves more a smaller one.
    """
    tau2 = spread.tau2[label]
    if isinstance(own_distance, tuple):
        return tau2
    mean_distance = spread.away[label]
    share = jnp.maximum(own_distance / jnp.where(mean_distance > 0, mean_distance, 1.0), FLOOR)
    return tau2 * jnp.where((own_distance > 0) & (mean_distance > 0), share, 1.0)


def distance(models: Stacked, theta: ModelTable, layers: tuple[str, ...]) -> Array:
    """``|w_i - theta_{a_i}|^2`` (clients,) over the named layers, per parameter."""
    difference = tree.subtract(tree.select(models, layers), tree.select(tree.stacked(theta), layers))
    squared = tree.squared_norms(difference).astype(jnp.float32)
    return squared / n_floats(tree.row(theta.params, jnp.int32(0)), layers)


def adaptive_lambda(sigma2: Array, tau2: Array, relative_size: Array) -> Array:
    """``lambda_i = sigma_i^2 / (n_i^2 tau^2)`` with n_i relative to the mean size; 0 where tau^2 is not known yet.

    Args:
        sigma2: (clients,) variance of the client's batch gradients per parameter.
        tau2: (clients,) see `spread_of`.
        relative_size: (clients,) n_i / mean n, > 0.
    """
    lam = sigma2 / (relative_size**2 * jnp.where(tau2 > 0, tau2, 1.0))
    return jnp.where((tau2 > 0) & jnp.isfinite(lam), lam, 0.0)


def strength(
    model: Model, work: Work, mode: LambdaMode, hyper: Any, start: ModelTable, size: Array, tau2: Array, cohort: Cohort
) -> tuple[Array, Array]:
    """lambda_i and the noise in its numerator (0 in modes without it): (clients,) each.

    Clients train from ``start``; ``size`` is n_i / mean n; ``tau2`` is as in `adaptive_lambda`.
    """
    noise = lam = jnp.zeros(size.shape, jnp.float32)
    if mode == "fixed":
        lam = lam + hyper.strength
    elif mode == "n_only":
        lam = hyper.strength / size**2
    else:
        sigma2 = gradient_variance(cohort.key, start, cohort.data, training_loss(model), work.batch_size)
        noise, lam = sigma2 / size**2, hyper.strength * adaptive_lambda(sigma2, tau2, size)
    return jnp.clip(lam, 0.0, 1 / hyper.lr_of(cohort.round)), noise  # with 1/lr a step lands on the anchor


def training(
    model: Model,
    work: Work,
    layers: tuple[str, ...],
    hyper: Any,
    start: ModelTable,
    theta: ModelTable,
    lam: Array,
    cohort: Cohort,
    key_free: Array | None,
) -> tuple[Trained, Array, Array]:
    """Trains clients from ``start``, held near ``theta`` on the named layers.

    Returns:
        The training; its `distance` from ``theta``; and the distance after one epoch without the proximal term, with
        the keys ``key_free`` (0 if None). A distance is NaN where training diverged.
    """
    loss, no_lambda = proximal_per_client(training_loss(model), layers), jnp.zeros_like(lam)

    def near(work: Work, key: Array, lam: Array) -> tuple[Trained, Array]:
        result = train(hyper, start, cohort._replace(key=key), loss, work, theta, lam)
        return result, jnp.where(result.ok, distance(result.params, theta, layers), jnp.nan)

    if key_free is not None and work.epochs == 1:  # two trainings that differ only in lambda: compiled once
        n_clients = lam.shape[0]
        zeros = jax.tree.map(lambda leaf: jnp.zeros((n_clients, *leaf.shape[1:]), leaf.dtype), start.params)
        empty = Trained(zeros, jnp.zeros(n_clients, jnp.float32), jnp.zeros(n_clients, bool))
        inputs = jnp.stack([key_free, cohort.key]), jnp.stack([no_lambda, lam])
        trained, (drift, away) = lax.scan(lambda _, row: near(work, *row), empty, inputs)
        return trained, away, drift
    drift = no_lambda if key_free is None else near(work.for_epochs(1), key_free, no_lambda)[1]
    return *near(work, cohort.key, lam), drift
