"""The mesh axis over which clients are spread, and placement of arrays on devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

CLIENTS = "clients"
"""Name of the mesh axis over which clients are spread (see `fljax.devices.mesh`)."""


def n_client_devices() -> int:
    """Number of devices over which the current mesh spreads clients; 1 without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape.get(CLIENTS, 1)


def in_a_device() -> bool:
    """Whether the code being traced is one device's part of a program over several devices (`jax.shard_map`)."""
    return CLIENTS in jax.sharding.get_abstract_mesh().manual_axes


def whole(value: Any) -> Any:
    """``value``, computed in full on every device of the mesh: for small arrays that are not worth a collective.

    A loop that starts from it also runs in full on every device; over spread rows, the devices would wait for each
    other at every step.
    """
    if n_client_devices() == 1 or in_a_device():
        return value
    return jax.lax.with_sharding_constraint(value, PartitionSpec())


def on_device(value: Any, dtype: Any) -> jax.Array:
    """``value`` as a JAX array that shares no memory with a NumPy array, whose owner may write to it later.

    It is transferred without a program: `jnp.asarray` would compile one for each shape of a NumPy array, and for a
    number.
    """
    if isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    if jax.default_backend() == "cpu":
        return jax.device_put(np.array(value, dtype))
    return jax.block_until_ready(jax.device_put(np.asarray(value, dtype)))  # waits until it is read
