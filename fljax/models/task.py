"""The task of a network's outputs: classification, regression, or several labels per example.

Clients minimise a model's ``loss`` and are tested by it. A loss made here also states its task, which sets the metrics
(`fljax.metrics.evaluate`); any other function of outputs and labels is a loss for classification. A user's own loss for
numbers or several labels is an argument of `regression` or `multi_label`.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.core import Tracer

from fljax.argument_kinds import checked_kinds
from fljax.types import Key, Model, Params

TaskName = Literal["classification", "regression", "labels"]
"""Classes; numbers; several labels per example."""

Losses = Callable[[Array, Array], Array]
"""``loss(outputs, y) -> losses (batch,)``."""

_KINDS = {"squared": jnp.square, "absolute": jnp.abs}


class Score(NamedTuple):
    """A metric that a test reports of each client in addition to the metric contract, see `fljax.scored`."""

    name: str
    of: Callable[..., Array]
    of_all: bool  # computed from all of a client's examples at once; else per example


class Task(NamedTuple):
    """A loss that states its task; called as ``task(outputs, y) -> losses (batch,)``."""

    name: TaskName
    loss: Losses
    scores: tuple[Score, ...] = ()
    on_validation: bool = False  # whether tests are made on the validation split too

    def __call__(self, outputs: Array, y: Array) -> Array:
        """The loss of each example."""
        return self.loss(outputs, y)


def task_of(loss: Losses) -> TaskName:
    """The task of a loss; classification if it states none."""
    return loss.name if isinstance(loss, Task) else "classification"


def as_tested(task: Task, before: Losses) -> Task:
    """The task with the scores and the validation setting of the loss ``before``."""
    source = before if isinstance(before, Task) else task
    return task._replace(scores=source.scores, on_validation=source.on_validation)


def scores_of(loss: Losses) -> tuple[Score, ...]:
    """The scores of a model with this loss in addition to the metric contract."""
    return loss.scores if isinstance(loss, Task) else ()


@checked_kinds
def regression(
    model: Model,
    loss: Literal["squared", "absolute"] | Losses = "squared",
    *,
    mean: float | Sequence[float] | np.ndarray | Array = 0.0,
    deviation: float | Sequence[float] | np.ndarray | Array = 1.0,
) -> Model:
    """The model for regression: its outputs predict targets of dtype float32.

    The prediction is ``deviation * output + mean``, and the loss ``((prediction - y) / deviation)^2``, or the absolute
    value, averaged over the outputs: with the targets' own mean and standard deviation, a learning rate has the same
    effect in any unit of the targets. Tests report errors in this unit.

    Args:
        model: the network; its last layer has as many outputs as there are targets (``n_classes`` of fljax's networks).
        loss: "squared", "absolute", or a function ``(outputs, targets) -> (batch,)`` of two arrays (batch, targets),
            both minus the mean and divided by the deviation: ``lambda o, y: optax.huber_loss(o, y).mean(axis=1)``.
        mean: mean of the targets, one number or one per target; a JAX array may be traced.
        deviation: standard deviation of the targets, above 0; one number or one per target, as ``mean``.

    Returns:
        A model with the same parameters and layers. Equal numbers return the same object, which compiles once; traced
        numbers are not part of the model's description.

    Raises:
        ValueError: an unknown loss, a number that is not finite, or a deviation that is not positive.
    """
    if not callable(loss) and loss not in _KINDS:
        text = "choose 'squared', 'absolute' or a function (outputs, targets) -> (batch,)"
        raise ValueError(f"loss={loss!r} is unknown; {text}")
    if isinstance(mean, Tracer) or isinstance(deviation, Tracer):
        return _regressing(model, loss, mean, deviation)  # pyrefly: ignore[bad-argument-type]
    shift, scale = _plain("mean", mean), _plain("deviation", deviation)
    for name, part in (("mean", shift), ("deviation", scale)):
        values = as_float32(part)
        if not (np.isfinite(values).all() and (name == "mean" or (values > 0).all())):
            raise ValueError(f"{name}={part}: give finite numbers{'' if name == 'mean' else ' above 0'}")
    return _regression(model, loss, shift, scale)


def as_float32(numbers: Any) -> np.ndarray:
    """The numbers as they are computed with: those beyond float32 are infinite, those too near to 0 are 0."""
    with np.errstate(over="ignore"):
        return np.asarray(numbers, np.float64).astype(np.float32)


def _plain(name: str, numbers: float | Sequence[float] | np.ndarray | Array) -> float | tuple[float, ...]:
    """A number as a float, several as a tuple of floats, which are hashable."""
    try:
        values = np.asarray(numbers, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={numbers!r}: give a number, or one per target") from None
    return float(values) if values.ndim == 0 else tuple(map(float, values.ravel()))


@cache
def _regression(model: Model, kind: str | Losses, mean: float | tuple, deviation: float | tuple) -> Model:
    description = (("target_mean", mean), ("target_deviation", deviation)) if model.about else ()
    regressor = _regressing(model, kind, mean, deviation)
    return regressor._replace(about=(*regressor.about, *description))


def _regressing(
    model: Model, kind: str | Losses, mean: float | tuple | Array, deviation: float | tuple | Array
) -> Model:
    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        outputs, params = model.apply(params, x, key)
        for name, part in (("mean", mean), ("deviation", deviation)):
            if (width := _row(part).shape[1]) not in (1, outputs.shape[-1]):
                counts = f"{name} has {width} numbers and the network {outputs.shape[-1]} outputs"
                raise ValueError(f"{counts}; give one number, or one per output")
        return outputs * _row(deviation) + _row(mean), params

    def loss(prediction: Array, y: Array) -> Array:
        if isinstance(kind, str):
            return _KINDS[kind](difference(prediction, y) / _row(deviation)).mean(axis=1)
        check_width(prediction, y)
        return kind(*((part - _row(mean)) / _row(deviation) for part in (prediction, as_targets(y))))

    description = (("task", "regression"), ("loss", kind)) if model.about else ()
    task = as_tested(Task("regression", loss), model.loss)
    return model._replace(apply=apply, loss=task, halves=None, about=(*model.about, *description))


@checked_kinds
@cache
def multi_label(model: Model, loss: Losses | None = None) -> Model:
    """The model for several labels per example: each output is the logit of one label.

    Args:
        model: the network, with one output per label.
        loss: ``(outputs, y) -> (batch,)``, a function of two arrays (batch, labels), ``y`` of 0s and 1s; None: the
            logistic loss, averaged over the labels.

    Raises:
        ValueError: the loss is not a function.
    """
    description = (("task", "labels"), *(() if loss is None else (("loss", loss),))) if model.about else ()
    task = as_tested(_LABELS if loss is None else Task("labels", loss), model.loss)
    return model._replace(loss=task, about=(*model.about, *description))


def _logistic(outputs: Array, y: Array) -> Array:
    check_width(outputs, y)
    return optax.sigmoid_binary_cross_entropy(outputs, as_targets(y)).mean(axis=1)


_LABELS = Task("labels", _logistic)


def difference(outputs: Array, y: Array) -> Array:
    """``outputs - y`` (batch, outputs).

    Raises:
        ValueError: the numbers of outputs and targets differ.
    """
    check_width(outputs, y)
    return outputs - as_targets(y)


def check_width(outputs: Array, y: Array) -> None:
    """Raises ValueError if the numbers of outputs and targets differ."""
    n_outputs, wanted = outputs.shape[-1], as_targets(y).shape[-1]
    if n_outputs != wanted:
        raise ValueError(f"the network has {n_outputs} outputs and the labels {wanted} columns; use {wanted} outputs")


def as_targets(y: Array) -> Array:
    """Targets (batch,) or (batch, outputs) as (batch, outputs)."""
    return y[:, None] if y.ndim == 1 else y


def _row(numbers: float | tuple[float, ...] | Array) -> Array:
    """(1, 1) or (1, outputs)."""
    return jnp.asarray(numbers, jnp.float32).reshape(1, -1)
