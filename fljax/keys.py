"""Random keys derived from one key, with one threefry per program at any depth: each takes 40 ms to compile."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike

from fljax.types import Key


def descend(key: Key, *path: ArrayLike, depth: ArrayLike | None = None) -> Key:
    """The key after folding the numbers of ``path`` into ``key``, one after another.

    With JAX's partitionable threefry, the default, ``jax.random.split(key, n)[i]`` is ``fold_in(key, i)``, so
    ``descend(key, r, jnp.arange(n))`` is ``split(fold_in(key, r), n)``. Keys of ``unsafe_rbg`` depend on the number of
    keys derived at once, like all random numbers that JAX draws with them under `jax.vmap`.

    Args:
        key: one key, typed, or raw as from `jax.random.PRNGKey`.
        *path: whole numbers, or arrays of them that broadcast to one shape.
        depth: number of path entries that are folded in, of that shape; None: all.

    Returns:
        Keys of the path's shape, typed or raw like ``key``.
    """
    is_raw = not jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    typed = partial(jax.random.wrap_key_data, impl=None if is_raw else jax.random.key_impl(key))
    shape = np.broadcast_shapes(*map(np.shape, path))

    def spread(step: ArrayLike, dtype: Any) -> Any:
        xp = jnp if isinstance(step, Array) else np  # known values add no operation to the program
        return xp.broadcast_to(xp.asarray(step, dtype), shape).reshape(-1)

    flat = jnp.stack([spread(step, np.uint32) for step in path])
    depths = None if depth is None else spread(depth, np.int32)[:, None]

    def below(level: Array, data: Array) -> Array:
        folded = jax.random.key_data(jax.vmap(jax.random.fold_in)(typed(data), flat[level]))
        # Selects the keys' data, not the keys, one of which would seem to be used twice (`jax.debug_key_reuse`).
        return folded if depths is None else jnp.where(level < depths, folded, data)

    data = key if is_raw else jax.random.key_data(key)
    derived = lax.fori_loop(0, len(path), below, jnp.broadcast_to(data, (*flat.shape[1:], *data.shape)))
    derived = derived.reshape(*shape, *data.shape)
    return derived if is_raw else typed(derived)


def uniforms(keys: Key, *shape: int) -> Array:
    """(keys, *shape) float32 random numbers in [0, 1), each row drawn with its own key."""
    return jax.vmap(lambda key: jax.random.uniform(key, shape, jnp.float32))(keys)
