"""How strongly each client is held near its cluster's model: FedCPS's lambda_i, estimated from noise and spread."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import Loss
from fljax.client.optimizer import LocalHyper
from fljax.types import Batch, Key, Params

FLOOR = 0.1
"""tau^2 never falls below this share of its first measurement: the pull itself makes the spread smaller."""


class Spread(NamedTuple):
    """How far each cluster's members drift from its model; the server keeps it."""

    tau2: Array  # (clusters,) running mean of the squared drift per parameter; 0: not measured yet
    first: Array  # (clusters,) its first measurement


def no_spread(n_clusters: int) -> Spread:
    """Before the first measurement."""
    return Spread(jnp.zeros(n_clusters), jnp.zeros(n_clusters))


def update_spread(spread: Spread, drift: Array, weight: Array, label: Array, memory: Array | float) -> Spread:
    """``tau^2 <- memory tau^2 + (1 - memory) mean drift`` over each cluster's members, at least `FLOOR` of the first.

    Args:
        spread: before the round.
        drift: (clients,) squared drift per parameter; what is not finite does not count.
        weight: (clients,) 0: does not count.
        label: (clients,) int32 cluster of each.
        memory: in [0, 1).
    """
    n_clusters, counts = spread.tau2.shape[0], (weight > 0) & jnp.isfinite(drift)
    total = jax.ops.segment_sum(jnp.where(counts, drift, 0.0), label, n_clusters)
    n_members = jax.ops.segment_sum(counts.astype(jnp.float32), label, n_clusters)
    mean = total / jnp.maximum(n_members, 1.0)
    first = jnp.where(spread.first > 0, spread.first, mean)
    mixed = jnp.where(spread.tau2 > 0, memory * spread.tau2 + (1 - memory) * mean, mean)
    return Spread(jnp.where(n_members > 0, jnp.maximum(mixed, FLOOR * first), spread.tau2), first)


def adaptive_pull(sigma2: Array, tau2: Array, relative_size: Array) -> Array:
    """``lambda_i = sigma_i^2 / (n_i^2 tau^2)`` with n_i relative to the mean size; 0 where tau^2 is not known yet.

    Args:
        sigma2: (clients,) variance of the client's batch gradients per parameter.
        tau2: (clients,) spread of the client's cluster.
        relative_size: (clients,) n_i / mean n, > 0.
    """
    pull = sigma2 / (relative_size**2 * jnp.where(tau2 > 0, tau2, 1.0))
    return jnp.where((tau2 > 0) & jnp.isfinite(pull), pull, 0.0)


def clip_pull(pull: Array, hyper: LocalHyper, round: Array) -> Array:
    """``pull`` within [0, 1 / learning rate of this round]: at the upper end a step lands on the anchor."""
    lr = hyper.lr if hyper.lr_decay is None else hyper.lr * hyper.lr_decay ** round.astype("float32")
    return jnp.clip(pull, 0.0, 1 / lr)


def pulled(loss: Loss, layers: tuple[str, ...]) -> Loss:
    """``loss(w) + lambda/2 |w - anchor|^2`` over the named layers only; its gradient adds ``lambda (w - anchor)``.

    The anchor and lambda are the first two of the client's own rows (see `fljax.client.train_clients`).
    """

    def penalised(params: Params, batch: Batch, key: Key, anchor: Params, pull: Array) -> tuple[Array, Params]:
        value, updated = loss(params, batch, key)
        away = tree.subtract(tree.select(params, layers), tree.select(anchor, layers))
        return value + pull / 2 * tree.squared_norm(away), updated

    return penalised
