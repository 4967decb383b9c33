"""Gradients that a local step is given, in the place of those of its loss.

`jax.lax.stop_gradient` leaves a value out of every derivative. These leave it out of the client's gradient alone: a
derivative of the whole run with respect to a hyperparameter, see `fljax.hypergradient`, includes it.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.types import Params


@checked_kinds
def with_gradient(step: Callable[[Params], tuple[Array, Any, Params]], params: Params) -> tuple[Array, Any]:
    """``(value (), rest)`` of ``step(params) -> (value, rest, gradient)``: ``gradient`` is the value's gradient.

    Args:
        step: of the parameters; ``rest`` is any pytree, and ``gradient`` has the structure of the parameters, and gets
            their dtypes.
        params: the parameters.
    """

    @jax.custom_vjp
    def valued(params: Params) -> tuple[Array, Any]:
        return step(params)[:2]

    def forward(params: Params) -> tuple[tuple[Array, Any], Params]:
        value, rest, gradient = step(params)
        return (value, rest), tree.as_before(gradient, params)

    def backward(gradient: Params, cotangents: tuple[Array, Any]) -> tuple[Params]:
        return (jax.tree.map(lambda g: cotangents[0].astype(g.dtype) * g, gradient),)

    valued.defvjp(forward, backward)
    return valued(params)


@jax.custom_vjp
def without_gradient(values: Any) -> Any:
    """The pytree ``values`` as it is, with gradient 0."""
    return values


without_gradient.defvjp(lambda values: (values, None), lambda _, cotangents: (None,))
