"""Aggregation of parts: of some layers, of layers that all clusters share, of each of several learners."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.rounds.combine import Combine, Combining, as_combine, members_of, memory_of
from fljax.rounds.sharing import compose, split
from fljax.types import Params, Stacked


@checked_kinds
def on_layers(combine: Combining, layers: tuple[str, ...]) -> Combine:
    """``combine`` on the named layers only; the other layers stay unchanged.

    Raises:
        ValueError: in a round, if the model lacks one of the layers.
    """
    return _on_layers(combine, tuple(layers) if isinstance(layers, list) else layers)


@cache
def _on_layers(combine: Combining, layers: tuple[str, ...]) -> Combine:
    inner = as_combine(combine)

    def part(params: Params) -> Params:
        return split(params, layers)[1]

    def init(hyper: Any, shared: Params) -> Any:
        return inner.init(hyper, part(shared))

    def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        new_part, memory = inner.apply(hyper, memory, part(shared), part(received), weight)
        return compose(split(shared, layers)[0], new_part), memory

    return Combine(apply, init, name=inner.name, sums=inner.sums)


@cache
def over_everybody(combine: Combining, common: tuple[str, ...]) -> Combine:
    """``combine`` of all participants on the layers ``common``, and of each cluster's members on the others."""
    inner = as_combine(combine)

    def init(hyper: Any, shared: Params) -> tuple[Any, Any]:
        own, base = split(shared, common)
        return inner.init(hyper, own), inner.init(hyper, base)

    def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        parts = zip(memory, split(shared, common), split(received, common), strict=True)
        (own, own_memory), (base, base_memory) = (inner.apply(hyper, *part, weight) for part in parts)
        return compose(own, base), (own_memory, base_memory)

    def members(
        hyper: Any, memory: Any, centers: Stacked, received: Stacked, weight: Array, label: Array
    ) -> tuple[Stacked, Any]:
        (own, base), (sent, sent_base) = split(centers, common), split(received, common)
        own, own_memory = members_of(inner, hyper, memory[0], own, sent, weight, label)
        shared_row = tree.first((memory[1], base))  # all rows are equal
        base, base_memory = tree.broadcast(inner.apply(hyper, *shared_row, sent_base, weight), tree.n_rows(own))
        return compose(own, base), (own_memory, base_memory)

    return Combine(apply, init, members, name=inner.name)


@cache
def of_each_learner(combine: Combining) -> Combine:
    """``combine`` for each of the (learners, ...) learners; participants send copies (rows, learners, ...)."""
    inner = as_combine(combine)

    def init(hyper: Any, learners: Stacked) -> Any:
        return memory_of(inner, hyper, learners)

    def apply(hyper: Any, memory: Any, learners: Stacked, copies: Stacked, weight: Array) -> tuple[Stacked, Any]:
        def one(learner: tuple[Any, Params, Stacked]) -> tuple[Params, Any]:
            learner_memory, shared, received = learner
            return inner.apply(hyper, learner_memory, shared, received, weight)

        return lax.map(one, (memory, learners, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), copies)))

    return Combine(apply, init, name=inner.name, sums=inner.sums)
