"""Local training: one client's minibatch loop, mapped over the clients of a cohort."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.choices import check_kind
from fljax.client.map import longest_beside, map_clients
from fljax.client.objectives import Loss, check_loss, check_result
from fljax.client.optimizer import Elementwise, raised_by_optax
from fljax.data.federation import minibatch
from fljax.keys import descend
from fljax.ranges import said
from fljax.types import AnyArray, ClientData, Examples, Key, ModelTable, Params, Stacked, Trained, Work

Sizes = TypeVar("Sizes", Array, np.ndarray)

OR_NONE = {"batch_size": "all of a client's examples", "at_once": "the backend's best"}
"""Meaning of None, for the fields of `Work` that may be None."""


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

    Client i takes ``work.epochs * ceil(size[i] / work.batch_size)`` steps, independently of the others: each epoch uses
    a new permutation of its examples; the last batch is averaged over the real examples in it, or left out with
    ``work.drop_last``. A client without a batch, as one of size 0, takes no step. Outside `jax.jit`, each call compiles
    again.

    Args:
        key: (clients,) one key per client; a client's result does not depend on other clients.
        start: (clients, ...) initial models, or `ModelTable`.
        data: the clients' training rows.
        loss: ``loss(params, batch, key, *own)``, see `fljax.client.objectives`.
        optimizer: an optax transformation; its state is initialised in each call. See `Elementwise`.
        work: epochs, batch size and number of clients that are trained at once.
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

    def train(
        pool: Examples, index: Array, size: Array, key: Key, start: Params, share: Array | None, *own: Any
    ) -> Trained:
        return _train_client(pool, index, size, key, start, loss, optimizer, work, own, share)

    with jax.named_scope("train"):
        return map_clients(train, data, key, start, effort, *per_client, at_once=work.at_once)


@checked_kinds
def check_work(work: Work) -> None:
    """Raises ValueError if ``work`` is not a `Work`, or a field of it is not a positive whole number of int32."""
    if not isinstance(work.terms, tuple) or not all(map(callable, work.terms)):
        raise ValueError(f"{said('terms', work.terms)} of work is not a tuple of functions; give () for none")
    for name in ("epochs", "batch_size", "at_once"):
        value = getattr(work, name)
        if value is None and name in OR_NONE:
            continue
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            or_none = f", or None: {OR_NONE[name]}" if name in OR_NONE else ""
            raise ValueError(f"{name}={value!r} is not a positive whole number; choose {name} >= 1{or_none}")
        if value > np.iinfo(np.int32).max:
            raise ValueError(f"{said(name, value)} is too large; choose {name} <= {np.iinfo(np.int32).max}")
    if not isinstance(work.drop_last, bool | np.bool_):
        raise ValueError(f"{said('drop_last', work.drop_last)} of work is neither True nor False; choose one of them")
    if work.drop_last and work.batch_size is None:
        raise ValueError(
            "drop_last=True has no effect with batch_size=None, where all examples of a client are one batch; give a "
            "batch_size, or leave drop_last out"
        )


def n_batches(size: Sizes, batch_size: int | None) -> Sizes:
    """Number of batches in a pass over ``size`` examples: ceil(size / batch_size); None: one batch, or 0 for size 0."""
    return size.clip(0, 1) if batch_size is None else -(-size // batch_size)


def batches_per_epoch(size: Sizes, work: Work) -> Sizes:
    """Number of local steps of a client with ``size`` examples in an epoch: `n_batches`, or whole batches only."""
    whole_size = work.batch_size if work.drop_last else None
    return n_batches(size, work.batch_size) if whole_size is None else size // whole_size


def n_steps(size: Sizes, work: Work) -> Sizes:
    """Number of local steps of a client with ``size`` examples: epochs * batches per epoch."""
    return work.epochs * batches_per_epoch(size, work)


def _check_effort(effort: AnyArray | None) -> None:
    """Raises ValueError if a client's effort is not in (0, 1]; traced values pass."""
    if effort is None or isinstance(effort, jax.core.Tracer) or not getattr(effort, "is_fully_addressable", True):
        return
    shares = np.asarray(effort)
    if not ((shares > 0) & (shares <= 1)).all():  # NaN too
        raise ValueError(f"effort has {shares.min()} to {shares.max()}; give shares of the steps in (0, 1]")


def steps_taken(size: Array, work: Work, effort: Array | None) -> Array:
    """The share ``effort`` of `n_steps`, rounded up, at least one if there are any; None: all of them."""
    steps = n_steps(size, work)
    if effort is None:
        return steps
    # Shares such as 3/5 are not binary fractions: products above a whole number only by rounding count as that number.
    part = jnp.ceil(jnp.asarray(effort, jnp.float32) * steps.astype(jnp.float32) - _ROUNDING).astype(jnp.int32)
    return jnp.clip(part, steps.clip(0, 1), steps)


_ROUNDING = 1e-3


def useful_steps(data: ClientData, work: Work, *per_client: Stacked | ModelTable) -> Array:
    """Share of the executed local steps that clients need, (); in the rest, they wait for the longest of their chunk.

    It is 1 if each client trains alone, as on a CPU unless many clients have small models (``per_client``). Clients
    that only fill up the last chunk are not counted.
    """
    check_work(work)
    executed = n_steps(longest_beside(data, *per_client, at_once=work.at_once), work).sum()
    return n_steps(data.size, work).sum().astype(jnp.float32) / jnp.maximum(executed, 1).astype(jnp.float32)


_PACKED = 512  # positions that fit beside a float's 23 random bits
_LAST = np.uint32(2**32 - _PACKED)


def shuffled(key: Key, index: Array, size: Array) -> Array:
    """``index`` (capacity,) with its first ``size`` entries in random order.

    The order does not depend on the capacity: entry i's random number is the same for every length.
    """
    place = jnp.arange(index.shape[0], dtype=jnp.uint32)
    numbers = jnp.where(place < size.astype(jnp.uint32), jax.random.bits(key, index.shape, jnp.uint32) & _LAST, _LAST)
    if index.shape[0] > _PACKED:
        return index[jnp.argsort(numbers)]
    # The low bits hold the position, which also breaks ties as a stable sort does: sorting one array is much faster.
    return index[(jnp.sort(numbers | place) % np.uint32(_PACKED)).astype(jnp.int32)]


def batch_rows(order: Array, size: Array, step: Array, batch_size: int | None) -> tuple[Array, Array]:
    """Rows (batch,) of batch ``step`` and their weights: 1, or 0 past the client's last example.

    Places past the end repeat the client's own examples, so that a batch never has another client's. With
    ``batch_size`` None, a batch has as many places as ``order``, the capacity.
    """
    n_places = order.shape[0] if batch_size is None else batch_size
    position = step * n_places + jnp.arange(n_places)
    return order[position % jnp.maximum(size, 1)], (position < size).astype(jnp.float32)


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
    def epoch(number: Array, carry: tuple, n_taken: Array) -> tuple:
        key_order, key_step = descend(key, number, np.arange(2))
        order = shuffled(key_order, index, size)

        def step(i: Array, carry: tuple) -> tuple:
            params, optimizer_state, total = carry
            rows, weight = batch_rows(order, size, i, work.batch_size)
            batch = minibatch(pool, rows, weight)
            value, params, optimizer_state = sgd_step(
                transposed_loss, optimizer, params, optimizer_state, batch, jax.random.fold_in(key_step, i), own
            )
            return params, optimizer_state, total + (value * weight.sum()).astype(jnp.float32)

        return lax.fori_loop(0, n_taken, step, carry)

    def transposed_loss(params: Params, *arguments: Any) -> tuple[Array, Params]:
        return loss(_transposed(params, is_transposed), *arguments)

    is_elementwise = isinstance(optimizer, Elementwise)  # others may treat rows and columns differently
    trainable, statistics = tree.split_statistics(start)
    is_transposed = jax.tree.map(lambda leaf: is_elementwise and _is_narrow(leaf), trainable)
    is_transposed = tree.join_statistics(is_transposed, jax.tree.map(lambda leaf: False, statistics))
    begin = _transposed(start, is_transposed)
    carry = (begin, optimizer.init(tree.trainable(begin)), jnp.float32(0))
    (params, _, total), n_processed = _passes(epoch, carry, size, work, effort)
    params = _transposed(params, is_transposed)
    mean_loss = total / jnp.maximum(n_processed, 1).astype(jnp.float32)
    # Concatenated: checking each leaf separately would take two or three kernels per leaf.
    is_ok = jnp.concatenate([jnp.isfinite(leaf).reshape(-1) for leaf in jax.tree.leaves((params, total))]).all()
    return Trained(tree.where(is_ok, params, start), mean_loss, is_ok)


def _passes(
    epoch: Callable[[Array, tuple, Array], tuple], carry: tuple, size: Array, work: Work, effort: Array | None
) -> tuple[tuple, Array]:
    """``carry`` after all epochs, or the share ``effort`` of the steps, and the number of examples processed, ()."""
    per_pass = batches_per_epoch(size, work)
    in_pass = per_pass * work.batch_size if work.drop_last and work.batch_size is not None else size  # examples
    if effort is None:
        carry, _ = lax.scan(lambda c, i: (epoch(i, c, per_pass), None), carry, jnp.arange(work.epochs))
        return carry, work.epochs * in_pass
    steps, divisor = steps_taken(size, work, effort), jnp.maximum(per_pass, 1)

    def part(number: Array, carry: tuple) -> tuple:
        return epoch(number, carry, jnp.minimum(per_pass, steps - number * divisor))

    # A truncated pass has full batches.
    n_processed = steps // divisor * in_pass + steps % divisor * (work.batch_size or 0)
    return lax.fori_loop(0, -(-steps // divisor), part, carry), n_processed


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
