"""What the server makes of what it receives: means, robust means, steps of a server optimiser; of one or K models."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import server, tree
from fljax.rounds.check_like import check_like
from fljax.rounds.sharing import compose, split
from fljax.server.aggregate import cluster_mean, weighted_mean
from fljax.server.optimizer import server_numbers, server_optimizer, server_step
from fljax.types import Params, Stacked


def _no_memory(hyper: Any, shared: Params) -> tuple[()]:
    return ()


class Combine(NamedTuple):
    """How the server's model follows from the participants' models: a pair of functions, like an optax transformation.

    ``apply(hyper, memory, shared, received, weight) -> (shared, memory)`` with the model before the round, the received
    ones (cohort, ...) and their weights (cohort,); one of weight 0 must not count; where all are 0 ``shared`` stays.
    ``init(hyper, shared) -> memory`` is what the server remembers from round to round; () by default.
    ``members(hyper, memory, centers, received, weight, label) -> (centers, memory)`` is a quicker form of `members_of`,
    where there is one.
    """

    apply: Callable[..., tuple[Params, Any]]
    init: Callable[[Any, Params], Any] = _no_memory
    members: Callable[..., tuple[Stacked, Any]] | None = None
    name: str = ""
    sums: bool = False  # the received models matter only by their weighted mean
    goal: "Combine | None" = None  # the rule under a server's own step (`part_way`, `stepped`); None: this one


Server = Callable[..., Params]
"""``combine(hyper, shared, received, weight) -> shared``: the short form of a `Combine` without memory."""

Combining = Combine | Server
"""What the slot ``combine`` of a method takes."""


@cache
def as_combine(combine: Combining) -> Combine:
    """A `Combine` of either form; a part without any leaf (nothing is shared) stays as it is."""
    if not isinstance(combine, Combine):
        if not callable(combine):
            raise ValueError(
                f"combine={combine!r} is no function; give one of fljax.rounds, such as fljax.rounds.median"
            )
        function = combine

        def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
            return function(hyper, shared, received, weight), memory

        combine = Combine(apply, name=getattr(function, "__name__", ""))
    inner, name = combine.apply, f" {combine.name}" if combine.name else ""

    def unless_empty(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        if not jax.tree.leaves(shared):
            return shared, memory
        new, memory = inner(hyper, memory, shared, received, weight)
        check_like(f"combine{name} gave a model", new, shared)
        return new, memory

    return combine._replace(apply=unless_empty)


def goal_of(combine: Combining) -> Combine:
    """What says where the server goes: ``combine`` without the server's own step, for what moves as the clients do."""
    combine = as_combine(combine)
    return combine.goal or combine


def memory_of(combine: Combine, hyper: Any, centers: Stacked) -> Any:
    """(clusters, ...) what ``combine`` remembers of each cluster before the first round."""
    return jax.vmap(lambda center: combine.init(hyper, center))(centers)


def members_of(
    combine: Combine, hyper: Any, memory: Any, centers: Stacked, received: Stacked, weight: Array, label: Array
) -> tuple[Stacked, Any]:
    """``combine`` inside every cluster: its members are the received models of its label.

    Args:
        combine: for one model.
        hyper: the method's numbers.
        memory: (clusters, ...) of every cluster.
        centers: (clusters, ...); a cluster without members keeps its row.
        received: (rows, ...) models.
        weight: (rows,) of each; 0 does not count.
        label: (rows,) int cluster of each; outside 0..clusters-1 it counts nowhere.

    Returns:
        The new centers and memory.
    """
    if combine.members is not None:
        return combine.members(hyper, memory, centers, received, weight, label)

    def one(cluster: tuple[Array, Params, Any]) -> tuple[Params, Any]:
        k, center, remembered = cluster
        return combine.apply(hyper, remembered, center, received, jnp.where(label == k, weight, 0.0))

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
    """The median of every coordinate; weights say only who counts."""
    return server.coordinate_median(received, weight > 0, shared)


def trimmed_mean(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The mean of every coordinate without a share ``hyper.trim`` of its smallest and of its largest entries."""
    return server.trimmed_mean(received, hyper.trim, weight > 0, shared)


def krum(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The one model that is nearest to its ``m - n_attackers - 2`` nearest others."""
    return server.krum(received, _whole(hyper.n_attackers), weight > 0, shared)


def multi_krum(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The mean of the ``n_selected`` models of least Krum score."""
    return server.multi_krum(received, _whole(hyper.n_attackers), _whole(hyper.n_selected), weight > 0, shared)


def bulyan(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """Of each coordinate the mean near the median, in all models but ``2 n_attackers``, taken by Krum."""
    return server.bulyan(received, _whole(hyper.n_attackers), weight > 0, shared)


def geometric_median(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """The model of least weighted sum of distances to the received ones (RFA)."""
    return server.geometric_median(received, weight, weight > 0, shared)


def _whole(value: Any) -> Array:
    return jnp.round(jnp.asarray(value, jnp.float32)).astype(jnp.int32)


def _step(hyper: Any, weight: Array) -> Any:
    return hyper.step


@cache
def part_way(combine: Combining, share: Callable[[Any, Array], Array | float] = _step) -> Combine:
    """The server goes a share of the way to what ``combine`` says: ``theta + share (goal - theta)``.

    ``share(hyper, weight)`` gives the share, by default ``hyper.step``. Running statistics go as far, but not beyond
    the goal: a variance might come out below 0.
    """
    inner = as_combine(combine)

    def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        goal, memory = inner.apply(hyper, memory, shared, received, weight)
        step = share(hyper, weight)
        (shared, before), (goal, after) = tree.split_statistics(shared), tree.split_statistics(goal)
        moved = jax.tree.map(lambda w, to: w + step * (to - w), shared, goal)
        known = jax.tree.map(lambda w, to: w + jnp.minimum(step, 1.0) * (to - w), before, after)
        return tree.join_statistics(moved, known), memory

    return Combine(apply, inner.init, name=inner.name, sums=inner.sums, goal=goal_of(inner))


@cache
def on_layers(combine: Combining, layers: tuple[str, ...]) -> Combine:
    """``combine`` on the named layers alone; the others stay as they are."""
    inner = as_combine(combine)

    def part(params: Params) -> Params:
        return split(params, layers)[1]

    def init(hyper: Any, shared: Params) -> Any:
        return inner.init(hyper, part(shared))

    def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        moved, memory = inner.apply(hyper, memory, part(shared), part(received), weight)
        return compose(split(shared, layers)[0], moved), memory

    return Combine(apply, init, name=inner.name, sums=inner.sums)


class Moments(NamedTuple):
    """What a server optimiser remembers, and what the combine under it does."""

    moments: Any
    inner: Any


@cache
def stepped(combine: Combining, optimizer: str) -> Combine:
    """The server takes an optimiser's step towards what ``combine`` says (Reddi et al., ICLR 2021).

    Args:
        combine: whose result less the server's model is the gradient, reversed.
        optimizer: "sgd", "momentum", "adagrad", "adam" or "yogi"; see `fljax.server.server_optimizer`.
    """
    inner = as_combine(combine)

    def step(hyper: Any, moments: Any, shared: Params, goal: Params) -> tuple[Params, Any]:
        return server_step(server_optimizer(optimizer, server_numbers(hyper)), moments, shared, goal)

    def init(hyper: Any, shared: Params) -> Moments:
        begun = server_optimizer(optimizer, server_numbers(hyper)).init(tree.trainable(shared))
        return Moments(begun, inner.init(hyper, shared))

    def apply(hyper: Any, memory: Moments, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        goal, remembered = inner.apply(hyper, memory.inner, shared, received, weight)
        moved, anybody = step(hyper, memory.moments, shared, goal), (weight > 0).any()
        # A round without anybody leaves the model and its moments.
        after = tree.where(anybody, moved, (shared, memory.moments))
        return after[0], Moments(after[1], remembered)

    def members(
        hyper: Any, memory: Moments, centers: Stacked, received: Stacked, weight: Array, label: Array
    ) -> tuple[Stacked, Moments]:
        goal, remembered = members_of(inner, hyper, memory.inner, centers, received, weight, label)
        moved = jax.vmap(partial(step, hyper))(memory.moments, centers, goal)
        # A cluster without members keeps its model and its moments.
        occupied = jax.ops.segment_sum(weight, label, tree.n_rows(centers)) > 0
        centers, moments = tree.where(occupied, moved, (centers, memory.moments))
        return centers, Moments(moments, remembered)

    return Combine(apply, init, members, name=f"{inner.name}+{optimizer}", sums=inner.sums, goal=goal_of(inner))
