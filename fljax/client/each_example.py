"""A function of every single example under its client's model, laid out as the clients' rows are."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from fljax.client.batching import BATCH_SIZE, batching
from fljax.client.local import batch_rows
from fljax.client.map import map_clients
from fljax.data.federation import minibatch
from fljax.types import Batch, ClientData, Examples, ModelTable, Params, Stacked


def of_each_example(
    f: Callable[[Params, Batch], Array],
    models: Stacked | ModelTable,
    data: ClientData,
    fill: float,
    batch_size: int = BATCH_SIZE,
    then: Callable[[Array, Array, Array], Array] | None = None,
) -> Array:
    """``f(params, batch) -> (batch, ...)`` of each client's examples under the model it holds.

    Models and examples are not copied, and a client of few examples does not wait for one of many.

    Args:
        f: of a batch.
        models: the clients'.
        data: their examples.
        fill: what stands past a client's size.
        batch_size: examples at once.
        then: ``(values (capacity, ...), y (capacity, ...), is_there (capacity,)) -> result``, what is made of a
            client's values, so that those of all clients are never kept; None: they are the result.

    Returns:
        (clients, capacity, ...), at least float32: at ``[i, j]`` what ``f`` gives of example ``data.index[i, j]``, and
        ``fill`` past a client's size; or what ``then`` makes of it, stacked.
    """
    how, capacity = batching(f, models, data, batch_size), data.index.shape[1]
    shape, dtype = how.result.shape[1:], jnp.promote_types(how.result.dtype, jnp.float32)

    def one(pool: Examples, index: Array, size: Array, params: Params) -> Array:
        def step(i: Array, made: Array) -> Array:
            rows, weight = batch_rows(index, size, i, how.size)
            value = f(params, minibatch(pool, rows, weight)).astype(dtype)
            # Past the client's last example a batch repeats others of its own.
            is_own = (weight > 0).reshape(-1, *[1] * len(shape))
            return lax.dynamic_update_slice_in_dim(made, jnp.where(is_own, value, fill), i * how.size, axis=0)

        whole = -(-capacity // how.size) * how.size
        made = lax.fori_loop(0, -(-size // how.size), step, jnp.full((whole, *shape), fill, dtype))[:capacity]
        return made if then is None else then(made, pool.y[index], jnp.arange(capacity) < size)

    return map_clients(one, data, models)
