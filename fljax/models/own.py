"""A network from a user's file as a `Model`, as named by `--model ./mine.py:net`."""

import inspect
from collections.abc import Mapping
from typing import Any

from flax import linen as nn
from flax import nnx
from jax.typing import DTypeLike

from fljax.models.linen import from_linen
from fljax.models.nnx import from_nnx
from fljax.types import Model


def maker(thing: Any) -> Any:
    """The function whose signature has the arguments of ``thing``: for an nnx class, its ``__init__``."""
    return thing.__init__ if isinstance(thing, type) and issubclass(thing, nnx.Module) else thing


def as_model(
    source: Any, input_shape: tuple[int, ...], n_classes: int, settings: Mapping[str, Any], input_dtype: DTypeLike
) -> Any:
    """The `Model` from an object in a user's file.

    Args:
        source: a `Model`; a linen module; a function or class that returns one of these, called with ``input_shape``
            and ``n_classes`` if it takes them; or a function or class that takes ``rngs`` and returns an nnx module.
        input_shape: shape of an example.
        n_classes: number of outputs that the data needs.
        settings: other arguments.
        input_dtype: type of the network's inputs.

    Returns:
        The model; any other object is returned unchanged, and the caller rejects it.

    Raises:
        ValueError: the network cannot be built or called so.
    """
    if isinstance(source, nn.Module):
        return from_linen(source, input_shape, input_dtype=input_dtype)
    if isinstance(source, Model):
        return source
    parameters = inspect.signature(maker(source)).parameters
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    offered = {"input_shape": input_shape, "n_classes": n_classes}
    arguments = {name: value for name, value in offered.items() if name in parameters or takes_anything}
    arguments |= settings
    if "rngs" in parameters:
        return from_nnx(lambda rngs: source(rngs=rngs, **arguments), input_shape, input_dtype=input_dtype)
    built = source(**arguments)
    return from_linen(built, input_shape, input_dtype=input_dtype) if isinstance(built, nn.Module) else built
