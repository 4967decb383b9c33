"""The clients' objectives: a loss on a batch, and the terms that papers add to it (loss -> loss)."""

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.types import AnyArray, Batch, Key, Model, Params

Loss = Callable[..., tuple[Array, Params]]
"""``loss(params, batch, key, *own) -> (loss (), params)``.

``own`` are the client's rows of the ``per_client`` arguments of `train_clients`. The returned parameters have updated
running statistics, if the model keeps any.
"""


def check_loss(loss: Any) -> None:
    """Raises ValueError if ``loss`` is not a function, or takes outputs and labels, as a `Model`'s loss does."""
    remedy = "give fljax.client.training_loss(model), or your own"
    if not callable(loss):
        raise ValueError(f"loss is of type {type(loss).__name__}, not a function; {remedy}")
    try:
        inspect.signature(loss).bind_partial(None, None, None)
        takes_outputs = getattr(loss, "__module__", "").startswith("optax.")  # these would take the key for an axis
    except TypeError:
        takes_outputs = True
    if takes_outputs:
        raise ValueError(f"loss does not take (params, batch, key), but perhaps outputs and labels; {remedy}")


def check_result(result: Any) -> tuple[Array, Params]:
    """The checked result of a `Loss` for a batch: (loss, params).

    Raises:
        ValueError: it is not a pair of one number and parameters.
    """
    if not isinstance(result, tuple | list) or len(result) != 2:
        kind = f"an array of shape {result.shape}" if hasattr(result, "shape") else f"a {type(result).__name__}"
        raise ValueError(f"a loss returned {kind}; return a pair (loss, params), as training_loss does")
    if jnp.shape(result[0]):
        shape = jnp.shape(result[0])
        raise ValueError(f"a loss returned an array of shape {shape}; return one number, the batch's mean")
    return result[0], result[1]


def batch_mean(value: AnyArray, weight: AnyArray) -> Array:
    """Mean of ``value`` (batch,) over the examples that count; 0 if there are none.

    Raises:
        ValueError: as `checked_losses`.
    """
    return jnp.vdot(checked_losses(value, weight), weight) / jnp.maximum(weight.sum(), 1e-12)


def checked_losses(losses: AnyArray, weight: AnyArray) -> Array:
    """``losses``, checked to be (batch,), like ``weight``.

    Raises:
        ValueError: the shapes differ, for example if a loss returned the mean.
    """
    if jnp.shape(losses) != weight.shape:
        shape, wanted = jnp.shape(losses), weight.shape
        raise ValueError(f"a loss of shape {shape} for {wanted[0]} examples; give one per example, {wanted}, no mean")
    return jnp.asarray(losses)


@checked_kinds
def training_loss(model: Model) -> Loss:
    """The mean of ``model.loss`` over a batch, in training mode; cross-entropy (natural logarithm) by default."""

    def loss(params: Params, batch: Batch, key: Key, *own: Any) -> tuple[Array, Params]:
        logits, params = model.apply(params, batch.x, key)
        return batch_mean(model.loss(logits, batch.y), batch.weight), params

    return loss


def of_changed_logits(model: Model, changed: Callable[[Array, Array], Array]) -> Loss:
    """The training loss of ``changed(logits (batch, outputs), row (outputs,))``, with the client's own row."""

    def loss(params: Params, batch: Batch, key: Key, row: Array) -> tuple[Array, Params]:
        logits, updated = model.apply(params, batch.x, key)
        return batch_mean(model.loss(changed(logits, row), batch.y), batch.weight), updated

    return loss


@checked_kinds
def proximal(loss: Loss, mu: ArrayLike) -> Loss:
    """``loss(w) + mu/2 |w - anchor|^2`` over the trainable parameters; its gradient adds ``mu (w - anchor)``.

    ``mu`` >= 0 may be traced. The anchor is the first of the client's own rows: pass it to `train_clients` as the first
    ``per_client`` argument.
    """

    proximal_loss = proximal_per_client(loss)

    def penalised(params: Params, batch: Batch, key: Key, anchor: Params, *own: Any) -> tuple[Array, Params]:
        return proximal_loss(params, batch, key, anchor, mu, *own)

    return penalised


def proximal_per_client(loss: Loss, layers: tuple[str, ...] | None = None) -> Loss:
    """`proximal` with each client's own ``mu``, the row after its anchor, over the named layers; None: all."""

    def part(params: Params) -> Params:
        return params if layers is None else tree.select(params, layers)

    def penalised(params: Params, batch: Batch, key: Key, anchor: Params, mu: Array, *own: Any) -> tuple[Array, Params]:
        value, updated = check_result(loss(params, batch, key, *own))
        return value + mu / 2 * tree.squared_norm(tree.subtract(part(params), part(anchor))), updated

    return penalised


def shifted(loss: Loss) -> Loss:
    """``loss(w) + <shift, w>`` over the trainable parameters; its gradient adds ``shift``.

    The shift is the first of the client's own rows: pass it to `train_clients` as the first ``per_client`` argument.
    """

    def linear(params: Params, batch: Batch, key: Key, shift: Params, *own: Any) -> tuple[Array, Params]:
        value, updated = loss(params, batch, key, *own)
        return value + tree.dot(shift, params), updated

    return linear


@checked_kinds
def predictor(model: Model) -> Callable[[Params, Array], Array]:
    """``(params, x) -> logits`` in evaluation mode: the `Algorithm.predict` of methods that deploy plain models."""

    def predict(params: Params, x: Array) -> Array:
        return model.apply(params, x, None)[0]

    return predict
