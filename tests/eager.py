"""Slices, broadcasts, casts and reshapes outside of `jax.jit`, by NumPy: JAX would compile a program for each shape.

That is a third of the programs that tests compile, at 15 ms of a processor each. The numbers are the same;
what is traced, spread over devices, of a weak type or without `jax.jit` on purpose is left to JAX.
"""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

try:
    from jax._src.lax.lax import broadcast_in_dim_p, convert_element_type_p, reshape_p, squeeze_p
    from jax._src.lax.slicing import slice_p
except ImportError:  # a JAX that has them elsewhere: slower
    PRIMITIVES = {}
else:
    PRIMITIVES = {
        "broadcast_in_dim": broadcast_in_dim_p,
        "convert_element_type": convert_element_type_p,
        "reshape": reshape_p,
        "slice": slice_p,
        "squeeze": squeeze_p,
    }


def _broadcast_in_dim(x: np.ndarray, *, shape, broadcast_dimensions, sharding) -> np.ndarray:
    sizes = dict(zip(broadcast_dimensions, x.shape, strict=True))
    return np.broadcast_to(x.reshape([sizes.get(axis, 1) for axis in range(len(shape))]), shape)


def _convert_element_type(x: np.ndarray, *, new_dtype, weak_type, sharding) -> np.ndarray | None:
    is_exact = x.dtype.kind in "biu" or x.dtype == new_dtype  # floats are rounded by JAX
    with np.errstate(over="ignore"):
        return x.astype(new_dtype) if is_exact and not weak_type else None


def _reshape(x: np.ndarray, *, new_sizes, dimensions, sharding) -> np.ndarray | None:
    return x.reshape(new_sizes) if dimensions is None else None


def _slice(x: np.ndarray, *, start_indices, limit_indices, strides) -> np.ndarray:
    steps = strides or [1] * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def _squeeze(x: np.ndarray, *, dimensions) -> np.ndarray:
    return np.squeeze(x, tuple(dimensions))


def _is_plain(x: Any) -> bool:
    if not isinstance(x, jax.Array):
        return isinstance(x, np.ndarray | np.generic)
    if isinstance(x, jax.core.Tracer) or jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended):
        return False
    return not x.weak_type and not x.committed and len(x.devices()) == 1


def _by_numpy(by_jax: Callable, move: Callable[..., np.ndarray | None]) -> Callable:
    _, *names = inspect.signature(move).parameters

    def moved_by_either(*operands: Any, **options: Any) -> Any:
        is_known = len(operands) == 1 and options.keys() == set(names)  # a JAX with other options keeps its own
        if is_known and _is_plain(operands[0]) and options.get("sharding") is None:
            result = None if jax.config.jax_disable_jit else move(np.asarray(operands[0]), **options)
            if result is not None:
                return jax.device_put(np.array(result, order="C"))  # a copy: JAX may keep what it is given
        return by_jax(*operands, **options)

    return moved_by_either


def move_by_numpy() -> None:
    """From here on, in this process."""
    for name, primitive in PRIMITIVES.items():
        primitive.impl = _by_numpy(primitive.impl, globals()[f"_{name}"])
