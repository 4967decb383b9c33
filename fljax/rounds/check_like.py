"""Checks of what a user's functions return: the structure, shapes and dtypes that the engine needs."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path


def check_like(what: str, value: Any, like: Any) -> None:
    """Checks that a value can take the place of another.

    Args:
        what: which function returned what, such as "combine returned a model"; begins the message.
        value: what it returned.
        like: a value with the required structure, shapes and dtypes; the precision of floating-point numbers may
            differ, because the engine converts it.

    Raises:
        ValueError: the value differs; the message names the first part that differs.
    """
    (leaves, structure), (like_leaves, like_structure) = map(tree_flatten_with_path, (value, like))
    if structure != like_structure:
        remedy = "return the structure that it received"
        paths, like_paths = ([keystr(path) for path, _ in part] for part in (leaves, like_leaves))
        for some_paths, other_paths, fault in ((like_paths, paths, "without"), (paths, like_paths, "with")):
            if differing := [path for path in some_paths if path not in other_paths]:
                text = f"{what} {fault} {differing[0] or 'a structure'}"
                received = (", ".join(like_paths) or "one array") if like_paths else "no arrays"
                raise ValueError(f"{text}; {remedy}: {received}")
        raise ValueError(f"{what} of the structure {structure}; {remedy}: {like_structure}")
    for (path, leaf), (_, like_leaf) in zip(leaves, like_leaves, strict=True):
        shape, dtype, like_dtype = jnp.shape(leaf), _dtype(leaf), _dtype(like_leaf)
        if shape != jnp.shape(like_leaf):
            text = f"{what} whose {keystr(path)} has shape {shape}; return {jnp.shape(like_leaf)}, as it received"
            raise ValueError(text.replace("whose  has", "that has"))
        are_floats = all(jnp.issubdtype(part, jnp.floating) for part in (dtype, like_dtype))
        if dtype != like_dtype and not are_floats and not getattr(like_leaf, "weak_type", False):
            text = f"{what} whose {keystr(path)} is {dtype}; return {like_dtype}, as it received"
            raise ValueError(text.replace("whose  is", "that is"))


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jax.dtypes.result_type(leaf)
