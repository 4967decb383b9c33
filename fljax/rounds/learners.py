"""Methods whose clients each train a copy of several learners, all of which the server combines."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax.rounds.combine import Combine, Combining, as_combine, memory_of
from fljax.types import Params, Stacked


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
