"""Devices: a mesh with the axis "clients", over which `fljax.client.map` spreads a cohort, and "sweep" for runs."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jaxlib
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from fljax.client.map import AtHome, pool_specs
from fljax.devices.hosts import on_all_devices
from fljax.placement import CLIENTS
from fljax.ranges import said

SWEEP = "sweep"
"""Name of the mesh axis over which the runs of a sweep are spread."""

_PATIENCE = (
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=600 --xla_cpu_collective_call_terminate_timeout_seconds=3600"
)
"""Devices wait for each other when they add up sums, and XLA ends the process if one is 40 seconds late, which can
happen on a busy machine; these flags allow an hour."""

Device = Any
"""A `jax.Device`, which type checkers cannot name."""


def device_mesh(devices: Sequence[Device] | None = None, n_sweep: int = 1) -> Mesh:
    """A mesh of ``devices`` (None: all of the default backend) with the axes "sweep", ``n_sweep`` long, and "clients".

    Raises:
        ValueError: the devices cannot be split into ``n_sweep`` equal groups.
    """
    devices = jax.devices() if devices is None else devices
    if n_sweep < 1 or len(devices) % n_sweep:
        raise ValueError(f"n_sweep={n_sweep} groups of {len(devices)} devices are not equal; choose a divisor")
    shape, kinds = (n_sweep, len(devices) // n_sweep), (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh(shape, (SWEEP, CLIENTS), axis_types=kinds, devices=devices)


@contextlib.contextmanager
def over_devices(devices: Sequence[Device] | None = None, n_sweep: int = 1) -> Iterator[Mesh | None]:
    """Spreads sweeps over ``n_sweep`` groups of ``devices`` (None: all) and cohorts over the devices of a group.

    A single device needs no mesh and yields None.

    Raises:
        ValueError: there is no device, or as `device_mesh`.
    """
    devices = chosen(devices)
    if len(devices) == 1:
        yield None
        return
    mesh = device_mesh(devices, n_sweep)
    with jax.set_mesh(mesh):
        yield mesh


def chosen(devices: Sequence[Device] | None) -> Sequence[Device]:
    """``devices``; for None all.

    Raises:
        ValueError: there is none, or they are no sequence of devices.
    """
    if devices is None:
        return jax.devices()
    if not np.iterable(devices) or not all(hasattr(device, "platform") for device in devices):
        raise ValueError(f"{said('devices', devices)} are not devices; give some of jax.devices(), or None for all")
    if not len(devices):
        raise ValueError("devices=[] is empty; give one or more, or None for all")
    return devices


def n_sweep_devices() -> int:
    """The number of groups of devices over which the current mesh spreads a sweep; 1 outside any mesh."""
    return jax.sharding.get_abstract_mesh().shape.get(SWEEP, 1)


def over_sweep(fn: Callable[..., Any], per_run: Any, whole: tuple) -> Any:
    """``fn(per_run, *whole)`` with the runs of ``per_run``, a multiple of `n_sweep_devices`, spread over those."""
    if n_sweep_devices() == 1:
        return fn(per_run, *whole)
    specs = (PartitionSpec(SWEEP), *pool_specs(whole))
    return jax.shard_map(fn, in_specs=specs, out_specs=PartitionSpec(SWEEP), check_vma=False)(per_run, *whole)


def replicated(value: Any, mesh: Mesh | None) -> Any:
    """``value`` with a whole copy on every device of the mesh; unchanged without a mesh, and for `AtHome`."""
    if mesh is None:
        return value
    if jax.process_count() > 1:
        return on_all_devices(value, mesh)
    on_every_device, copies = NamedSharding(mesh, PartitionSpec()), {}

    def put(leaf: Any) -> Any:
        if isinstance(leaf, AtHome):
            return leaf
        if id(leaf) not in copies:  # splits may share a pool
            copies[id(leaf)] = jax.device_put(leaf, on_every_device)
        return copies[id(leaf)]

    return jax.tree.map(put, value, is_leaf=lambda leaf: isinstance(leaf, AtHome))


def shapes(value: Any, sharding: Sharding | None = None) -> Any:
    """The shapes of a pytree's arrays, with this ``sharding``; None: without one."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), value)


def to_copy(value: Any) -> list[Any]:
    """The arrays of ``value`` that `replicated` would copy: those on one device."""
    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, AtHome))
    arrays = [leaf for leaf in leaves if not isinstance(leaf, AtHome)]
    return [leaf for leaf in arrays if not isinstance(leaf, jax.Array) or len(leaf.devices()) == 1]


_divided = False  # whether `use_all_cores` set the number of devices, and not the user


def use_all_cores() -> None:
    """Gives the CPU backend one device per core, so that clients train on every core.

    XLA's CPU backend gains little from a second thread on one client's small operations; one device per core is 1.2 to
    1.6 times faster. It must run before JAX is first used, so the command line and the benchmarks call it, and the
    library never does. It changes nothing if JAX has started, and respects the user's ``XLA_FLAGS`` and number of
    devices.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if "terminate_timeout" not in flags and jaxlib.version.__version_info__ < (0, 13):
        os.environ["XLA_FLAGS"] = f"{flags} {_PATIENCE}".strip()  # XLA ends the process if it does not know a flag
    if "xla_force_host_platform_device_count" in flags or jax.config.jax_num_cpu_devices > 0:  # pyrefly: ignore[missing-attribute]
        return
    global _divided
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", n_cores())
        _divided = True


def n_cores() -> int:
    """Number of cores on which this process may run; if the system does not report it (macOS), of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def may_use_fewer() -> bool:
    """Whether a small job may leave devices unused: only those into which `use_all_cores` has divided a CPU.

    Accelerators, further hosts, and devices that the user asked for are always used.
    """
    return _divided and jax.default_backend() == "cpu" and jax.process_count() == 1
