"""Local training: one client's minibatch loop, mapped over the clients of a cohort."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import check_kind
from fljax.client.map import longest_beside, map_clients
from fljax.client.minibatches import batch_rows, shuffled
from fljax.client.objectives import Loss, check_loss, check_result
from fljax.client.optimizer import Elementwise, raised_by_optax
from fljax.client.steps import batches_per_epoch, check_work, n_steps, steps_taken
from fljax.data.federation import minibatch
from fljax.keys import descend
from fljax.models.own_network import network_numbers, with_own_network
from fljax.types import AnyArray, ClientData, Examples, Key, ModelTable, Params, Stacked, Trained, Work


@checked_kinds
def train_clients(
    key: Array,
    start: Stacked | ModelTable,
    data: ClientData,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    work: Work,
    *per_client: Stacked | ModelTable,
    effort: AnyArray | None = None,
) -> Trained:
    """Trains every client from its initial model on its own data.

    Client i takes ``work.epochs * ceil(size[i] / work.batch_size)`` steps, or ``work.local_steps``, independently of
    the others: each pass over its examples uses a new permutation; the last batch is averaged over the real examples in
    it, or left out with ``work.drop_last``. A client without a batch, as one of size 0, takes no step. Outside
    `jax.jit`, each call compiles again.

    Args:
        key: (clients,) one key per client; a client's result does not depend on other clients.
        start: (clients, ...) initial models, or `ModelTable`.
        data: the clients' training rows.
        loss: ``loss(params, batch, key, *own)``, see `fljax.client.objectives`.
        optimizer: an optax transformation; its state is initialised in each call. See `Elementwise`.
        work: epochs or steps, batch size and number of clients that are trained at once.
        *per_client: other arguments ``own`` of the loss, such as an anchor or a teacher, one row per client.
        effort: (clients,) share of its steps that each client takes, in (0, 1], rounded up; it takes the first ones.
            None: all.

    Returns:
        The trained models, the mean losses, and which results are finite. If a client's result is not finite, its
        initial model is returned, with ``ok`` False.

    Raises:
        ValueError: a field of ``work`` is out of its range; ``work`` has terms, which `fljax.rounds.train` adds;
            ``data`` is not a split; ``loss`` takes outputs and labels, or does not return a pair; ``start``, ``key`` or
            a table does not have one row per client; ``key`` holds no random keys; or an ``effort`` that is not traced
            is not in (0, 1].
    """
    check_work(work)
    check_loss(loss)
    if not (hasattr(key, "dtype") and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.dtype == "uint32")):
        fault = f"has dtype {key.dtype}" if hasattr(key, "dtype") else f"is of type {type(key).__name__}"
        raise ValueError(f"key {fault}; give a random key for each client, as jax.random.split(key, n_clients)")
    remedy = "make one by fljax.client.local_optimizer, or take one of optax, such as optax.sgd(0.1)"
    check_kind("optimizer", optimizer, optax.GradientTransformation, remedy)
    if work.terms:  # including those of dp_sgd, without which training would not be private
        raise ValueError(
            f"work.terms={work.terms}: train_clients does not add bricks' terms to the loss; call fljax.rounds.train, "
            "or give work._replace(terms=())"
        )

    _check_effort(effort)
    number_of_each, n_networks = network_numbers(start)

    def train(
        pool: Examples, index: Array, size: Array, key: Key, start: Params, share: Array | None, *rows: Any
    ) -> Trained:
        own, number = (rows, None) if number_of_each is None else (rows[:-1], rows[-1])

        def train_network(start: Params, *own: Any) -> tuple[Trained, Params]:
            trained = _train_client(pool, index, size, key, start, loss, optimizer, work, own, share)
            return trained._replace(params=()), trained.params

        trained, params = with_own_network(train_network, start, *own, number=number)
        return trained._replace(params=params)

    with jax.named_scope("train"):
        rows = per_client if number_of_each is None else (*per_client, number_of_each)
        return map_clients(train, data, key, start, effort, *rows, at_once=work.at_once, n_kinds=n_networks)


def _check_effort(effort: AnyArray | None) -> None:
    """Raises ValueError if a client's effort is not in (0, 1]; traced values pass."""
    if effort is None or isinstance(effort, jax.core.Tracer) or not getattr(effort, "is_fully_addressable", True):
        return
    shares = np.asarray(effort)
    if not ((shares > 0) & (shares <= 1)).all():  # NaN too
        raise ValueError(f"effort has {shares.min()} to {shares.max()}; give shares of the steps in (0, 1]")


def useful_steps(data: ClientData, work: Work, *per_client: Stacked | ModelTable) -> Array:
    """Share of the executed local steps that clients need, (); in the rest, they wait for the longest of their chunk.

    It is 1 if each client trains alone, as on a CPU unless many clients have small models (``per_client``). Clients
    that only fill up the last chunk are not counted.
    """
    check_work(work)
    executed = n_steps(longest_beside(data, *per_client, at_once=work.at_once), work).sum()
    return n_steps(data.size, work).sum().astype(jnp.float32) / jnp.maximum(executed, 1).astype(jnp.float32)


def _train_client(
    pool: Examples,
    index: Array,
    size: Array,
    key: Key,
    start: Params,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    work: Work,
    own: tuple[Any, ...],
    effort: Array | None,
) -> Trained:
    def step(order: Array, key_step: Key, i: Array, carry: tuple) -> tuple:
        params, optimizer_state, total = carry
        rows, weight = batch_rows(order, size, i, work.batch_size)
        batch = minibatch(pool, rows, weight)
        value, params, optimizer_state = sgd_step(
            transposed_loss, optimizer, params, optimizer_state, batch, jax.random.fold_in(key_step, i), own
        )
        return params, optimizer_state, total + (value * weight.sum()).astype(jnp.float32)

    def transposed_loss(params: Params, *arguments: Any) -> tuple[Array, Params]:
        return loss(_transposed(params, is_transposed), *arguments)

    is_elementwise = isinstance(optimizer, Elementwise)  # others may treat rows and columns differently
    trainable, statistics = tree.split_statistics(start)
    is_transposed = jax.tree.map(lambda leaf: is_elementwise and _is_narrow(leaf), trainable)
    is_transposed = tree.join_statistics(is_transposed, jax.tree.map(lambda leaf: False, statistics))
    begin = _transposed(start, is_transposed)
    carry = (begin, optimizer.init(tree.trainable(begin)), jnp.float32(0))
    (params, _, total), n_processed = _after_steps(step, carry, key, index, size, work, effort)
    params = _transposed(params, is_transposed)
    mean_loss = total / jnp.maximum(n_processed, 1).astype(jnp.float32)
    # Concatenated: checking each leaf separately would take two or three kernels per leaf.
    is_ok = jnp.concatenate([jnp.isfinite(leaf).reshape(-1) for leaf in jax.tree.leaves((params, total))]).all()
    return Trained(tree.where(is_ok, params, start), mean_loss, is_ok)


def _after_steps(
    step: Callable[[Array, Key, Array, tuple], tuple],
    carry: tuple,
    key: Key,
    index: Array,
    size: Array,
    work: Work,
    effort: Array | None,
) -> tuple[tuple, Array]:
    """``carry`` after a client's local steps, and the number of examples in them, (): one counts once in each pass.

    A step is ``step(order, key, i, carry)``, for batch i of a pass over the examples in this order.
    """
    per_pass = batches_per_epoch(size, work)

    def keys_of_pass(number: Array) -> Key:
        return descend(key, number, np.arange(2))  # for the order of its examples, and for its steps

    def epoch(number: Array, carry: tuple, n: Array) -> tuple:
        key_order, key_step = keys_of_pass(number)
        return lax.fori_loop(0, n, partial(step, shuffled(key_order, index, size), key_step), carry)

    def part(number: Array, carry: tuple) -> tuple:
        return epoch(number, carry, jnp.minimum(per_pass, n_taken - number * divisor))

    def counted_step(i: Array, ordered: tuple[Array, tuple]) -> tuple[Array, tuple]:
        number, place = i // divisor, i % divisor
        key_order, key_step = keys_of_pass(number)
        order = lax.cond(place == 0, lambda: shuffled(key_order, index, size), lambda: ordered[0])
        return order, step(order, key_step, place, ordered[1])

    in_pass = per_pass * work.batch_size if work.drop_last and work.batch_size is not None else size  # examples
    if work.epochs is not None and effort is None:
        carry, _ = lax.scan(lambda c, i: (epoch(i, c, per_pass), None), carry, jnp.arange(work.epochs))
        return carry, work.epochs * in_pass
    n_taken, divisor = steps_taken(size, work, effort), jnp.maximum(per_pass, 1)
    if work.epochs is None:  # one loop: clients side by side step together, however long their passes are
        carry = lax.fori_loop(0, n_taken, counted_step, (index, carry))[1]
    else:
        carry = lax.fori_loop(0, -(-n_taken // divisor), part, carry)
    # A truncated pass has full batches.
    return carry, n_taken // divisor * in_pass + n_taken % divisor * (work.batch_size or 0)


def _is_narrow(leaf: Array) -> bool:
    """Whether a dense kernel trains faster transposed: on a CPU, if it has many more inputs than outputs.

    The gradient of a transposed (784, 10) kernel is a product with long rows: a step of logistic regression takes half
    the time. The kernel is transposed once per client, not per step, so the optimiser gets it transposed.
    """
    return jax.default_backend() == "cpu" and leaf.ndim == 2 and leaf.shape[0] >= 8 * leaf.shape[1]


def _transposed(params: Params, is_transposed: Any) -> Params:
    return jax.tree.map(lambda leaf, transpose: leaf.T if transpose else leaf, params, is_transposed)


def sgd_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    params: Params,
    optimizer_state: optax.OptState,
    batch: Any,
    key: Key,
    own: tuple[Any, ...] = (),
) -> tuple[Array, Params, optax.OptState]:
    """One step on one batch: (loss, params, optimiser state). Running statistics are not differentiated."""
    trainable, statistics = tree.split_statistics(params)

    def objective(trainable: Params) -> tuple[Array, Params]:
        value, updated = check_result(loss(tree.join_statistics(trainable, statistics), batch, key, *own))
        return value, tree.split_statistics(updated)[1]

    (value, statistics), gradient = jax.value_and_grad(objective, has_aux=True)(trainable)
    with jax.numpy_dtype_promotion("standard"):  # optax raises float betas to an int count
        # Some optimisers need the loss, such as those that lower the rate on a plateau.
        optimizer = optax.with_extra_args_support(optimizer)
        try:
            updates, new_state = optimizer.update(gradient, optimizer_state, trainable, value=value)
        except (AttributeError, TypeError) as error:
            if not raised_by_optax(error):  # but by the user's own transformation
                raise
            raise ValueError(
                f"the optimizer asks for more than a gradient, the parameters and the loss ({error}), as "
                "optax.lookahead and optax.lbfgs do; give one that takes a plain step, such as optax.adam"
            ) from error
    params = tree.join_statistics(optax.apply_updates(trainable, updates), statistics)
    return value, params, tree.as_before(new_state, optimizer_state)
