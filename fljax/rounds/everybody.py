"""Layers that all clusters share are combined over all participants, the other layers inside each cluster."""

from functools import cache
from typing import Any

from jax import Array

from fljax import tree
from fljax.rounds.combine import Combine, Combining, as_combine, members_of
from fljax.rounds.sharing import compose, split
from fljax.types import Params, Stacked


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
