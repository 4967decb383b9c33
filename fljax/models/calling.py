"""How a user's network is called, and which of its parts are layers; checked before training."""

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fljax.tree import named_leaves, split_statistics
from fljax.types import Description, Key, Model, Params

Mode = Callable[[bool], dict[str, Any]]
"""Whether the network is in training mode -> the keyword arguments that set this mode."""

TRAINING = ("train", "training", "is_training")
"""Arguments that are True in training."""
EVALUATION = ("deterministic", "inference", "use_running_average")
"""Arguments that are False in training."""
TOKENS = "give it input_dtype=jnp.int32, and examples as int32, not normalized (uint8 are pixels, which are scaled)"
"""Advice for a network whose inputs are whole numbers."""
FLOATS = tuple(map(jnp.dtype, ("float32", "bfloat16", "float16", "float64")))
"""Allowed types of parameters."""


def once(adapt: Callable[..., Model]) -> Callable[..., Model]:
    """``adapt`` that returns the same object for equal hashable arguments, so that a model compiles once."""
    cached = cache(adapt)

    @wraps(adapt)
    def adapted(*arguments: Any) -> Model:
        try:
            hash(arguments)
        except TypeError:  # such as nn.Sequential of a list: a new object each time
            return adapt(*arguments)
        return cached(*arguments)

    return adapted


def calling_mode(call: Callable[..., Any], name: str) -> Mode:
    """How the training mode of a network's function ``(x, ...)`` is set, read from its signature.

    Args:
        call: the function of a class; its first argument (self) is skipped, whatever its name.
        name: name of the network, for messages.

    Raises:
        ValueError: it has an argument without default that is neither the batch nor such a switch.
    """
    parameters = list(inspect.signature(call).parameters.values())[1:]
    by_name = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    switches = {arg: True for arg in TRAINING if arg in by_name} | {arg: False for arg in EVALUATION if arg in by_name}
    required = [p for p in by_name.values() if p.default is p.empty and p.name not in switches]
    if not switches and len(required) == 2 and required[1].kind is not inspect.Parameter.KEYWORD_ONLY:
        switches, required = {required[1].name: True}, required[:1]
    if len(required) > 1:
        unknown_names = ", ".join(p.name for p in required[1:])
        allowed = ", ".join((*TRAINING, *EVALUATION))
        raise ValueError(f"{name} needs the arguments {unknown_names}; a network takes a batch and one of {allowed}")
    return lambda train: {arg: train == on_when for arg, on_when in switches.items()}


def outputs_of(call: Callable[[Any], Any], batch: jax.ShapeDtypeStruct, name: str) -> tuple[Any, Any]:
    """Shape and type of a network's outputs for a batch of this shape and type, without computing them, and its jaxpr.

    Raises:
        ValueError: the network cannot be called with such a batch, or does not return one row of outputs per example;
            the message says so if it accepts only whole numbers.
    """
    batch = jax.ShapeDtypeStruct((2, *batch.shape[1:]), batch.dtype)  # with one example, any shape could be a row
    failure = f"{name} cannot be called with a batch of examples of shape {batch.shape[1:]}"
    try:
        traced, outputs = jax.make_jaxpr(call, return_shape=True)(batch)
    except Exception as error:  # whatever a user's network raises
        text = f"{failure}: {error}{_place_in_user_code(error)}"
        if jnp.issubdtype(batch.dtype, jnp.floating) and _takes_tokens(call, batch):
            text = f"{name} takes whole numbers, such as tokens, not {batch.dtype}: {TOKENS} ({error})"
        raise ValueError(text) from error
    shape: tuple[int, ...] = getattr(outputs, "shape", ())
    dtype = getattr(outputs, "dtype", jnp.dtype(bool))
    are_rows = len(shape) == 2 or (len(shape) > 2 and not jnp.issubdtype(batch.dtype, jnp.floating))  # of tokens
    if not are_rows or shape[:1] != (2,) or not jnp.issubdtype(dtype, jnp.floating):
        returned = "no array" if not shape else f"an array {shape} of {dtype}"
        text = f"{failure}: for two examples it returns {returned}"
        raise ValueError(f"{text}; return outputs (examples, classes) of floats")
    return outputs, traced.jaxpr


def _place_in_user_code(error: Exception) -> str:
    """The place in the user's own code where an error was raised; "" if no such code was involved."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return f" ({Path(user_frames[-1].filename).name}, line {user_frames[-1].lineno})" if user_frames else ""


_LIBRARIES = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))


def _takes_tokens(call: Callable[[Any], Any], batch: jax.ShapeDtypeStruct) -> bool:
    try:
        jax.eval_shape(call, jax.ShapeDtypeStruct(batch.shape, jnp.int32))
    except Exception:
        return False
    return True


def about_inputs(input_shape: Sequence[int], input_dtype: DTypeLike) -> Description:
    """The part of a description about a network's inputs; the type is stated only for tokens."""
    shape, dtype = ("input_shape", tuple(input_shape)), jnp.dtype(input_dtype)
    return (shape, ("input_dtype", str(dtype))) if jnp.issubdtype(dtype, jnp.signedinteger) else (shape,)


def check_layers(existing: Sequence[str], layers: Sequence[str] | None) -> tuple[str, ...]:
    """``layers``, or the network's ``existing`` layers if it is None, as a model's layers.

    Raises:
        ValueError: the names differ: a method that shares or compares layers would miss some.
    """
    if layers is None:
        return tuple(existing)
    if unknown := [name for name in layers if name not in existing]:
        raise ValueError(f"layers={tuple(layers)}: the network has no {unknown[0]!r}; its layers are {tuple(existing)}")
    if missing := [name for name in existing if name not in layers]:
        text = f"layers={tuple(layers)}: {missing[0]!r} is missing"
        raise ValueError(f"{text}; the network's layers are {tuple(existing)}")
    if len(set(layers)) < len(layers):
        raise ValueError(f"layers={tuple(layers)}: a layer is named twice; name each once")
    return tuple(layers)


def check_free(model: Model, method: str, *names: str) -> None:
    """Raises ValueError if a layer of the network has a name that a method uses for its own part."""
    if taken := [name for name in names if name in model.layers]:
        text = f"{method} adds a part called {taken[0]!r} to the network, which has a layer of that name"
        raise ValueError(f"{text}; rename the layer")


def check_model(model: Model) -> None:
    """Checks, without computing, that a model's layers are the top-level parts of its parameters, nested dicts of
    floats.

    Raises:
        ValueError: they are not; a part of the parameters is neither a dict nor an array (files could not name it); or
            an array has numbers without gradients, such as integers.
    """
    _check(model.init, model.layers)


@cache
def _check(init: Callable[[Key], Params], layers: tuple[str, ...]) -> None:
    variables = jax.eval_shape(init, jax.random.key(0))
    params = split_statistics(variables)[0]
    if not isinstance(params, Mapping):
        raise ValueError(f"the model's parameters are a {type(params).__name__}; give a dict {{layer: parameters}}")
    named_leaves(variables)
    for path, leaf in named_leaves(params).items():
        if leaf.dtype not in FLOATS:
            where = "".join(f"[{name!r}]" for name in path)
            raise ValueError(
                f"the model's params{where} is {leaf.dtype}, but parameters are trained; give one of "
                f"{', '.join(map(str, FLOATS))}, or keep it in the network outside its parameters"
            )
    check_layers([name for name, part in params.items() if jax.tree.leaves(part)], layers)
