"""Random keys derived from one key: one threefry in the program however deep, each of which costs 40 ms to compile."""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax.types import Key


def descend(key: Key, *path: ArrayLike, depth: ArrayLike | None = None) -> Key:
    """The key that ``path`` leads to: folded into ``key`` one after the other.

    With JAX's partitionable threefry, the default, ``jax.random.split(key, n)[i]`` is ``fold_in(key, i)``, so that
    ``descend(key, r, jnp.arange(n))`` is ``split(fold_in(key, r), n)``. Keys of ``unsafe_rbg`` depend on how many are
    derived at once, as all that JAX draws with them under `jax.vmap`.

    Args:
        key: one key, typed or, as `jax.random.PRNGKey` gives it, raw.
        *path: whole numbers, or arrays of them of one shape, or of none, as `jnp.broadcast_arrays` takes.
        depth: how many of the numbers are folded in, of that shape; None: all.

    Returns:
        Keys of the path's shape, typed or raw as ``key`` is.
    """
    if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(descend(jax.random.wrap_key_data(key), *path, depth=depth))
    steps = jnp.stack(jnp.broadcast_arrays(*(jnp.asarray(step, jnp.uint32) for step in path)))
    shape = steps.shape[1:]
    flat = steps.reshape(len(path), -1)
    last = None if depth is None else jnp.broadcast_to(jnp.asarray(depth), shape).reshape(-1)

    def below(level: Array, keys: Key) -> Key:
        folded = jax.vmap(jax.random.fold_in)(keys, flat[level])
        return folded if last is None else jnp.where(level < last, folded, keys)

    start = jnp.broadcast_to(key, flat.shape[1:])
    return lax.fori_loop(0, len(path), below, start).reshape(shape)
