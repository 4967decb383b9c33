"""Losses and optimisers that leave some layers alone: for methods that train one part while another stands still."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fljax.client.objectives import Loss
from fljax.client.optimizer import Elementwise
from fljax.types import Batch, Key, Params


def frozen(loss: Loss, layers: tuple[str, ...]) -> Loss:
    """``loss`` whose gradient is exactly 0 in the named layers, whatever terms it has.

    No backward pass is made below the lowest layer that moves. Running statistics of a frozen layer are still updated.
    An optimiser without weight decay that starts afresh leaves those parameters as they are; for others see `still`.

    Args:
        loss: see `fljax.client.objectives`.
        layers: top-level names of the parameters; () gives ``loss`` itself.

    Raises:
        ValueError: in the loss, of a model that has no such layer.
    """
    if not layers:
        return loss

    def partly(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        if unknown := [name for name in layers if name not in params]:
            raise ValueError(f"layers {unknown} are not in the model, which has {', '.join(params)}")
        held = {name: jax.lax.stop_gradient(leaf) if name in layers else leaf for name, leaf in params.items()}
        return loss(held, batch, key, *own)

    return partly


def still(optimizer: optax.GradientTransformation, layers: tuple[str, ...]) -> optax.GradientTransformation:
    """``optimizer`` that leaves the named layers bit for bit as they are; weight decay alone would move them.

    Args:
        optimizer: an optax transformation.
        layers: top-level names of the parameters; () gives ``optimizer`` itself.
    """
    if not layers:
        return optimizer

    inner = optax.with_extra_args_support(optimizer)

    def update(updates: Any, state: optax.OptState, params: Any = None, **more: Any) -> tuple[Any, optax.OptState]:
        moves, state = inner.update(updates, state, params, **more)
        moved: Any = moves
        held = {name: jax.tree.map(jnp.zeros_like, moved[name]) for name in layers if name in moved}
        return moved | held, state

    kind = Elementwise if isinstance(optimizer, Elementwise) else optax.GradientTransformationExtraArgs
    return kind(optimizer.init, update)
