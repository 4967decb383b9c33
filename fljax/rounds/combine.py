"""Aggregation at the server, of one or K models: means, robust means, steps of a server optimiser."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import server, tree
from fljax.argument_kinds import checked_kinds
from fljax.rounds.check_like import check_like
from fljax.server.aggregate import cluster_mean, weighted_mean
from fljax.server.optimizer import check_server_optimizer, server_numbers, server_optimizer, server_step
from fljax.types import Params, Stacked


def _no_memory(hyper: Any, shared: Params) -> tuple[()]:
    return ()


class Combine(NamedTuple):
    """Computes the server's model from the participants' models: a pair of functions, like an optax transformation.

    ``apply(hyper, memory, shared, received, weight) -> (shared, memory)`` gets the model before the round, the received
    models (cohort, ...) and their weights (cohort,). Models of weight 0 must not count; if all weights are 0,
    ``shared`` stays. ``init(hyper, shared) -> memory`` is the state before the first round; () by default.
    ``members(hyper, memory, centers, received, weight, label) -> (centers, memory)`` is an optional faster form of
    `members_of`.
    """

    apply: Callable[..., tuple[Params, Any]]
    init: Callable[[Any, Params], Any] = _no_memory
    members: Callable[..., tuple[Stacked, Any]] | None = None
    name: str = ""
    sums: bool = False  # the result depends on the received models only by their weighted mean
    goal: "Combine | None" = None  # the inner rule of a server's step (`interpolated`, `by_optimizer`); None: this rule


Server = Callable[..., Params]
"""``combine(hyper, shared, received, weight) -> shared``: the short form of a `Combine` without memory."""

Combining = Combine | Server
"""Values of a method's slot ``combine``."""


@checked_kinds
@cache
def as_combine(combine: Combining) -> Combine:
    """A `Combine` from either form; a part without leaves (nothing is shared) stays unchanged.

    Args:
        combine: ``(hyper, shared, received, weight) -> shared`` or a `Combine`.
    """
    if not isinstance(combine, Combine):
        function = combine

        def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
            return function(hyper, shared, received, weight), memory

        combine = Combine(apply, name=getattr(function, "__name__", ""))
    inner, name = combine.apply, f" {combine.name}" if combine.name else ""

    def unless_empty(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        if not jax.tree.leaves(shared):
            return shared, memory
        new, memory = inner(hyper, memory, shared, received, weight)
        check_like(f"combine{name} returned a model", new, shared)
        return new, memory

    return combine._replace(apply=unless_empty)


def goal_of(combine: Combining) -> Combine:
    """``combine`` without the server's own step, for values that follow the clients directly."""
    combine = as_combine(combine)
    return combine.goal or combine


def memory_of(combine: Combine, hyper: Any, centers: Stacked) -> Any:
    """(clusters, ...) the state of ``combine`` for each cluster before the first round."""
    return jax.vmap(lambda center: combine.init(hyper, center))(centers)


def members_of(
    combine: Combine, hyper: Any, memory: Any, centers: Stacked, received: Stacked, weight: Array, label: Array
) -> tuple[Stacked, Any]:
    """``combine`` inside every cluster: its members are the received models with its label.

    Args:
        combine: for one model.
        hyper: the method's hyperparameters.
        memory: (clusters, ...) state of ``combine``.
        centers: (clusters, ...); a cluster without members keeps its row.
        received: (rows, ...) models.
        weight: (rows,) weights; 0 does not count.
        label: (rows,) int cluster of each row; a row outside 0..clusters-1 counts for no cluster.

    Returns:
        The new centers and the new state.
    """
    if combine.members is not None:
        return combine.members(hyper, memory, centers, received, weight, label)

    def one(cluster: tuple[Array, Params, Any]) -> tuple[Params, Any]:
        k, center, cluster_memory = cluster
        return combine.apply(hyper, cluster_memory, center, received, jnp.where(label == k, weight, 0.0))

    return lax.map(one, (jnp.arange(tree.n_rows(centers), dtype=label.dtype), centers, memory))


def _mean(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
    return weighted_mean(received, weight, empty=shared), memory


def _mean_of_members(
    hyper: Any, memory: Any, centers: Stacked, received: Stacked, weight: Array, label: Array
) -> tuple[Stacked, Any]:
    return cluster_mean(received, weight, label, empty=centers), memory


mean = Combine(_mean, members=_mean_of_members, name="mean", sums=True)
"""``sum_i omega_i w_i / sum_i omega_i`` (FedAvg)."""


def median(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The median of every coordinate; of the weights, only whether they are positive matters."""
    return server.coordinate_median(received, weight > 0, shared)


def trimmed_mean(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The mean of every coordinate, without a share ``hyper.trim`` of its smallest and of its largest entries."""
    return server.trimmed_mean(received, hyper.trim, weight > 0, shared)


def krum(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The model that is nearest to its ``m - n_attackers - 2`` nearest other models."""
    return server.krum(received, _as_int(hyper.n_attackers), weight > 0, shared)


def multi_krum(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The mean of the ``n_selected`` models with the least Krum score."""
    return server.multi_krum(received, _as_int(hyper.n_attackers), _as_int(hyper.n_selected), weight > 0, shared)


def bulyan(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """For each coordinate, the mean near the median, over all but ``2 n_attackers`` models, selected by Krum."""
    return server.bulyan(received, _as_int(hyper.n_attackers), weight > 0, shared)


def geometric_median(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The model with the least weighted sum of distances to the received models (RFA)."""
    return server.geometric_median(received, weight, weight > 0, shared)


def _as_int(value: Any) -> Array:
    return jnp.round(jnp.asarray(value, jnp.float32)).astype(jnp.int32)


def _step(hyper: Any, weight: Array) -> Any:
    return hyper.step


@checked_kinds
@cache
def interpolated(combine: Combining, share: Callable[[Any, Array], Array | float] = _step) -> Combine:
    """The server moves a share of the way to the result of ``combine``: ``theta + share (goal - theta)``.

    Running statistics move by the same share, but not beyond the goal, where a variance could be negative.

    Args:
        combine: ``(hyper, shared, received, weight) -> shared`` or a `Combine`.
        share: ``(hyper, weight) -> share`` (), by default ``hyper.step``.
    """
    inner = as_combine(combine)

    def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        goal, memory = inner.apply(hyper, memory, shared, received, weight)
        step = share(hyper, weight)
        (shared, statistics), (goal, goal_statistics) = tree.split_statistics(shared), tree.split_statistics(goal)
        new_shared = jax.tree.map(lambda w, to: w + step * (to - w), shared, goal)
        new_statistics = jax.tree.map(lambda w, to: w + jnp.minimum(step, 1.0) * (to - w), statistics, goal_statistics)
        return tree.join_statistics(new_shared, new_statistics), memory

    return Combine(apply, inner.init, name=inner.name, sums=inner.sums, goal=goal_of(inner))


class Moments(NamedTuple):
    """The state of a server optimiser, and that of its inner combine."""

    moments: Any
    inner: Any


@checked_kinds
@cache
def by_optimizer(combine: Combining, optimizer: str) -> Combine:
    """The server makes an optimiser's step towards the result of ``combine`` (Reddi et al., ICLR 2021).

    Args:
        combine: the server's model minus its result is the gradient.
        optimizer: "sgd", "momentum", "adagrad", "adam" or "yogi"; see `fljax.server.server_optimizer`.
    """
    inner = as_combine(combine)
    check_server_optimizer(optimizer)

    def step(hyper: Any, moments: Any, shared: Params, goal: Params) -> tuple[Params, Any]:
        return server_step(server_optimizer(optimizer, server_numbers(hyper)), moments, shared, goal)

    def init(hyper: Any, shared: Params) -> Moments:
        moments = server_optimizer(optimizer, server_numbers(hyper)).init(tree.trainable(shared))
        return Moments(moments, inner.init(hyper, shared))

    def apply(hyper: Any, memory: Moments, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        goal, inner_memory = inner.apply(hyper, memory.inner, shared, received, weight)
        stepped, has_participants = step(hyper, memory.moments, shared, goal), (weight > 0).any()
        # A round without participants leaves the model and its moments unchanged.
        shared, moments = tree.where(has_participants, stepped, (shared, memory.moments))
        return shared, Moments(moments, inner_memory)

    def members(
        hyper: Any, memory: Moments, centers: Stacked, received: Stacked, weight: Array, label: Array
    ) -> tuple[Stacked, Moments]:
        goal, inner_memory = members_of(inner, hyper, memory.inner, centers, received, weight, label)
        stepped = jax.vmap(partial(step, hyper))(memory.moments, centers, goal)
        # A cluster without members keeps its model and its moments.
        has_members = jax.ops.segment_sum(weight, label, tree.n_rows(centers)) > 0
        centers, moments = tree.where(has_members, stepped, (centers, memory.moments))
        return centers, Moments(moments, inner_memory)

    return Combine(apply, init, members, name=f"{inner.name}+{optimizer}", sums=inner.sums, goal=goal_of(inner))
