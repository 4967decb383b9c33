"""Losses that leave some layers alone: for the methods that train one part of a model while another stands still."""

from typing import Any

import jax
from jax import Array

from fljax.client.objectives import Loss
from fljax.types import Batch, Key, Params


def frozen(loss: Loss, layers: tuple[str, ...]) -> Loss:
    """``loss`` whose gradient is exactly 0 in the named layers, whatever terms it has.

    An optimiser that starts afresh then leaves those parameters bit for bit as they are, and no backward pass is made
    below the lowest layer that moves. Running statistics of a frozen layer are still updated.

    Args:
        loss: see `fljax.client.objectives`.
        layers: top-level names of the parameters; () gives ``loss`` itself.
    """
    if not layers:
        return loss

    def partly(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        held = {name: jax.lax.stop_gradient(leaf) if name in layers else leaf for name, leaf in params.items()}
        return loss(held, batch, key, *own)

    return partly
