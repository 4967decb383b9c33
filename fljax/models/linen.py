"""From a flax.linen module to a `Model`: pure functions over one plain dict of parameters."""

from collections.abc import Hashable
from functools import cache
from typing import cast

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from fljax.tree import STATISTICS, join_statistics, split_statistics
from fljax.types import Key, Model, Params


def from_linen(module: nn.Module, input_shape: tuple[int, ...], layers: tuple[str, ...]) -> Model:
    """A flax module as a `Model`.

    Args:
        module: called as ``module(x, train)``; may use the random stream ``"dropout"`` and, for running statistics,
            the collection ``"batch_stats"``, which travels in the parameters under that name.
        input_shape: shape of one example, without the batch axis.
        layers: the module's weighted top-level submodules in forward order.

    Returns:
        The model. ``init`` gives ``{layer: subtree}``, in training mode ``apply`` gives back the same parameters with
        updated running statistics. Equal arguments give the same object, so nothing compiles twice.
    """
    return _adapt(cast(Hashable, module), input_shape, layers)


@cache
def _adapt(module: nn.Module, input_shape: tuple[int, ...], layers: tuple[str, ...]) -> Model:
    def init(key: Key) -> Params:
        variables = module.init(key, jnp.zeros((1, *input_shape)), False)
        return join_statistics(variables["params"], {k: v for k, v in variables.items() if k == STATISTICS})

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        trainable, statistics = split_statistics(params)
        variables = {"params": trainable, **statistics}
        if key is None:
            return cast(Array, module.apply(variables, x, False)), params
        logits, updated = module.apply(variables, x, True, rngs={"dropout": key}, mutable=[STATISTICS])
        return cast(Array, logits), join_statistics(trainable, updated)

    return Model(init, apply, layers)
