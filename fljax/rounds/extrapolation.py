"""A server that moves beyond the clients' mean if their updates differ in direction (FedExP)."""

from functools import cache
from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.rounds.combine import Combine, Combining, as_combine, goal_of
from fljax.types import Params, Stacked


@cache
def extrapolated(combine: Combining) -> Combine:
    """``theta + eta (goal - theta)``, ``eta = max(1, mean_i |w_i - theta|^2 / (2 (|goal - theta|^2 + epsilon)))``.

    ``goal`` is the result of ``combine``, the mean is weighted, epsilon is ``hyper.epsilon``; running statistics are
    those of the goal. Source: Jhunjhunwala, Wang, Joshi, ICLR 2023.
    """
    inner = as_combine(combine)

    def apply(hyper: Any, memory: Any, shared: Params, received: Stacked, weight: Array) -> tuple[Params, Any]:
        goal, memory = inner.apply(hyper, memory, shared, received, weight)
        step = tree.subtract(tree.trainable(goal), tree.trainable(shared))
        squared = jnp.where(weight > 0, tree.squared_norms(tree.moves(received, shared)), 0.0)
        mean_squared = jnp.vdot(weight, squared) / jnp.maximum(weight.sum(), 1e-12)
        eta = jnp.maximum(1.0, mean_squared / (2 * (tree.squared_norm(step) + hyper.epsilon)))
        return tree.map_trainable(lambda to, t, d: t + eta * d, goal, shared, step), memory

    return Combine(apply, inner.init, name=f"{inner.name}+exp", goal=goal_of(inner))
