"""Adaptation after the rounds: each client trains its deployed model further on its own training data."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import Natural, Positive
from fljax.client.local import sgd_step, train_clients
from fljax.client.map import map_clients
from fljax.client.minibatches import batch_rows, n_batches, shuffled
from fljax.client.objectives import Loss, check_loss
from fljax.data.federation import minibatch
from fljax.keys import descend
from fljax.types import ClientData, Examples, Key, ModelTable, Params, Stacked, Work


def fine_tune(
    key: Key,
    start: Stacked | ModelTable,
    data: ClientData,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    work: Work,
) -> ModelTable:
    """Every client's model after ``work.epochs`` epochs on its own data, trained as by `train_clients`.

    Args:
        key: one key; client i uses ``fold_in(key, i)``.
        start: (clients, ...) initial models, or `ModelTable`.
        data: training rows of all clients.
        loss: see `fljax.client.objectives`; with `fljax.client.freeze.frozen_loss`, only some layers are tuned.
        optimizer: an optax transformation.
        work: epochs and batch size.

    Returns:
        One row per client; a client whose result is not finite keeps its initial model.
    """
    plain_work = work._replace(terms=())
    return tree.own(train_clients(client_keys(key, data), start, data, loss, optimizer, plain_work).params)


@checked_kinds
def adapt(
    key: Key,
    start: Stacked | ModelTable,
    data: ClientData,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    n_steps: Natural,
    batch_size: Positive | None,
) -> ModelTable:
    """Every client's model after exactly ``n_steps`` minibatch steps on its own data, whatever its size.

    The batches are those of successive epochs, so no example is used twice before all have been used. A client without
    examples keeps its initial model; so does a client if its result, or the result's loss on one more batch, is not
    finite. Arguments as in `fine_tune`.

    Raises:
        ValueError: ``n_steps`` is negative, or ``batch_size`` is neither positive nor None.
    """
    check_loss(loss)

    def train(pool: Examples, index: Array, size: Array, key: Key, start: Params) -> Params:
        batches_per_pass = jnp.maximum(n_batches(size, batch_size), 1)

        def step(i: Array, carry: tuple[Params, Any]) -> tuple[Params, Any]:
            order = shuffled(jax.random.fold_in(key, i // batches_per_pass), index, size)
            rows, weight = batch_rows(order, size, i % batches_per_pass, batch_size)
            key_step = jax.random.fold_in(key, n_steps + i)
            return sgd_step(loss, optimizer, *carry, minibatch(pool, rows, weight), key_step)[1:]

        initial = (start, optimizer.init(tree.trainable(start)))
        adapted = lax.fori_loop(0, jnp.where(size > 0, n_steps, 0), step, initial)[0]
        # Finite parameters may still give an infinite loss.
        batch = minibatch(pool, *batch_rows(shuffled(key, index, size), size, jnp.int32(0), batch_size))
        loss_after = loss(adapted, batch, jax.random.fold_in(key, 2 * n_steps))[0]
        is_ok = jnp.isfinite(loss_after) & tree.is_finite(adapted)
        return tree.where(is_ok, adapted, start)

    return tree.own(map_clients(train, data, client_keys(key, data), start))


def client_keys(key: Key, data: ClientData) -> Array:
    """(clients,) keys ``fold_in(key, i)``: the random numbers of client i depend on its id alone."""
    return descend(key, jnp.arange(data.n_clients))
