"""The loss of every single example under every center: what soft memberships are made of."""

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.batching import BATCH_SIZE, batching
from fljax.client.local import batch_rows
from fljax.client.map import map_clients
from fljax.client.measure import loss_score
from fljax.data.federation import minibatch
from fljax.types import ClientData, Examples, Model, Params, Stacked


def example_loss(model: Model, centers: Stacked, data: ClientData, batch_size: int = BATCH_SIZE) -> Array:
    """Loss of each client's examples under every center, evaluation mode: ``(clients, capacity, centers)``.

    Places past a client's size hold 0; mask them with `fljax.data.federation.present`. Models and examples are not
    copied, and a client of few examples does not wait for one of many.
    """
    n_clients, capacity = data.index.shape
    score = loss_score(model)
    batch = batching(score, centers, data, batch_size).size

    def under(center: Params) -> Array:
        def one(pool: Examples, index: Array, size: Array, center: Params) -> Array:
            def step(i: Array, losses: Array) -> Array:
                rows, weight = batch_rows(index, size, i, batch)
                value = score(center, minibatch(pool, rows, weight))[:, 0]
                value = jnp.where(weight > 0, value, 0.0).astype(losses.dtype)  # of a bfloat16 network it is bfloat16
                return lax.dynamic_update_slice(losses, value, (i * batch,))

            whole = -(-capacity // batch) * batch
            return lax.fori_loop(0, -(-size // batch), step, jnp.zeros(whole, jnp.float32))[:capacity]

        return map_clients(one, data, tree.everyone(center, n_clients))

    return jnp.moveaxis(lax.map(under, centers), 0, -1)


def batch_losses(model: Model, centers: Stacked, x: Array, y: Array) -> Array:
    """Loss of a batch's examples under every center, evaluation mode: ``(batch, centers)``."""
    return lax.map(lambda center: model.loss(model.apply(center, x, None)[0], y), centers).T
