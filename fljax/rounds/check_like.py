"""Checks of what a user's functions return: the structure, shapes and dtypes that the engine needs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path


def check_like(what: str, given: Any, like: Any) -> None:
    """Checks that a value can take the place of another.

    Args:
        what: which function returned what, such as "combine returned a model"; begins the message.
        given: the value.
        like: a value with the required structure, shapes and dtypes; the precision of floating-point numbers may
            differ, because the engine converts it.

    Raises:
        ValueError: the value differs; the message names the first part that differs.
    """
    (found, made), (stated, structure) = tree_flatten_with_path(given), tree_flatten_with_path(like)
    if made != structure:
        has, needs = [keystr(path) for path, _ in found], [keystr(path) for path, _ in stated]
        for these, those, fault in ((needs, has, "without"), (has, needs, "with")):
            if others := [path for path in these if path not in those]:
                text = f"{what} {fault} {others[0] or 'a structure'}"
                raise ValueError(f"{text}; return the structure that it received: {', '.join(needs) or 'one array'}")
        raise ValueError(f"{what} of the structure {made}; return the structure that it received: {structure}")
    for (path, one), (_, before) in zip(found, stated, strict=True):
        shape, kind, kind_before = jnp.shape(one), _dtype(one), _dtype(before)
        if shape != jnp.shape(before):
            text = f"{what} whose {keystr(path)} has shape {shape}; return {jnp.shape(before)}, as it received"
            raise ValueError(text.replace("whose  has", "that has"))
        floats = all(jnp.issubdtype(each, jnp.floating) for each in (kind, kind_before))
        if kind != kind_before and not floats and not getattr(before, "weak_type", False):
            text = f"{what} whose {keystr(path)} is {kind}; return {kind_before}, as it received"
            raise ValueError(text.replace("whose  is", "that is"))


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jax.dtypes.result_type(leaf)
