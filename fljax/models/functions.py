"""From two plain functions to a `Model`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array

from fljax.models.calling import check_layers, once
from fljax.models.lapack_init import one_by_one
from fljax.types import Key, Model, Params


def from_functions(
    init: Callable[[Key], Params], apply: Callable[..., Any], layers: Sequence[str] | None = None
) -> Model:
    """A network given by two functions as a `Model`.

    ::

        model = fljax.from_functions(init, lambda params, x: jnp.tanh(x @ params["first"]) @ params["last"])

    Args:
        init: ``(key) -> {layer: parameters}``, nested dicts of floating-point arrays with names for keys.
        apply: ``(params, x) -> outputs (batch, outputs)``; or ``(params, x, key)``, with key None in evaluation.
            If it returns ``(outputs, params)``, it updates running statistics, which are under ``"batch_stats"``.
            Arguments with a default keep it, except an argument called ``key``.
        layers: names of the layers in forward order; None: in the order of the dict that ``init`` returns.

    Returns:
        The model; equal hashable arguments return the same object.

    Raises:
        ValueError: ``layers`` are not the layers, the parameters are not a dict, or ``apply`` needs other arguments.
    """
    return _from_functions(init, apply, None if layers is None else tuple(layers))


@once
def _from_functions(init: Callable[[Key], Params], apply: Callable[..., Any], layers: tuple[str, ...] | None) -> Model:
    with_key = _with_key(apply)
    names: list[str] = []

    def note(key: Key) -> None:
        params = init(key)
        if not isinstance(params, dict):
            raise ValueError(f"init returns a {type(params).__name__}; return a dict {{layer: parameters}}")
        names.extend(name for name in params if name != "batch_stats")  # in order; a traced dict is sorted

    traced = jax.make_jaxpr(note)(jax.random.key(0))

    def applied(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        outputs = with_key(params, x, key)
        outputs, updated = outputs if isinstance(outputs, tuple) else (outputs, params)
        return outputs, params if key is None else updated

    return Model(one_by_one(init, traced.jaxpr), applied, check_layers(names, layers))


def _with_key(apply: Callable[..., Any]) -> Callable[[Params, Array, Key | None], Any]:
    """``apply`` with a third argument, the key, which is passed on if ``apply`` takes one.

    Raises:
        ValueError: it needs further arguments, which are named.
    """
    parameters = inspect.signature(apply).parameters
    required = {
        name: parameter.kind for name, parameter in parameters.items() if name == "key" or _is_needed(parameter)
    }
    by_place = [name for name, kind in required.items() if kind != inspect.Parameter.KEYWORD_ONLY]
    key = "key" if "key" in required and "key" not in by_place[:2] else (*by_place, None, None, None)[2]
    if extra_names := [name for name in required if name not in (*by_place[:2], key)]:
        text = f"apply needs {', '.join(extra_names)} besides params, x and key"
        raise ValueError(f"{text}; give each a value in a lambda")
    if key is None:
        return lambda params, x, _: apply(params, x)
    if required[key] == inspect.Parameter.POSITIONAL_ONLY:
        return apply
    return lambda params, x, value: apply(params, x, **{key: value})


def _is_needed(parameter: inspect.Parameter) -> bool:
    is_variadic = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not is_variadic
