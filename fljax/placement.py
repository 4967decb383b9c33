"""The mesh axis over which clients are spread, and the placement of arrays on devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

CLIENTS = "clients"
"""Name of the mesh axis over which clients are spread (see `fljax.run.mesh`)."""


def n_client_devices() -> int:
    """The number of devices over which the current mesh spreads clients; 1 outside any mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh.shape.get(CLIENTS, 1)


def in_a_device() -> bool:
    """Whether this code is traced as one device's part of a program for several."""
    return CLIENTS in jax.sharding.get_abstract_mesh().manual_axes


def whole(value: Any) -> Any:
    """``value`` computed in full on every device of the mesh, for small values that are not worth a collective.

    Values that are computed from it in a loop are whole, too; in a loop over spread rows, devices would wait for each
    other at every step.
    """
    if n_client_devices() == 1 or in_a_device():
        return value
    return jax.lax.with_sharding_constraint(value, PartitionSpec())


def on_device(value: Any, dtype: Any) -> jax.Array:
    """A copy of ``value`` on the device: on a CPU an array could share the memory of a NumPy array that is changed
    later.

    It is moved without a program; `jnp.asarray` would compile one for each shape of a NumPy array, and for a number.
    """
    if isinstance(value, jax.Array):
        return jnp.asarray(value, dtype)
    if jax.default_backend() == "cpu":
        return jax.device_put(np.array(value, dtype))
    return jax.block_until_ready(jax.device_put(np.asarray(value, dtype)))  # waits until it is read
