"""The library's only map over clients: ordered chunks, spread over the devices of a mesh.

A client's work is a function of one client. On an accelerator, the clients of a chunk run side by side under `vmap`,
and each chunk loops as long as its own longest client. On a CPU, a chunk is one client, because there parameters in
cache matter more than wide operations. The exception is many clients with small models and few examples, for which the
overhead between steps dominates. No choice changes a result, except in its last bits.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import PartitionSpec

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.client.chunks import by_size, chunked
from fljax.placement import CLIENTS, in_a_device, n_client_devices, whole
from fljax.types import ClientData, Examples, ModelTable, Stacked

AT_ONCE = 64
"""Clients trained at once if `Work.at_once` is None: on an accelerator, and on a CPU if there are many small ones."""

MANY = 256
"""Number of clients from which small ones run side by side on a CPU; fewer gain less than the compilation costs."""

SMALL_MODEL = 8192
"""Largest number of parameters of a small model: `AT_ONCE` larger ones would not fit a CPU's cache."""

SMALL_SPLIT = 2**18
"""Largest number of input values of a small client: for `AT_ONCE` clients, they are 64 MiB."""

FEW = 64
"""Arrays with up to this many numbers per client, such as labels, are whole on every device before the map."""


class AtHome(NamedTuple):
    """A pool spread over the devices; each holds the rows of its own clients (see `fljax.devices.hosts.at_home`)."""

    x: Array  # (devices * rows, ...) sharded over the axis "clients"
    y: Array  # (devices * rows,) whole on every device


@checked_kinds
def map_clients(
    fn: Callable[..., Any],
    data: ClientData,
    *per_client: Stacked | ModelTable,
    at_once: int | None = None,
    n_kinds: int = 1,
) -> Any:
    """``fn(pool, index, size, *rows)`` for every client, stacked along a leading ``(clients,)`` axis.

    ``fn`` gets the shared pool, the client's rows of it ``(capacity,)``, its size ``()``, and its row of each of
    ``per_client``: a stacked pytree ``(clients, ...)``, or `ModelTable` models. A model that all clients hold (one row)
    is passed unbatched. Clients may loop as long as their size requires; none waits for a client of another chunk. If
    all clients have the same rows and there are fewer models than clients, ``fn`` is called once for each model.

    ``at_once`` is the number of clients that run side by side; None: the backend's best, on a CPU by the sizes of
    ``data`` and ``per_client`` (`benchmarks/side_by_side.py`).

    With ``n_kinds`` above 1, the last of ``per_client`` is each client's kind, (clients,) whole numbers from 0. Clients
    side by side are of one kind, which ``fn`` gets unbatched, so that `jax.lax.switch` computes one branch.

    Raises:
        ValueError: ``data`` is not a split, a table does not have one row per client, or ``at_once`` is not positive.
    """
    is_whole = isinstance(at_once, int | np.integer) and not isinstance(at_once, bool)
    if at_once is not None and not (is_whole and at_once >= 1):
        raise ValueError(f"at_once={at_once!r} is not a positive whole number; choose at_once >= 1, or None")
    check_rows(data.n_clients, per_client)
    if data.is_common and _are_few_models(data, per_client):
        return _once_per_model(fn, data, *per_client, at_once=at_once)
    common, index = None, data.index
    if data.is_common:  # so that the row is not copied for each client
        common, index = data.index[0], jnp.zeros((data.n_clients, 1), jnp.int32)
    tables = tuple(arg.params if isinstance(arg, ModelTable) else None for arg in per_client)
    rows = tuple(arg.row if isinstance(arg, ModelTable) else arg for arg in per_client)

    def one(pool: Examples, shared: Any, index: Array, size: Array, *rows: Any) -> Any:
        tables, common = shared
        index = index if common is None else common
        return fn(pool, index, size, *(_row(table, row) for table, row in zip(tables, rows, strict=True)))

    chunk = _chunk(data, per_client, at_once, n_kinds)
    multiple = chunk if n_kinds == 1 else 1
    return over_devices(
        chunked(one, chunk, n_kinds), (data.pool, (tables, common)), (index, data.size, *rows), multiple
    )


def _are_few_models(data: ClientData, per_client: tuple[Stacked | ModelTable, ...]) -> bool:
    """Whether ``per_client`` is one table with fewer models than clients."""
    table = per_client[0] if len(per_client) == 1 else None
    return isinstance(table, ModelTable) and tree.n_rows(table.params) < data.n_clients - 1


def _once_per_model(fn: Callable[..., Any], data: ClientData, models: ModelTable, at_once: int | None) -> Any:
    """`map_clients` for clients with the same rows: one call for each model, and one for all clients of size 0."""
    n_models, has_examples = tree.n_rows(models.params), data.size > 0
    model = jnp.arange(n_models + 1, dtype=jnp.int32) % n_models
    size = jnp.full(n_models + 1, data.size.max(), data.size.dtype).at[n_models].set(0)
    results = map_clients(fn, data._replace(size=size), models._replace(row=model), at_once=at_once)
    held = models.row if n_models > 1 else jnp.zeros_like(models.row)  # one model belongs to all
    place = jnp.where(has_examples, held, n_models)
    return jax.tree.map(lambda rows: rows[place], results)


def check_rows(n_clients: int, per_client: tuple[Stacked | ModelTable, ...]) -> None:
    """Raises ValueError unless every leaf has one row per client; a gather would repeat or drop rows."""
    for table in per_client:
        if isinstance(table, ModelTable):
            check_table(table)
        rows = table.row if isinstance(table, ModelTable) else table
        for path, leaf in jax.tree_util.tree_flatten_with_path(rows)[0]:
            if (shape := jnp.shape(leaf))[:1] != (n_clients,):
                name = jax.tree_util.keystr(path) or ("the row of a ModelTable" if rows is not table else "an array")
                raise ValueError(
                    f"{name} has shape {shape} for {n_clients} clients; give a row for each, as models or keys "
                    f"(clients, ...); one model for all is fljax.tree.everyone(params, {n_clients})"
                )


def check_table(models: ModelTable) -> None:
    """Raises ValueError if leaves have different numbers of rows; a leaf of one row, for all models, is allowed."""
    shapes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(models.params)}
    if () in shapes or len(shapes - {(1,)}) > 1:
        raise ValueError(
            f"a ModelTable with leaves of {sorted(shapes)} rows; give params (rows, ...) or (1, ...); one model for "
            "all is fljax.tree.everyone(params, n_clients)"
        )


def longest_beside(data: ClientData, *per_client: Stacked | ModelTable, at_once: int | None = None) -> Array:
    """(clients,) size of the largest client in each client's chunk, for which `map_clients` loops."""

    def longest(pool: Examples, index: Array, size: Array) -> Array:
        order = by_size(size, chunk)
        largest = jnp.broadcast_to(size[order].max(axis=1, keepdims=True), order.shape)
        return largest.reshape(-1)[jnp.argsort(order.reshape(-1))]

    chunk = _chunk(data, per_client, at_once)
    return over_devices(longest, (data.pool,), (data.index, data.size), chunk)


def _chunk(
    data: ClientData, per_client: tuple[Stacked | ModelTable, ...], at_once: int | None, n_kinds: int = 1
) -> int:
    """Number of clients that run side by side: at most as many as a device has, of a kind if all have as many."""
    if at_once is None:
        at_once = 1 if jax.default_backend() == "cpu" and not _are_many_and_small(data, per_client) else AT_ONCE
    return min(at_once, -(-data.n_clients // (n_client_devices() * n_kinds)))


def _are_many_and_small(data: ClientData, per_client: tuple[Stacked | ModelTable, ...]) -> bool:
    """Whether several clients at once are faster on a CPU; from shapes alone, so that all runs of a job do the same.

    False if a leaf has the axes of a convolution: convolutions with several clients' weights are slow there.
    """
    n_clients, n_places = data.n_clients, data.index.shape[1]
    sizes = [_row_size(table) for table in per_client]
    n_inputs = n_places * math.prod(data.pool.x.shape[1:])
    return n_clients >= MANY and n_inputs <= SMALL_SPLIT and 0 < max(sizes, default=0) <= SMALL_MODEL


def _row_size(table: Stacked | ModelTable) -> float:
    """Number of floating-point numbers in one client's row; infinite if they may be a convolution's."""
    leaves = jax.tree.leaves(table.params if isinstance(table, ModelTable) else table)
    shapes = [leaf.shape[1:] for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return math.inf if any(len(shape) > 2 for shape in shapes) else sum(map(math.prod, shapes))


def over_devices(fn: Callable[..., Any], shared: tuple, per_row: tuple, multiple: int = 1) -> Any:
    """``fn(*shared, *per_row)`` with the clients of ``per_row`` spread over the devices of the current mesh.

    ``shared`` starts with the pool, ``per_row`` with the index table and the sizes. Every device calls ``fn`` on its
    own share, a multiple of ``multiple`` clients, padded with clients of size 0, whose results are dropped. Without a
    mesh with an axis "clients", there is one share.
    """
    shared, per_row = jax.tree.map(_indexable, (shared, per_row))
    n_clients, n_devices = per_row[1].shape[0], n_client_devices()
    if not n_clients:
        raise ValueError("data has 0 clients; give a split with at least one client")
    n_padded = -(-n_clients // (n_devices * multiple)) * n_devices * multiple
    per_row = _pad(per_row, n_padded - n_clients)
    if n_devices > 1:
        fn = _on_each_device(fn, len(shared), isinstance(shared[0], AtHome), n_padded // n_devices)
    out = fn(*shared, *per_row)
    return out if n_padded == n_clients else jax.tree.map(lambda leaf: leaf[:n_clients], out)


def _indexable(leaf: Any) -> Any:
    """``leaf``; if it is a NumPy array, which tracers cannot index, a JAX array."""
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _on_each_device(fn: Callable[..., Any], n_shared: int, is_at_home: bool, share: int) -> Callable[..., Any]:
    """``fn``, called on each device with its ``share`` clients; it returns the results of all clients."""
    fn = _with_fetched_rows(fn, n_shared) if is_at_home else fn
    if in_a_device():

        def call(*arguments: Any) -> Any:
            begin = lax.axis_index(CLIENTS) * share
            own_rows = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, begin, share), arguments[n_shared:])
            out = fn(*arguments[:n_shared], *own_rows)
            return jax.tree.map(lambda leaf: lax.all_gather(leaf, CLIENTS, tiled=True), out)

        return call

    def mapped(*arguments: Any) -> Any:
        pool, rows = arguments[:n_shared], arguments[n_shared:]
        # Otherwise XLA would also spread what the server computes from labels, since a device needs only its own
        # clients', and the devices would exchange the results of every operation.
        rows = jax.tree.map(lambda leaf: whole(leaf) if _is_of_the_server(leaf) else leaf, rows)
        specs = (*pool_specs(pool), *[PartitionSpec(CLIENTS)] * len(rows))
        return jax.shard_map(fn, in_specs=specs, out_specs=PartitionSpec(CLIENTS), check_vma=False)(*pool, *rows)

    return mapped


def _is_of_the_server(leaf: Array) -> bool:
    """Whether ``leaf`` is labels, positions, keys or numbers, not a layer's bias, which stays where it was trained."""
    is_of_model = leaf.ndim > 1 and jnp.issubdtype(leaf.dtype, jnp.floating)
    return not is_of_model and math.prod(leaf.shape[1:]) <= FEW


def pool_specs(value: Any) -> Any:
    """Specs for `jax.shard_map`: everything is whole on every device, except the examples of an `AtHome` pool."""

    at_home: Any = AtHome
    spread = at_home(PartitionSpec(CLIENTS), PartitionSpec())

    def spec(leaf: Any) -> Any:
        return spread if isinstance(leaf, AtHome) else PartitionSpec()

    return jax.tree.map(spec, value, is_leaf=lambda leaf: isinstance(leaf, AtHome))


def _with_fetched_rows(fn: Callable[..., Any], n_shared: int) -> Callable[..., Any]:
    """``fn``, called with a pool of this device's clients only, whose rows come from the devices that hold them."""

    def call(pool: AtHome, *arguments: Any) -> Any:
        index = arguments[n_shared - 1]
        n_rows, first_row = pool.x.shape[0], lax.axis_index(CLIENTS) * pool.x.shape[0]

        def mine(index: Array) -> tuple[Array, Array]:
            is_here = (index >= first_row) & (index < first_row + n_rows)
            return is_here, pool.x[jnp.clip(index - first_row, 0, n_rows - 1)]

        def from_all(index: Array) -> Array:
            is_here, x = mine(lax.all_gather(index, CLIENTS))
            x = jnp.where(is_here.reshape(*is_here.shape, *[1] * (x.ndim - is_here.ndim)), x, 0)
            return lax.psum_scatter(x, CLIENTS)

        n_away = lax.psum((~mine(index)[0]).any().astype(jnp.int32), CLIENTS)
        x = lax.cond(n_away > 0, from_all, lambda index: mine(index)[1], index)
        examples = Examples(x.reshape(-1, *x.shape[2:]), pool.y[index].reshape(-1))
        position = jnp.arange(index.size, dtype=jnp.int32).reshape(index.shape)
        return fn(examples, *arguments[: n_shared - 1], position, *arguments[n_shared:])

    return call


def _row(table: Stacked | None, row: Any) -> Any:
    return row if table is None else tree.row(table, row)


def _pad(per_row: tuple[Any, ...], n_more: int) -> tuple[Any, ...]:
    """``per_row`` with ``n_more`` copies of the first client, of size 0, so that they take no step and do not count."""
    if not n_more:
        return per_row
    position = jnp.arange(per_row[1].shape[0] + n_more)
    is_real = position < per_row[1].shape[0]
    # A gather: XLA's partitioner (jaxlib 0.10.2) misplaces rows of a concatenation whose parts do not fill a device.
    index, size, *rows = jax.tree.map(lambda leaf: leaf[jnp.where(is_real, position, 0)], per_row)
    return index, jnp.where(is_real, size, 0), *rows
