"""How a user's network is called, and which of its parts are layers: found out before anything is trained."""

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
"""Whether the network trains -> the keyword arguments that tell it."""

TRAINING = ("train", "training", "is_training")
"""Arguments that are True in training."""
EVALUATION = ("deterministic", "inference", "use_running_average")
"""Arguments that are False in training."""
TOKENS = "give it input_dtype=jnp.int32, and examples as int32, not normalized (uint8 are pixels, which are scaled)"
"""What to do about a network of whole numbers."""
FLOATS = tuple(map(jnp.dtype, ("float32", "bfloat16", "float16", "float64")))
"""What parameters may be."""


def once(adapt: Callable[..., Model]) -> Callable[..., Model]:
    """``adapt`` that gives the same object for equal arguments, so that nothing compiles twice, where they hash."""
    known = cache(adapt)

    @wraps(adapt)
    def adapted(*about_it: Any) -> Model:
        try:
            hash(about_it)
        except TypeError:  # as nn.Sequential of a list: another object each time
            return adapt(*about_it)
        return known(*about_it)

    return adapted


def calling_mode(call: Callable[..., Any], name: str) -> Mode:
    """How a network's function ``(x, ...)`` is told whether it trains, read off its signature.

    Args:
        call: the function; of a class, whose first argument is passed over whatever its name.
        name: of the network, for refusals.

    Raises:
        ValueError: it has an argument without default that is neither the batch nor such a switch.
    """
    parameters = list(inspect.signature(call).parameters.values())[1:]
    named = {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    switches = {arg: True for arg in TRAINING if arg in named} | {arg: False for arg in EVALUATION if arg in named}
    needed = [p for p in named.values() if p.default is p.empty and p.name not in switches]
    if not switches and len(needed) == 2 and needed[1].kind is not inspect.Parameter.KEYWORD_ONLY:
        switches, needed = {needed[1].name: True}, needed[:1]
    if len(needed) > 1:
        unknown = ", ".join(p.name for p in needed[1:])
        known = ", ".join((*TRAINING, *EVALUATION))
        raise ValueError(f"{name} must be given {unknown}; a network takes a batch and one of {known}")
    return lambda train: {arg: train == on_when for arg, on_when in switches.items()}


def outputs_of(call: Callable[[Any], Any], empty: jax.ShapeDtypeStruct, name: str) -> tuple[Any, Any]:
    """What a network's call makes of a batch like ``empty``: shape and type, nothing is computed; and its jaxpr.

    Raises:
        ValueError: it cannot be called so, or gives no row of outputs for each example; where whole numbers are what it
            wants, that is said.
    """
    empty = jax.ShapeDtypeStruct((2, *empty.shape[1:]), empty.dtype)  # of one example any shape could be a row
    failed = f"{name} cannot be called with a batch of examples of shape {empty.shape[1:]}"
    try:
        traced, outputs = jax.make_jaxpr(call, return_shape=True)(empty)
    except Exception as error:  # whatever a user's network raises
        text = f"{failed}: {error}{_place(error)}"
        if jnp.issubdtype(empty.dtype, jnp.floating) and _takes_tokens(call, empty):
            text = f"{name} takes whole numbers, such as tokens, and not {empty.dtype}: {TOKENS} ({error})"
        raise ValueError(text) from error
    shape: tuple[int, ...] = getattr(outputs, "shape", ())
    kind = getattr(outputs, "dtype", jnp.dtype(bool))
    of_rows = len(shape) == 2 or (len(shape) > 2 and not jnp.issubdtype(empty.dtype, jnp.floating))  # of tokens
    if not of_rows or shape[:1] != (2,) or not jnp.issubdtype(kind, jnp.floating):
        given = "no array" if not shape else f"an array {shape} of {kind}"
        raise ValueError(f"{failed}: of two it makes {given}; give outputs (examples, classes) of floats")
    return outputs, traced.jaxpr


def _place(error: Exception) -> str:
    """Where in the user's own code an error was raised; "" where in a library."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


_LIBRARIES = (*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), str(Path(__file__).parents[1]))


def _takes_tokens(call: Callable[[Any], Any], empty: jax.ShapeDtypeStruct) -> bool:
    try:
        jax.eval_shape(call, jax.ShapeDtypeStruct(empty.shape, jnp.int32))
    except Exception:
        return False
    return True


def about_inputs(input_shape: Sequence[int], input_dtype: DTypeLike) -> Description:
    """What a description says of the examples that a network sees; that they are no tokens goes without saying."""
    shape, dtype = ("input_shape", tuple(input_shape)), jnp.dtype(input_dtype)
    return (shape, ("input_dtype", str(dtype))) if jnp.issubdtype(dtype, jnp.signedinteger) else (shape,)


def check_layers(found: Sequence[str], given: Sequence[str] | None) -> tuple[str, ...]:
    """``given``, or where it is None ``found``, as a model's layers.

    Raises:
        ValueError: they are not the same names: a method that shares or compares some layers would pass others over.
    """
    if given is None:
        return tuple(found)
    if unknown := [name for name in given if name not in found]:
        raise ValueError(f"layers={tuple(given)}: the network has no {unknown[0]!r}; its layers are {tuple(found)}")
    if missing := [name for name in found if name not in given]:
        raise ValueError(f"layers={tuple(given)}: {missing[0]!r} is missing; the network's layers are {tuple(found)}")
    if len(set(given)) < len(given):
        raise ValueError(f"layers={tuple(given)}: a layer stands there twice")
    return tuple(given)


def check_free(model: Model, method: str, *names: str) -> None:
    """Raises ValueError where the network has a layer of a name that a method gives to a part of its own."""
    if taken := [name for name in names if name in model.layers]:
        text = f"{method} puts a part called {taken[0]!r} beside the network, which has a layer of that name"
        raise ValueError(f"{text}; call the layer otherwise")


def check_model(model: Model) -> None:
    """Checks that a model's layers are the top-level parts of its parameters, nested dicts of floats; nothing is
    computed.

    Raises:
        ValueError: they are not, or a part of the parameters is no dict and no array (files could not name it), or an
            array of numbers that no gradient moves, as integers.
    """
    _check(model.init, model.layers)


@cache
def _check(init: Callable[[Key], Params], layers: tuple[str, ...]) -> None:
    whole = jax.eval_shape(init, jax.random.key(0))
    params = split_statistics(whole)[0]
    if not isinstance(params, Mapping):
        raise ValueError(f"the model's parameters are a {type(params).__name__}; give a dict {{layer: parameters}}")
    named_leaves(whole)
    for path, leaf in named_leaves(params).items():
        if leaf.dtype not in FLOATS:
            where = "".join(f"[{name!r}]" for name in path)
            raise ValueError(
                f"the model's params{where} is {leaf.dtype}, and parameters are trained; give one of "
                f"{', '.join(map(str, FLOATS))}, or hold it in the network beside its parameters"
            )
    check_layers([name for name, part in params.items() if jax.tree.leaves(part)], layers)
