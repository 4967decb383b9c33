"""The loss of each example under every center, from which soft memberships are computed."""

import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.batching import BATCH_SIZE
from fljax.client.each_example import of_each_example
from fljax.client.measure import loss_score
from fljax.types import ClientData, Model, Params, Stacked


def example_loss(model: Model, centers: Stacked, data: ClientData, batch_size: int = BATCH_SIZE) -> Array:
    """Loss of each client's examples under every center, evaluation mode: ``(clients, capacity, centers)``.

    Padding past a client's size has loss 0; mask it with `fljax.data.federation.present`. Models and examples are not
    copied, and clients with few examples do not wait for clients with many.
    """
    score, n_clients = loss_score(model), data.n_clients

    def under(center: Params) -> Array:
        return of_each_example(score, tree.everyone(center, n_clients), data, 0.0, batch_size)[..., 0]

    return jnp.moveaxis(lax.map(under, centers), 0, -1)


def batch_losses(model: Model, centers: Stacked, x: Array, y: Array) -> Array:
    """Loss of a batch's examples under every center, evaluation mode: ``(batch, centers)``."""
    return lax.map(lambda center: model.loss(model.apply(center, x, None)[0], y), centers).T
