"""Values of a function for each example with its client's model, laid out like the clients' index."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from fljax.client.batching import BATCH_SIZE, batching
from fljax.client.map import map_clients
from fljax.client.minibatches import batch_rows
from fljax.data.federation import minibatch
from fljax.types import Batch, ClientData, Examples, ModelTable, Params, Stacked


def of_each_example(
    f: Callable[[Params, Batch], Array],
    models: Stacked | ModelTable,
    data: ClientData,
    fill: float,
    batch_size: int = BATCH_SIZE,
    then: Callable[[Array, Array, Array], Any] | None = None,
) -> Any:
    """``f(params, batch) -> (batch, ...)`` of each client's examples, with the client's model.

    Models and examples are not copied, and clients with few examples do not wait for clients with many.

    Args:
        f: ``(params, batch) -> (batch, ...)``.
        models: the clients' models, (clients, ...) or `ModelTable`.
        data: the clients' examples.
        fill: value past a client's size.
        batch_size: examples per batch.
        then: ``(values (capacity, ...), y (capacity, ...), is_there (capacity,)) -> result`` reduces a client's values,
            so that the values of all clients are never kept, to arrays; None: the values are the result.

    Returns:
        (clients, capacity, ...), at least float32: ``[i, j]`` is the value for example ``data.index[i, j]``, and
        ``fill`` past a client's size; or the results of ``then``, stacked.
    """
    batches, capacity = batching(f, models, data, batch_size), data.index.shape[1]
    shape, dtype = batches.result.shape[1:], jnp.promote_types(batches.result.dtype, jnp.float32)

    def one(pool: Examples, index: Array, size: Array, params: Params) -> Any:
        def step(i: Array, values: Array) -> Array:
            rows, weight = batch_rows(index, size, i, batches.size)
            value = f(params, minibatch(pool, rows, weight)).astype(dtype)
            # Past the client's last example, a batch repeats its examples.
            is_own = (weight > 0).reshape(-1, *[1] * len(shape))
            return lax.dynamic_update_slice_in_dim(values, jnp.where(is_own, value, fill), i * batches.size, axis=0)

        n_places = -(-capacity // batches.size) * batches.size
        values = lax.fori_loop(0, -(-size // batches.size), step, jnp.full((n_places, *shape), fill, dtype))[:capacity]
        return values if then is None else then(values, pool.y[index], jnp.arange(capacity) < size)

    return map_clients(one, data, models)
