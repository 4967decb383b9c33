"""Sharpness-aware minimisation as a term on any loss: gradients after a step of ascent."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.objectives import Loss, with_gradient
from fljax.types import Batch, Key, Params


def sharpness_aware(loss: Loss, hyper: Any) -> Loss:
    """``loss`` with its gradient at ``w + rho g / |g|``, where g is its gradient at w; the value is that at w.

    A `fljax.rounds.local.Term`; it ignores the first of the client's own rows, the initial model.
    Source: Foret et al., ICLR 2021; for clients of FedAvg, Qu et al., ICML 2022 (FedSAM).
    """

    def uphill(params: Params, batch: Batch, key: Key, start: Params, *own: Any) -> tuple[Array, Params]:
        trainable, statistics = tree.split_statistics(params)
        fixed = jax.lax.stop_gradient(trainable)

        def value(w: Params) -> tuple[Array, Params]:
            return loss(tree.join_statistics(w, statistics), batch, key, *own)

        (loss_here, updated), gradient = jax.value_and_grad(value, has_aux=True)(fixed)
        step = hyper.rho * jax.lax.rsqrt(jnp.maximum(tree.squared_norm(gradient), 1e-24))
        ascended = jax.tree.map(lambda w, g: w + step * g, fixed, gradient)
        direction = jax.grad(value, has_aux=True)(ascended)[0]
        new_statistics = tree.split_statistics(jax.lax.stop_gradient(updated))[1]
        return with_gradient(loss_here, trainable, direction), tree.join_statistics(trainable, new_statistics)

    return uphill
