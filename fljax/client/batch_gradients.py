"""Statistics of a client's minibatch gradients at one model: their variance and the sum of their squared norms."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.map import map_clients
from fljax.client.minibatches import batch_rows, n_batches, shuffled
from fljax.client.objectives import Loss
from fljax.data.federation import minibatch
from fljax.types import ClientData, Examples, Key, ModelTable, Params, Stacked


def gradient_variance(
    key: Array, models: Stacked | ModelTable, data: ClientData, loss: Loss, batch_size: int | None
) -> Array:
    """``sigma_i^2 = mean_b |g_b - mean_b g_b|^2 / P`` over the B batches of one pass over client i's data: (clients,).

    ``g_b`` is the gradient of batch b at the client's model, P its number of parameters. The client's ``key`` shuffles
    the examples; the last batch may be smaller. A client with one batch has variance 0; a gradient that is not finite
    makes the variance NaN.

    Source: Welford 1962, which keeps precision if the gradients are much larger than their differences.
    """

    def begin(trainable: Params) -> tuple[Params, Array]:
        return jax.tree.map(lambda leaf: jnp.zeros_like(tree.at_least_float32(leaf)), trainable), jnp.float32(0)

    def fold(carry: tuple[Params, Array], gradient: Params, i: Array) -> tuple[Params, Array]:
        mean, total = carry
        # Squares overflow float16 from 256 on, and bfloat16 has too few digits for small updates of a mean.
        gradient = jax.tree.map(tree.at_least_float32, gradient)
        deviation_before = tree.subtract(gradient, mean)
        mean = jax.tree.map(lambda m, d: m + d / (i + 1).astype(d.dtype), mean, deviation_before)
        deviation_after = tree.subtract(gradient, mean)
        product = sum(map(jnp.vdot, jax.tree.leaves(deviation_before), jax.tree.leaves(deviation_after)))
        return mean, total + jnp.asarray(product, jnp.float32)

    def finish(carry: tuple[Params, Array], count: Array, trainable: Params) -> Array:
        return carry[1] / (jnp.maximum(count, 1) * tree.size(trainable)).astype(jnp.float32)

    return _over_batches(key, models, data, loss, batch_size, begin, fold, finish)


def gradient_mass(
    key: Array, models: Stacked | ModelTable, data: ClientData, loss: Loss, batch_size: int | None
) -> Array:
    """``sum_b |g_b|^2`` over the batches of one pass over client i's data: (clients,) float32.

    If the loss is a negative log-likelihood, it is the trace of the batches' empirical Fisher information, times their
    number. The client's ``key`` shuffles the examples; a gradient that is not finite makes the sum NaN or infinite.
    """

    def fold(total: Array, gradient: Params, i: Array) -> Array:
        return total + tree.squared_norm(gradient).astype(jnp.float32)

    begin, finish = (lambda trainable: jnp.float32(0)), (lambda total, count, trainable: total)
    return _over_batches(key, models, data, loss, batch_size, begin, fold, finish)


def _over_batches(
    key: Array,
    models: Stacked | ModelTable,
    data: ClientData,
    loss: Loss,
    batch_size: int | None,
    begin: Callable[[Params], Any],
    fold: Callable[[Any, Params, Array], Any],
    finish: Callable[[Any, Array, Params], Array],
) -> Array:
    """(clients,) ``finish`` of the ``fold`` over the batch gradients of one pass, each at the client's own model."""

    def one(pool: Examples, index: Array, size: Array, key: Key, params: Params) -> Array:
        trainable, statistics = tree.split_statistics(params)
        key_order, key_loss = jax.random.split(key)
        order = shuffled(key_order, index, size)

        def step(i: Array, carry: Any) -> Any:
            batch = minibatch(pool, *batch_rows(order, size, i, batch_size))

            def objective(trainable: Params) -> Array:
                return loss(tree.join_statistics(trainable, statistics), batch, jax.random.fold_in(key_loss, i))[0]

            return fold(carry, jax.grad(objective)(trainable), i)

        count = n_batches(size, batch_size)
        return finish(lax.fori_loop(0, count, step, begin(trainable)), count, trainable)

    return map_clients(one, data, key, models)
