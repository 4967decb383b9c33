"""Checks of arguments' shapes while a program is traced; an error is one line that names the argument."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.placement import whole
from fljax.types import AnyArray, Params, Stacked


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """The shape of an array; ValueError for a list or anything else without a shape."""
    if not hasattr(value, "shape"):
        raise ValueError(f"{name} is of type {type(value).__name__}, not an array; give one, as by jnp.asarray")
    return value.shape


def check_shape(name: str, value: AnyArray, shape: tuple[int, ...], meaning: str) -> None:
    """Raises ValueError unless ``value`` has this shape; ``meaning`` explains it."""
    if shape_of(name, value) != shape:
        raise ValueError(f"{name} has shape {value.shape}; expected {shape}, {meaning}")


def check_statistics(statistics: Params, layers: Sequence[str]) -> None:
    """Raises ValueError if running statistics belong to no layer, so that it is unknown which layer they follow."""
    for subtrees in statistics.values():
        if extra := [name for name in subtrees if name not in layers]:
            raise ValueError(
                f"{extra[0]!r} has running statistics but no parameters, so it is not a layer; give it a scale, or put "
                "it into the module of a layer"
            )


def is_key(key: Any) -> bool:
    """Whether ``key`` is one random key, typed or raw (the older form of JAX)."""
    dtype, shape = getattr(key, "dtype", None), getattr(key, "shape", None)
    if dtype is None or shape is None:
        return False
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return shape == ()
    return dtype == "uint32" and shape == jax.eval_shape(jax.random.PRNGKey, 0).shape


def check_key(key: Any) -> None:
    """Raises ValueError unless ``key``, inside a jitted function, is one random key."""
    if not is_key(key):
        raise ValueError(f"key has dtype {key.dtype} and shape {key.shape}; give one random key, as jax.random.key(0)")


def check_axes(name: str, value: AnyArray, *axes: str) -> tuple[int, ...]:
    """The shape of an array whose axes have these names; ValueError if it has more or fewer axes."""
    if len(shape_of(name, value)) != len(axes):
        raise ValueError(f"{name} has shape {value.shape}; expected ({', '.join(axes)}{',' * (len(axes) == 1)})")
    return value.shape


def check_vector(name: str, value: AnyArray, n: int, against: str) -> None:
    """Raises ValueError unless ``value`` has shape ``(n,)``, the length of ``against``."""
    check_shape(name, value, (n,), f"one entry per row of {against}")


def cluster_numbers(name: str, label: AnyArray, n: int, against: str) -> Array:
    """Labels as a checked (n,) int32 array: narrower types cannot count to the 129th or 257th cluster."""
    check_vector(name, label, n, against)
    if not jnp.issubdtype(label.dtype, jnp.integer):
        raise ValueError(f"{name} has dtype {label.dtype}; give cluster numbers, which are whole numbers")
    return jnp.asarray(label).astype(jnp.int32)


def check_one(**numbers: ArrayLike) -> None:
    """Raises ValueError unless each of these is a single number: an array would be broadcast along some axis."""
    for name, number in numbers.items():
        check_shape(name, jnp.asarray(number), (), "one number for all")


def check_square(name: str, value: AnyArray) -> int:
    """The n of an ``(n, n)`` matrix with n >= 1; ValueError for any other shape."""
    shape = shape_of(name, value)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise ValueError(f"{name} has shape {shape}; expected (n, n) with n >= 1")
    return shape[0]


def everyone(n: int, where: AnyArray | None, against: str) -> Array:
    """``where`` as a checked (n,) bool mask, whole on every device; all True for None."""
    if where is None:
        return jnp.ones(n, bool)
    check_vector("where", where, n, against)
    return whole(where.astype(bool))


def n_rows(name: str, stacked: Stacked) -> int:
    """Length of the leading axis that all leaves share.

    Raises:
        ValueError: there are no leaves, a leaf has no axes, or leaves have different numbers of rows.
    """
    shapes = _shapes(name, stacked)
    if not shapes:
        raise ValueError(f"{name} has no leaves; give at least one array")
    (first_leaf, first_shape), *_ = shapes.items()
    for leaf, shape in shapes.items():
        if not shape:
            raise ValueError(f"{leaf} is one number, without an axis of rows; expected (rows, ...)")
        if shape[0] != first_shape[0]:
            raise ValueError(f"{leaf} has shape {shape}; expected {first_shape[0]} rows, as many as {first_leaf}")
    return first_shape[0]


def check_alike(name: str, params: Stacked, other: str, reference: Stacked) -> None:
    """Raises ValueError unless ``params`` has the leaves of ``reference``, with rows of the same shapes."""
    check_leaves(name, params, {leaf: ("rows", *shape[1:]) for leaf, shape in _shapes("", reference).items()}, other)


def check_same(name: str, params: Params, other: str, reference: Params) -> None:
    """Raises ValueError unless ``params`` has the leaves of ``reference``, with the same shapes."""
    check_leaves(name, params, _shapes("", reference), other)


def check_leaves(name: str, params: Params, expected: dict[str, tuple[Any, ...]], other: str) -> None:
    """Raises ValueError unless ``params`` has the leaves and shapes in ``expected``; "rows" stands for any length.

    Args:
        name: the name of ``params``.
        params: a pytree.
        expected: path in the pytree -> shape.
        other: the name of the argument from which ``expected`` follows.
    """
    shapes = _shapes("", params)
    if shapes.keys() != expected.keys():
        raise ValueError(f"{name} has the leaves {_list(shapes)}; expected {_list(expected)}, those of {other}")
    for leaf, shape in expected.items():
        actual = shapes[leaf]
        if len(actual) != len(shape) or any(b not in (a, "rows") for a, b in zip(actual, shape, strict=True)):
            wanted = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
            raise ValueError(f"{name}{leaf} has shape {actual}; expected {wanted}, to go with {other}{leaf}")


def fallback(name: str, empty: Params, stacked: Stacked, *lead: int) -> Params:
    """``empty``, which replaces means of ``stacked`` without clients: checked, and in the dtypes of ``stacked``.

    Args:
        name: the name of the argument.
        empty: one model, or several with the leading axes ``lead``.
        stacked: leaves (clients, ...).
        *lead: leading axes of ``empty``.

    Raises:
        ValueError: ``empty`` differs from ``stacked`` in its leaves, or in the shapes of its rows after ``lead``.
    """
    expected = {leaf: (*lead, *shape[1:]) for leaf, shape in _shapes("", stacked).items()}
    check_leaves(name, empty, expected, "stacked")
    return jax.tree.map(lambda leaf, old: jnp.asarray(old).astype(leaf.dtype), stacked, empty)


def _shapes(name: str, params: Params) -> dict[str, tuple[int, ...]]:
    return {name + jax.tree_util.keystr(path): jnp.shape(leaf) for path, leaf in jax.tree.leaves_with_path(params)}


def _list(leaves: dict[str, Any]) -> str:
    return ", ".join(leaf or "(an array)" for leaf in leaves) or "(none)"
