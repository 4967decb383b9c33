"""Outputs of clients' models for the server's unlabelled data."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from fljax.client.map import map_clients
from fljax.data.federation import minibatch
from fljax.tree import at_least_float32
from fljax.types import ClientData, Examples, Model, ModelTable, Params, Stacked


def client_outputs(
    model: Model,
    models: Stacked | ModelTable,
    public: Examples,
    rows: Array,
    link: Callable[[Array], Array] = jax.nn.softmax,
) -> Array:
    """Outputs of every client's model for one batch of public examples, evaluation mode.

    Args:
        model: the network.
        models: (clients, ...) models, or `ModelTable`.
        public: the server's examples; labels are not read.
        rows: (batch,) row numbers of the examples.
        link: logits (batch, classes) -> outputs.

    Returns:
        (clients, batch, classes) float32, by default each a distribution over the classes.
    """
    n_clients = (models.row if isinstance(models, ModelTable) else jax.tree.leaves(models)[0]).shape[0]
    repeated_rows = jnp.broadcast_to(rows, (n_clients, *rows.shape))
    data = ClientData(public, repeated_rows, jnp.full(n_clients, rows.shape[0], jnp.int32))

    def outputs(pool: Examples, index: Array, size: Array, params: Params) -> Array:
        batch = minibatch(pool, index, jnp.ones(index.shape, jnp.float32))
        return link(at_least_float32(model.apply(params, batch.x, None)[0]))

    return map_clients(outputs, data, models)
