"""Sums over each client's examples with a model: losses, and other scores of single examples."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.client.batching import BATCH_SIZE, batching
from fljax.client.map import check_rows, map_clients, over_devices
from fljax.client.minibatches import batch_rows
from fljax.client.objectives import checked_losses
from fljax.data.federation import minibatch
from fljax.types import Batch, ClientData, Examples, Model, ModelTable, Params, Stacked

Score = Callable[[Params, Batch], Array]
"""``score(params, batch) -> (batch, scores)`` float32."""


@checked_kinds
def client_sums(score: Score, models: Stacked | ModelTable, data: ClientData, batch_size: int = BATCH_SIZE) -> Array:
    """Sum of ``score`` over each client's examples with the client's model: ``(clients, scores)``.

    A model that many clients hold scores all their examples together, so no model is copied per client; personal models
    are mapped over. In both cases, each example is scored once; examples that all clients share, once per model. If a
    network's output depends on the batch (`fljax.client.batching`), each batch has one client's examples only, even for
    a shared model. If a client's row is not in the `ModelTable`, such as -1, its sums have no meaning.

    Raises:
        ValueError: ``data`` is not a split, models do not have one row per client, or ``score`` does not return one row
            per example.
    """
    check_rows(data.n_clients, (models,))
    batches = batching(score, models, data, batch_size)
    if len(shape := getattr(batches.result, "shape", ())) != 2:
        kind = f"an array {shape}" if hasattr(batches.result, "shape") else f"a {type(batches.result).__name__}"
        raise ValueError(f"a score returned {kind} for one example; return (batch, scores), as losses[:, None]")
    n_scores, batch = shape[1], batches.size
    is_shared = isinstance(models, ModelTable) and tree.n_rows(models.params) < data.n_clients
    if is_shared and not batches.is_mixing and not data.is_common:
        return _sums_by_row(score, n_scores, models, data, batch_size)

    def one(pool: Examples, index: Array, size: Array, params: Params) -> Array:
        def step(i: Array, sums: Array) -> Array:
            rows, weight = batch_rows(index, size, i, batch)
            scores = score(params, minibatch(pool, rows, weight)).astype(jnp.float32)
            return sums + tree.product(weight, scores)

        return lax.fori_loop(0, -(-size // batch), step, jnp.zeros(n_scores, jnp.float32))

    return map_clients(one, data, models)


@checked_kinds
def client_loss(model: Model, models: Stacked | ModelTable, data: ClientData) -> Array:
    """Mean loss ``F_i`` of each client's model on the client's data, evaluation mode: ``(clients,)``.

    The loss is 0 for a client without examples, and for one that holds no model of a `ModelTable` (row -1), unless the
    table has one row, which belongs to all clients.

    Raises:
        ValueError: ``data`` is not a split, or models do not have one row per client.
    """
    check_rows(data.n_clients, (models,))
    if isinstance(models, ModelTable) and (n_rows := tree.n_rows(models.params)) > 1:
        is_held = (models.row >= 0) & (models.row < n_rows)  # a lookup would return another client's model
        data = data._replace(size=jnp.where(is_held, data.size, 0))
    sums = client_sums(loss_score(model), models, data)[:, 0]
    return sums / jnp.maximum(data.size, 1).astype(jnp.float32)


@checked_kinds
def cross_loss(model: Model, centers: Stacked, data: ClientData) -> Array:
    """``F_i(theta_j)``: mean loss of every center on every client's data, ``(clients, clusters)``.

    One dense pass over the data per center; neither models nor data are copied.

    Raises:
        ValueError: the centers are not stacked, or ``data`` is not a split of a federation.
    """
    if len(shapes := {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(centers)}) > 1:
        raise ValueError(
            f"centers have leaves of {sorted(shapes)} rows; give models (clusters, ...), as fljax.tree.stack makes"
        )
    n_clients = data.n_clients
    return lax.map(lambda center: client_loss(model, tree.everyone(center, n_clients), data), centers).T


def loss_score(model: Model) -> Score:
    """``model.loss`` of each example, ``(batch, 1)``, in evaluation mode."""

    def score(params: Params, batch: Batch) -> Array:
        logits, _ = model.apply(params, batch.x, None)
        return checked_losses(model.loss(logits, batch.y), batch.weight)[:, None]

    return score


def _sums_by_row(score: Score, n_scores: int, models: ModelTable, data: ClientData, batch_size: int) -> Array:
    """Sums per client; each row's model scores the concatenated examples of all clients that hold it."""

    def own_clients(pool: Examples, params: Stacked, index: Array, size: Array, label: Array) -> Array:
        def one_row(sums: Array, row: Array) -> tuple[Array, None]:
            holders = ClientData(pool, index, jnp.where(label == row, size, 0))
            return sums + _dense_sums(score, n_scores, tree.row(params, row), holders, batch_size), None

        rows = jnp.arange(tree.n_rows(params))
        return lax.scan(one_row, jnp.zeros((size.shape[0], n_scores), jnp.float32), rows)[0]

    row = models.row if tree.n_rows(models.params) > 1 else jnp.zeros_like(models.row)  # one row belongs to all
    return over_devices(own_clients, (data.pool, models.params), (data.index, data.size, row))


def _dense_sums(score: Score, n_scores: int, params: Params, data: ClientData, batch_size: int) -> Array:
    """Sums per client of one model over all examples of ``data``, concatenated client after client, in full batches."""
    n_clients, end = data.n_clients, jnp.cumsum(data.size)
    begin = end - data.size

    def step(i: Array, sums: Array) -> Array:
        position = i * batch_size + jnp.arange(batch_size)
        is_counted = position < end[-1]
        client = jnp.minimum(jnp.searchsorted(end, position, side="right"), n_clients - 1)
        # Past the end, the batch repeats its first example, so only the clients' own examples are read.
        rows = data.index[client, position - begin[client]]
        batch = minibatch(data.pool, jnp.where(is_counted, rows, rows[0]), is_counted.astype(jnp.float32))
        scores = score(params, batch).astype(jnp.float32)
        return sums.at[client].add(jnp.where(is_counted[:, None], scores, 0.0))

    zeros = jnp.zeros((n_clients, n_scores), jnp.float32)
    return lax.fori_loop(0, -(-end[-1] // batch_size), step, zeros)
