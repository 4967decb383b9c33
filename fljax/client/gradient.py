"""Full-batch gradients of clients, for methods that send gradients instead of models."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive
from fljax.client.map import map_clients
from fljax.client.minibatches import batch_rows, n_batches
from fljax.client.objectives import Loss, check_loss, check_result
from fljax.data.federation import minibatch
from fljax.types import ClientData, Examples, Key, ModelTable, Params, Stacked, Trained, Work


@checked_kinds
def client_gradients(
    key: Array,
    models: Stacked | ModelTable,
    data: ClientData,
    loss: Loss,
    batch_size: Positive | None,
    *,
    with_statistics: bool = False,
) -> Trained:
    """Gradient of each client's mean loss over all its examples, at the client's model.

    It is summed over batches of ``batch_size``, weighted by their numbers of examples, in float32 or wider. So it
    equals the full-batch gradient without needing its memory (except with BatchNorm, which normalises per batch).
    Returns `Trained`, whose ``params`` are the gradients of the trainable parameters; a gradient that is not finite is
    returned as zero with ``ok`` False. ``with_statistics`` adds the running statistics after these batches.

    Raises:
        ValueError: ``batch_size`` is neither positive nor None, or a table does not have one row per client.
    """
    check_loss(loss)

    def one(pool: Examples, index: Array, size: Array, key: Key, params: Params) -> Trained:
        trainable, statistics = tree.split_statistics(params)
        wide: Any = jax.tree.map(tree.at_least_float32, trainable)
        # In a narrow dtype, the gradient of a batch's sum may overflow where that of its mean does not.
        is_of_mean = any(leaf.dtype.itemsize < 4 for leaf in jax.tree.leaves(trainable))

        def step(i: Array, carry: tuple[Any, Params]) -> tuple[Any, Params]:
            (sums, statistics), (rows, weight) = carry, batch_rows(index, size, i, batch_size)
            batch = minibatch(pool, rows, weight)

            def total(trainable: Params) -> tuple[Array, Params]:
                params = tree.join_statistics(trainable, statistics)
                value, updated = check_result(loss(params, batch, jax.random.fold_in(key, i)))
                return value if is_of_mean else value * weight.sum(), tree.split_statistics(updated)[1]

            (value, statistics), gradient = jax.value_and_grad(total, has_aux=True)(trainable)
            summand: Any = value.astype(jnp.float32), jax.tree.map(tree.at_least_float32, gradient)
            if is_of_mean:
                summand = jax.tree.map(lambda leaf: leaf * weight.sum(), summand)
            return jax.tree.map(jnp.add, sums, summand), statistics

        zero: Any = (jnp.float32(0), jax.tree.map(jnp.zeros_like, wide))
        (value, gradient), statistics_after = lax.fori_loop(0, n_batches(size, batch_size), step, (zero, statistics))
        n_examples = jnp.maximum(size, 1).astype(jnp.float32)
        is_ok = tree.is_finite((value, gradient))
        mean = tree.as_before(jax.tree.map(lambda g: jnp.where(is_ok, g / n_examples, 0.0), gradient), trainable)
        if with_statistics:
            statistics_after = tree.where(is_ok, statistics_after, statistics)
            mean = tree.join_statistics(mean, statistics_after)
        return Trained(mean, value / n_examples, is_ok)

    return map_clients(one, data, key, models)


def check_one_step(work: Work, choice: str) -> None:
    """Raises ValueError if ``work`` is more than one SGD step's gradient; the message names the ``choice``."""
    if work.epochs != 1 or work.optimizer != "sgd":
        settings = f"epochs={work.epochs}, optimizer={work.optimizer!r}"
        raise ValueError(f"{choice} takes one step per round; use epochs=1, optimizer='sgd', not {settings}")
