"""Checks, before the first round, that a network can take the clients' examples and has an output for each class."""

import math
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.checks.arguments import check_key
from fljax.checks.state import begun, deployed
from fljax.data.federation import minibatch
from fljax.data.labels import are_classes
from fljax.data.validation import check_common
from fljax.models.linen import ParamsError
from fljax.models.scored import check_scores, is_validated
from fljax.models.task import task_of
from fljax.ranges import said
from fljax.types import Algorithm, ClientData, ExampleLoss, Examples, Federation, Key, ModelTable, Params, Work


@checked_kinds
def check_subjects(algorithm: Algorithm, federation: Federation, key: Key, *, must_train: bool = True) -> None:
    """Checks that a run's method, clients and key are of the right types, and that its labels suit its loss.

    Args:
        algorithm: the method.
        federation: the clients.
        key: of the run.
        must_train: whether a client must have a batch to train on.

    Raises:
        ValueError: they are not; the message has what they are and what to give.
    """
    if not callable(algorithm.loss):
        raise ValueError(
            f"{said('loss', algorithm.loss)} of the model is not a function; give one (logits, labels) -> (batch,), "
            "such as optax.softmax_cross_entropy_with_integer_labels, or use fljax.regression or fljax.multi_label"
        )
    if is_validated(algorithm.loss) and federation.val is None:
        raise ValueError(
            "the model is to be validated, but the federation has no validation split; make one with val_fraction "
            "above 0 (--partition.val-fraction 0.1)"
        )
    check_key(key)
    _check_there(federation)
    check_common(federation)
    about, x = dict(algorithm.about.model), federation.train.pool.x
    input_shape, shape = about.get("input_shape"), x.shape[1:]
    check_takes(algorithm.about.model, x.dtype)
    if input_shape is not None and math.prod(input_shape) != math.prod(shape):
        raise _other_shape(input_shape, shape)
    if "input_dtype" in about and (vocabulary := about.get("vocabulary")) is not None:
        _check_tokens(vocabulary, federation)
    check_labels(algorithm, federation)
    if must_train:
        _check_batches(algorithm.about.work, federation.train)


def _check_batches(work: Work | None, data: ClientData) -> None:
    """Raises ValueError if no client has a batch, as small batches are left out."""
    is_traced = isinstance(data.size, jax.core.Tracer)
    if work is None or not work.drop_last or work.batch_size is None or is_traced:
        return
    if not getattr(data.size, "is_fully_addressable", True):
        return
    largest = int(np.asarray(data.size).max())
    if largest < work.batch_size:
        raise ValueError(
            f"drop_last=True leaves no client a batch of batch_size={work.batch_size}: the largest has {largest} "
            f"examples; choose batch_size <= {largest}, or leave drop_last out"
        )


def _check_there(federation: Federation) -> None:
    """Raises ValueError if `Federation.there` does not say of each client whether it can participate."""
    there, n_clients = federation.there, federation.train.n_clients
    shape, dtype = getattr(there, "shape", None), getattr(there, "dtype", None)
    if there is not None and (shape is None or shape != (n_clients,) or dtype != np.bool_):
        given = f"of type {type(there).__name__}" if shape is None else f"{dtype}{[*shape]}"
        raise ValueError(f"there of the federation is {given}; give a bool array, one for each of {n_clients} clients")


def check_takes(about: Iterable[tuple[str, Any]], dtype: Any) -> None:
    """Checks that a network whose description ``about`` says that it takes tokens gets tokens.

    Raises:
        ValueError: the examples are of another ``dtype``.
    """
    if (kind := dict(about).get("input_dtype")) is not None and dtype != jnp.int32:
        pixels = ", which is treated as pixels and scaled" if dtype == jnp.uint8 else ""
        raise ValueError(f"the network takes {kind} tokens, but the examples are {dtype}{pixels}; give int32")


def check_labels(algorithm: Algorithm, federation: Federation) -> None:
    """Checks that the labels suit the model's loss, and that the model has an output for each class.

    Raises:
        ValueError: they do not; the message has what they are and what to give.
    """
    _check_suits(federation.train.pool.y, algorithm.loss)
    n_outputs = dict(algorithm.about.model).get("n_outputs")
    y = federation.train.pool.y
    if n_outputs is not None and task_of(algorithm.loss) == "classification":
        _check_n_outputs(n_outputs, y, federation.test.pool.y)
        if y.ndim == 1:
            _check_loss(algorithm.loss, n_outputs, y.dtype)


@cache  # a later run with the same loss does not trace it again
def _check_loss(loss: ExampleLoss, n_outputs: int, dtype: Any) -> None:
    """Raises ValueError if a user's loss does not take the outputs and labels of a classification."""
    outputs, labels = jax.ShapeDtypeStruct((2, n_outputs), jnp.float32), jax.ShapeDtypeStruct((2,), dtype)
    try:
        jax.eval_shape(lambda outputs, labels: loss(outputs, labels), outputs, labels)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the model's loss cannot be called with outputs (batch, {n_outputs}) and labels (batch,) of {dtype}: "
            f"{error}; one that can is optax.softmax_cross_entropy_with_integer_labels"
        ) from error


def _check_suits(y: Array, loss: ExampleLoss) -> None:
    check_scores(loss)
    task = task_of(loss)
    shape = f"labels are {y.dtype} of shape {y.shape}"
    if task != "classification":
        if are_classes(y):
            expected = "labels of 0 and 1, (examples, labels)" if task == "labels" else "floating-point targets"
            raise ValueError(f"{shape}, that is classes, but the model's task is {task}; give {expected}")
        return
    if not are_classes(y):
        raise ValueError(
            f"{shape}, but the model's loss is for classes 0, 1, 2, ...; give whole numbers, or use "
            "fljax.regression(model) or fljax.multi_label(model), which take a loss of your own as loss="
        )


def check_outputs(algorithm: Algorithm, hyper: Any, federation: Federation, key: Key) -> None:
    """Checks that need the outputs of a network.

    Raises:
        ValueError: a network that does not state its number of outputs, such as two functions, has fewer than classes,
            so that the loss of some examples would be NaN; or the examples have the right size but another shape, and
            the network needs the shape (a convolution does, dense layers do not).
    """
    about, shape = dict(algorithm.about.model), federation.train.pool.x.shape[1:]
    if (input_shape := about.get("input_shape")) is not None and tuple(input_shape) != shape:
        try:
            _first_outputs.eval_shape(algorithm, hyper, federation.train, key)
        except (ExampleError, ParamsError, FlaxError) as error:
            raise _other_shape(input_shape, shape) from error
    if "n_outputs" not in about and task_of(algorithm.loss) == "classification":
        outputs = _first_outputs.eval_shape(algorithm, hyper, federation.train, key)
        _check_n_outputs(outputs.shape[-1], federation.train.pool.y, federation.test.pool.y)


class ExampleError(ValueError):
    """A network cannot take the examples."""


def _other_shape(input_shape: Any, shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"the network takes examples of shape {input_shape}, but the clients' have shape {shape}; make it with this "
        "shape"
    )


@partial(jax.jit, static_argnums=0)  # so that it is traced once
def _first_outputs(algorithm: Algorithm, hyper: Any, data: ClientData, key: Key) -> Array:
    """The outputs of the first client's model before any round, for one example."""
    models = deployed(algorithm.deploy, key, hyper, begun(algorithm.init, key, hyper, data), data)
    return _outputs(algorithm.predict, models, data.pool)


def check_tested(
    predict: Callable[[Params, Array], Array], models: ModelTable, data: ClientData, loss: ExampleLoss
) -> None:
    """Checks that models can be tested on ``data`` with ``loss``; of traced data only the type of the labels.

    Raises:
        ValueError: the labels do not suit the loss, or ``predict`` cannot take the examples or lacks an output for a
            class.
    """
    _check_callable("loss", loss, "(logits, labels) -> (batch,)")
    _check_suits(data.pool.y, loss)
    if not isinstance(data.pool.y, jax.core.Tracer):
        outputs = check_predicts(predict, models, data)
        if task_of(loss) == "classification":
            _check_n_outputs(outputs.shape[-1], data.pool.y)


def check_predicts(predict: Callable[[Params, Array], Array], models: ModelTable, data: ClientData) -> Any:
    """Checks that ``predict`` takes the examples of ``data`` and returns (examples, outputs); returns the shape for one
    example.

    Raises:
        ValueError: it does not.
    """
    _check_callable("predict", predict, "(params, x) -> outputs, as algorithm.predict")
    return _outputs.eval_shape(predict, models, data.pool)


def _check_callable(name: str, value: Any, signature: str) -> None:
    """Raises ValueError if ``value`` is not a function."""
    if not callable(value):
        raise ValueError(f"{said(name, value)} is not a function; give {signature}")


@partial(jax.jit, static_argnums=0)
def _outputs(predict: Callable[[Params, Array], Array], models: ModelTable, pool: Examples) -> Array:
    """The outputs of the first client's model for one example."""
    example = minibatch(pool, jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32))
    try:
        outputs = predict(tree.row(models.params, models.row[0]), example.x)
    except Exception as error:  # whatever a network raises
        raise ExampleError(f"predict cannot take examples of shape {example.x.shape[1:]}: {error}") from error
    if not isinstance(outputs, Array) or outputs.ndim < 2 or len(outputs) != 1:
        returned = f"an array {outputs.shape}" if isinstance(outputs, Array) else f"a {type(outputs).__name__}"
        raise ValueError(f"predict returned {returned} for one example; return outputs (examples, classes)")
    return outputs


def _check_n_outputs(n_outputs: int, *labels: Array) -> None:
    _, largest = _range(*labels)
    if largest >= n_outputs:
        raise ValueError(
            f"there is a label {largest}, but the network has {n_outputs} outputs; give it {largest + 1} or more"
        )


def _check_tokens(n_tokens: int, federation: Federation) -> None:
    """Raises ValueError if an embedding has no row for a token: beyond the last row outputs would be NaN, and -1 would
    mean the last token."""
    least, largest = _range(federation.train.pool.x, federation.test.pool.x)
    if least < 0:
        raise ValueError(f"there is a token {least}, but tokens are 0, 1, 2, ...; number the padding token, too")
    if largest >= n_tokens:
        raise ValueError(f"there is a token {largest}, but the vocabulary is {n_tokens}; choose {largest + 1} or more")


def _range(*arrays: Array) -> tuple[int, int]:
    """(least, largest) of the whole numbers, together with 0 and -1; (0, -1) if their values are not known here."""
    if any(isinstance(array, jax.core.Tracer) or not getattr(array, "is_fully_addressable", True) for array in arrays):
        return 0, -1
    host_arrays = [np.asarray(array) for array in arrays]
    least = min(int(array.min(initial=0)) for array in host_arrays)
    return least, max(int(array.max(initial=-1)) for array in host_arrays)
