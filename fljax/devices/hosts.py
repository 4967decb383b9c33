"""Several hosts as one machine: joining them, each with its own clients' data, and the values on which they agree.

Every host runs the same program; JAX's SPMD spreads the cohort over the devices of all hosts. Host 0 writes the files,
into a folder that all hosts see.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fljax.client.map import AtHome
from fljax.placement import CLIENTS
from fljax.types import ClientData, Federation


def join_hosts(coordinator: str | None = None, n_hosts: int | None = None, host: int | None = None) -> None:
    """Makes this process one of several hosts; must run before JAX is first used.

    If a host stops, the others raise `ConnectionError` (see `others_alive`), unless JAX notices first and aborts them,
    with "Terminating process because the JAX distributed service detected fatal errors" on stderr.

    Args:
        coordinator: ``address:port`` of host 0, the same everywhere; None, together with the other arguments:
            detected, if a cluster manager that JAX knows (Slurm, Open MPI, a cloud's) started the processes.
        n_hosts: the number of processes.
        host: the number of this process, 0 to n_hosts - 1.

    Raises:
        ValueError: only some of the three are given, or ``host`` is out of range.
    """
    are_given = (coordinator is not None, n_hosts is not None, host is not None)
    if any(are_given) and not all(are_given):
        raise ValueError("give coordinator, n_hosts and host together, or none of them")
    if n_hosts is not None and host is not None and not 0 <= host < n_hosts:
        raise ValueError(f"host={host} of n_hosts={n_hosts}; choose 0 <= host < n_hosts")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # for CPUs of several hosts; otherwise unused
    jax.distributed.initialize(coordinator, n_hosts, host)


def at_home(federation: Federation, mesh: Mesh, images: Any = None) -> Federation:
    """The federation with every example on the device of the client that owns it, for data larger than one device.

    Client i lives on device ``i // ceil(clients / devices)`` of the mesh's axis "clients". A host reads only the rows
    of the clients on its own devices; labels and index tables are whole everywhere. A round moves the cohort's examples
    to the devices that train them, and none if all clients participate. A test set that all clients share is whole on
    every device.

    Args:
        federation: as a partition returns it, the same on every host.
        mesh: of all hosts' devices.
        images: source of the pool's ``x``, read row by row, such as ``np.load(path, mmap_mode="r")``; the partition may
            then have been made with labels and any placeholder for ``x``. None: the pool's own. A test set that all
            clients share has its own examples.

    Raises:
        ValueError: the federation changes over the rounds.
    """

    if federation.stages is not None:
        raise ValueError("the federation changes over the rounds, so its examples cannot stay in place; keep it whole")

    def moved(data: ClientData | None) -> ClientData | None:
        if data is None or data.is_common:
            return on_all_devices(data, mesh)
        return _at_home(data, mesh, data.pool.x if images is None else images)

    moved_splits = {name: moved(getattr(federation, name)) for name in ("train", "val", "test")}
    public, group, triggered = on_all_devices((federation.public, federation.group, federation.triggered), mesh)
    return federation._replace(**moved_splits, public=public, group=group, triggered=triggered)  # pyrefly: ignore[bad-argument-type]


def _at_home(data: ClientData, mesh: Mesh, images: Any) -> ClientData:
    index, size, labels = (np.asarray(value) for value in (data.index, data.size, data.pool.y))
    n_devices = mesh.shape[CLIENTS]
    share = -(-len(size) // n_devices)
    is_example = np.arange(index.shape[1]) < size[:, None]
    homes = [slice(d * share, (d + 1) * share) for d in range(n_devices)]
    rows = [np.unique(index[home][is_example[home]]) for home in homes]
    n_rows = max(max(map(len, rows)), 1)
    new_index, y = np.zeros_like(index), np.zeros((n_devices * n_rows, *labels.shape[1:]), labels.dtype)
    for d, home in enumerate(homes):
        positions = np.searchsorted(rows[d], index[home]).clip(0, max(len(rows[d]) - 1, 0)) + d * n_rows
        new_index[home] = np.where(is_example[home], positions, d * n_rows)
        y[d * n_rows : d * n_rows + len(rows[d])] = labels[rows[d]]
    shape = (n_devices * n_rows, *images.shape[1:])

    def read(where: Any) -> np.ndarray:
        block = np.zeros((n_rows, *images.shape[1:]), images.dtype)
        own_rows = rows[(where[0].start or 0) // n_rows]
        block[: len(own_rows)] = images[own_rows]
        return block

    x = jax.make_array_from_callback(shape, NamedSharding(mesh, PartitionSpec(CLIENTS)), read)
    y, new_index, size = on_all_devices((y, new_index, size), mesh)
    return ClientData(AtHome(x, y), new_index, size)  # pyrefly: ignore[bad-argument-type]


def on_all_devices(value: Any, mesh: Mesh) -> Any:
    """A whole copy of ``value``, which every host has, on every device of every host; arrays already there stay."""
    sharding = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return leaf
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(put(jax.random.key_data(leaf)))
        array = np.asarray(leaf)
        return jax.make_array_from_callback(array.shape, sharding, lambda where: array[where])

    return jax.tree.map(put, value)


def gathered(value: Any) -> Any:
    """Arrays on whichever devices as NumPy arrays on every host."""
    if all(leaf.is_fully_addressable for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)):
        return jax.device_get(value)  # a single host, or a computation of this host only
    mesh = jax.sharding.get_mesh()
    return jax.device_get(jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(value))


def agreed(*numbers: int) -> tuple[int, ...]:
    """Host 0's numbers, on every host: decisions that depend on its clock must not differ between hosts."""
    if jax.process_count() == 1:
        return numbers
    return tuple(int(n) for n in multihost_utils.broadcast_one_to_all(np.array(numbers, np.int32)))


def from_all_hosts(number: int) -> list[int]:
    """The 32-bit numbers of all hosts, on every host."""
    if jax.process_count() == 1:
        return [number]
    return multihost_utils.process_allgather(np.array([number], np.uint32)).reshape(-1).tolist()


def writes() -> bool:
    """Whether this host is the one that writes files."""
    return jax.process_index() == 0


def all_there(what: str) -> None:
    """Waits until every host has reached ``what``."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(what)


@contextlib.contextmanager
def others_alive(round: int, n_rounds: int) -> Iterator[None]:
    """Turns a failed exchange between hosts in the block into one clear error.

    Raises:
        ConnectionError: another host stopped.
    """
    try:
        yield
    except JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        reason = str(error).splitlines()[0]
        raise ConnectionError(
            f"another host stopped answering after round {round} of {n_rounds} ({reason}); the checkpoint is intact: "
            "start all hosts again with the same folder to resume"
        ) from error
