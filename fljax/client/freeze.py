"""Losses and optimisers that keep some layers fixed, for methods that train one part of a model at a time."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax import tree
from fljax.client.given_gradients import without_gradient
from fljax.client.objectives import Loss
from fljax.client.optimizer import Elementwise
from fljax.types import Batch, Key, Params


def frozen_loss(loss: Loss, layers: tuple[str, ...]) -> Loss:
    """``loss`` with a gradient of exactly 0 in the named layers, whatever terms it has.

    Below the lowest trained layer there is no backward pass. Running statistics of a frozen layer are still updated. A
    newly initialised optimiser without weight decay keeps frozen parameters unchanged; others need `frozen_optimizer`.

    Args:
        loss: see `fljax.client.objectives`.
        layers: top-level names of the parameters; (): ``loss`` itself is returned.

    Raises:
        ValueError: in the loss, if the model lacks one of the layers.
    """
    if not layers:
        return loss

    def partly(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        tree.check_layers(layers, params)
        partly_frozen = {name: without_gradient(layer) if name in layers else layer for name, layer in params.items()}
        return loss(partly_frozen, batch, key, *own)

    return partly


def frozen_optimizer(optimizer: optax.GradientTransformation, layers: tuple[str, ...]) -> optax.GradientTransformation:
    """``optimizer`` that keeps the named layers unchanged, bit for bit; weight decay would otherwise change them.

    Args:
        optimizer: an optax transformation.
        layers: top-level names of the parameters; (): ``optimizer`` itself is returned.
    """
    if not layers:
        return optimizer

    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: optax.OptState, params: Any = None, **extra: Any) -> tuple[Any, optax.OptState]:
        moves, state = inner.update(updates, state, params, **extra)
        moved: Any = moves
        zeros = {name: jax.tree.map(jnp.zeros_like, moved[name]) for name in layers if name in moved}
        return moved | zeros, state

    kind = Elementwise if isinstance(optimizer, Elementwise) else optax.GradientTransformationExtraArgs
    return kind(optimizer.init, update)
