"""Whole-data gradients of clients, for the methods that send gradients instead of models."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.client.local import batch_rows
from fljax.client.map import map_clients
from fljax.client.objectives import Loss
from fljax.data.federation import minibatch
from fljax.types import ClientData, Examples, Key, ModelTable, Params, Stacked, Trained


def client_gradients(
    key: Array, models: Stacked | ModelTable, data: ClientData, loss: Loss, batch_size: int
) -> Trained:
    """Gradient of each client's mean loss over all its examples, at the model it holds.

    Summed over batches of ``batch_size`` weighted by their examples, so it equals the full-batch gradient without its
    memory. Returns `Trained` whose ``params`` are the gradients of the trainable parameters; a gradient that is not
    finite comes back as zero with ``ok`` False.
    """

    def one(pool: Examples, index: Array, size: Array, key: Key, params: Params) -> Trained:
        trainable, statistics = tree.split_statistics(params)

        def step(i: Array, carry: tuple[Array, Params]) -> tuple[Array, Params]:
            rows, weight = batch_rows(index, size, i, batch_size)
            batch = minibatch(pool, rows, weight)

            def total(trainable: Params) -> Array:
                value, _ = loss(tree.join_statistics(trainable, statistics), batch, jax.random.fold_in(key, i))
                return value * weight.sum()

            return jax.tree.map(jnp.add, carry, jax.value_and_grad(total)(trainable))

        zero: Any = (jnp.float32(0), jax.tree.map(jnp.zeros_like, trainable))
        value, gradient = lax.fori_loop(0, -(-size // batch_size), step, zero)
        n_examples = jnp.maximum(size, 1).astype(jnp.float32)
        ok = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((value, gradient))]).all()
        return Trained(jax.tree.map(lambda g: jnp.where(ok, g / n_examples, 0.0), gradient), value / n_examples, ok)

    return map_clients(one, data, key, models)
