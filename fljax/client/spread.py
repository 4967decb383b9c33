"""How much a client's minibatch gradients differ at one model: the noise that its local training feels."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.local import batch_rows, n_batches, shuffled
from fljax.client.map import map_clients
from fljax.client.objectives import Loss
from fljax.data.federation import minibatch
from fljax.types import ClientData, Examples, Key, ModelTable, Params, Stacked


def gradient_variance(
    key: Array, models: Stacked | ModelTable, data: ClientData, loss: Loss, batch_size: int | None
) -> Array:
    """``sigma_i^2 = mean_b |g_b - mean_b g_b|^2 / P`` over the B batches of one pass over client i's data: (clients,).

    ``g_b`` is the gradient of batch b at the model that the client holds, P its number of parameters. The order of the
    examples is drawn with the client's ``key``; the last batch may be smaller. A client of one batch has variance 0; a
    gradient that is not finite makes it NaN.

    Source: Welford 1962, so that no digits are lost where the gradients are much larger than their differences.
    """

    def one(pool: Examples, index: Array, size: Array, key: Key, params: Params) -> Array:
        trainable, statistics = tree.split_statistics(params)
        key_order, key_loss = jax.random.split(key)
        order = shuffled(key_order, index, size)

        def step(i: Array, carry: tuple[Params, Array]) -> tuple[Params, Array]:
            mean, total = carry
            batch = minibatch(pool, *batch_rows(order, size, i, batch_size))

            def objective(trainable: Params) -> Array:
                return loss(tree.join_statistics(trainable, statistics), batch, jax.random.fold_in(key_loss, i))[0]

            # Squares of a float16 leave it from 256 on, and a mean moves by less than a bfloat16 has digits for.
            gradient = jax.tree.map(tree.at_least_float32, jax.grad(objective)(trainable))
            before = tree.subtract(gradient, mean)
            mean = jax.tree.map(lambda m, d: m + d / (i + 1).astype(d.dtype), mean, before)
            after = tree.subtract(gradient, mean)
            product = sum(map(jnp.vdot, jax.tree.leaves(before), jax.tree.leaves(after)))
            return mean, total + jnp.asarray(product, jnp.float32)

        count = n_batches(size, batch_size)
        start = (jax.tree.map(lambda leaf: jnp.zeros_like(tree.at_least_float32(leaf)), trainable), jnp.float32(0))
        total = lax.fori_loop(0, count, step, start)[1]
        return total / (jnp.maximum(count, 1) * tree.size(params)).astype(jnp.float32)

    return map_clients(one, data, key, models)
