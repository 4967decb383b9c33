"""The mesh axis that clients are spread over, and what had better lie whole on every device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

CLIENTS = "clients"
"""Name of the mesh axis that clients are spread over (see `fljax.run.mesh`)."""


def n_client_devices() -> int:
    """Devices that the current mesh spreads clients over; 1 outside any mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape.get(CLIENTS, 1)


def in_a_device() -> bool:
    """Whether this is a device's own part of a program over many."""
    return CLIENTS in jax.sharding.get_abstract_mesh().manual_axes


def whole(value: Any) -> Any:
    """``value`` computed in full on every device of the mesh: for small things that are not worth a collective.

    What is computed from it step by step is too: a loop over spread rows would have devices wait for each other at
    every step.
    """
    if n_client_devices() == 1 or in_a_device():
        return value
    return jax.lax.with_sharding_constraint(value, PartitionSpec())


def on_device(value: Any, dtype: Any) -> jax.Array:
    """A copy of its own, for a CPU's arrays may share a NumPy array's memory, which its owner may write to later.

    Moved as it is: `jnp.asarray` would compile a program for each shape of a NumPy array, and for a number.
    """
    if isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    if jax.default_backend() == "cpu":
        return jax.device_put(np.array(value, dtype))
    return jax.block_until_ready(jax.device_put(np.asarray(value, dtype)))  # waits until it is read
