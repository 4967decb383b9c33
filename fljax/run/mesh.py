"""The client axis over devices: a mesh whose axis "clients" `fljax.client.map` spreads its work over."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from fljax.client.map import CLIENTS

Device = Any
"""A `jax.Device`, which type checkers cannot name."""


def client_mesh(devices: Sequence[Device] | None = None) -> Mesh:
    """A mesh of ``devices`` (None: all of the default backend) with the one axis "clients"."""
    devices = jax.devices() if devices is None else devices
    return jax.make_mesh((len(devices),), (CLIENTS,), axis_types=(AxisType.Auto,), devices=devices)


@contextlib.contextmanager
def over_devices(devices: Sequence[Device] | None = None) -> Iterator[Mesh | None]:
    """Inside it, cohorts are spread over ``devices`` (None: all). One device needs no mesh and yields None."""
    devices = jax.devices() if devices is None else devices
    if len(devices) == 1:
        yield None
        return
    mesh = client_mesh(devices)
    with jax.set_mesh(mesh):
        yield mesh


def replicated(value: Any, mesh: Mesh | None) -> Any:
    """``value`` with a whole copy on every device of the mesh; as it is without one."""
    return value if mesh is None else jax.device_put(value, NamedSharding(mesh, PartitionSpec()))


def use_all_cores() -> None:
    """Gives the CPU backend one device per core, so that clients train on every core.

    XLA's CPU backend gains little from a second thread on one client's small operations; a device per core gains 1.2 to
    1.6 times. Must run before JAX is first used, so the command line and the benchmarks call it and the library never
    does. Does nothing where JAX has started or where the user has set the number of devices.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "") or jax.config.jax_num_cpu_devices > 0:
        return
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", len(os.sched_getaffinity(0)))
