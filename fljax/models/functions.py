"""From two plain functions to a `Model`."""

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
from jax import Array

from fljax.models.calling import check_layers
from fljax.types import Key, Model, Params


def from_functions(
    init: Callable[[Key], Params], apply: Callable[..., Any], layers: Sequence[str] | None = None
) -> Model:
    """A network in two functions as a `Model`.

    ::

        model = fljax.from_functions(init, lambda params, x: jnp.tanh(x @ params["first"]) @ params["last"])

    Args:
        init: ``(key) -> {layer: parameters}``, nested dicts of floating-point arrays with names for keys.
        apply: ``(params, x) -> outputs (batch, outputs)``; or ``(params, x, key)``, with key None in evaluation.
            One that returns ``(outputs, params)`` updates running statistics, which stand under ``"batch_stats"``.
        layers: names of the layers in forward order; None: in the order in which ``init`` makes them.

    Returns:
        The model; equal arguments give the same object.

    Raises:
        ValueError: ``layers`` are not the layers, or the parameters are no dict.
    """
    return _from_functions(init, apply, None if layers is None else tuple(layers))


@cache
def _from_functions(init: Callable[[Key], Params], apply: Callable[..., Any], layers: tuple[str, ...] | None) -> Model:
    takes_key = len(inspect.signature(apply).parameters) > 2
    found: list[str] = []

    def note(key: Key) -> None:
        params = init(key)
        if not isinstance(params, dict):
            raise ValueError(f"init makes a {type(params).__name__}; give a dict {{layer: parameters}}")
        found.extend(name for name in params if name != "batch_stats")  # what comes out of a trace is sorted

    jax.eval_shape(note, jax.random.key(0))

    def applied(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        outputs = apply(params, x, key) if takes_key else apply(params, x)
        outputs, updated = outputs if isinstance(outputs, tuple) else (outputs, params)
        return outputs, params if key is None else updated

    return Model(init, applied, check_layers(found, layers))
