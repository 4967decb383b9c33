"""Sharpness-aware minimisation as a term on any loss: gradients after a step of ascent."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.client.given_gradients import with_gradient
from fljax.client.objectives import Loss
from fljax.types import Batch, Key, Params


def sharpness_aware(loss: Loss, hyper: Any) -> Loss:
    """``loss`` with its gradient at ``w + rho g / |g|``, where g is its gradient at w; the value is that at w.

    A `fljax.rounds.local.Term`; it ignores the first of the client's own rows, the initial model.
    Source: Foret et al., ICLR 2021; for clients of FedAvg, Qu et al., ICML 2022 (FedSAM).
    """

    def uphill(params: Params, batch: Batch, key: Key, start: Params, *own: Any) -> tuple[Array, Params]:
        trainable, statistics = tree.split_statistics(params)

        def value(w: Params) -> tuple[Array, Params]:
            return loss(tree.join_statistics(w, statistics), batch, key, *own)

        def step(w: Params) -> tuple[Array, Params, Params]:
            (loss_here, updated), gradient = jax.value_and_grad(value, has_aux=True)(w)
            length = hyper.rho * jax.lax.rsqrt(jnp.maximum(tree.squared_norm(gradient), 1e-24))
            ascended = jax.tree.map(lambda w, g: w + length * g, w, gradient)
            return loss_here, tree.split_statistics(updated)[1], jax.grad(value, has_aux=True)(ascended)[0]

        loss_here, new_statistics = with_gradient(step, trainable)
        return loss_here, tree.join_statistics(trainable, new_statistics)

    return uphill
