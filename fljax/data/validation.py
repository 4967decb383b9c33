"""Checks of federations: conditions for any method to train on them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fljax.data.labels import are_classes
from fljax.ranges import said
from fljax.types import ClientData, Federation


def validate(federation: Federation) -> None:
    """Rejects a federation that no method could train on.

    Raises:
        ValueError: in one line, for a client without training or validation examples, no test examples at all, rows
            outside the pool, labels below 0, examples or targets that are not finite, splits or public data with other
            kinds of examples or labels, or splits or groups with another number of clients.
    """
    n_clients = federation.train.n_clients
    for name in ("train", "val", "test"):
        data = getattr(federation, name)
        if data is not None:
            _check_split_of_clients(name, data, n_clients)
            _check_like("labels", name, data.pool.y, federation.train.pool.y)
            _check_like("examples", name, data.pool.x, federation.train.pool.x)
    if federation.public is not None:
        _check_like("examples", "public", federation.public.x, federation.train.pool.x)
    if federation.group is not None:
        _check_group(np.asarray(federation.group), n_clients)


def _check_group(group: np.ndarray, n_clients: int) -> None:
    if group.shape != (n_clients,):
        raise ValueError(f"group has shape {group.shape}; give one true group for each of {n_clients} clients")
    values = f"{group.min()} to {group.max()}" if group.dtype.kind in "iuf" else f"values of type {group.dtype}"
    if group.dtype.kind not in "iu" or group.min() < 0:  # not all groups need occur
        raise ValueError(f"group has {values}; number the groups 0, 1, 2, ..., or leave it out")


def check_common(federation: Federation) -> None:
    """Checks that only the tests have one row of `ClientData.index` for all clients; a method reads a client's own row.

    Raises:
        ValueError: the training or validation split has, or clients are tested on different numbers of examples.
    """
    for name in ("train", "val"):
        if (data := getattr(federation, name)) is not None and data.is_common:
            raise ValueError(f"{name}.index has 1 row for {data.n_clients} clients; give one for each")
    check_common_size("test", federation.test)


def check_common_size(name: str, data: ClientData) -> None:
    """Raises ValueError if clients that share their rows have different numbers of examples; sizes that are traced or
    on several hosts are not checked."""
    is_known = not isinstance(data.size, jax.core.Tracer) and getattr(data.size, "is_fully_addressable", True)
    if not data.is_common or not is_known:
        return
    size = np.asarray(data.size)
    if len(np.unique(size[size > 0])) > 1:
        raise ValueError(
            f"{name}.index has one row for all clients, of sizes {size.min()} to {size.max()}; give one size"
        )


def _check_split_of_clients(name: str, data: ClientData, n_clients: int) -> None:
    size = np.asarray(data.size)
    if n_clients == 0 or len(size) != n_clients:
        raise ValueError(f"{name} has {len(size)} clients and train {n_clients}; give all splits the same, at least 1")
    n_rows, is_test = data.index.shape[0], name == "test"
    if n_rows != n_clients and not (is_test and n_rows == 1):
        rows = "row" + "s" * (n_rows != 1)
        raise ValueError(f"{name}.index has {n_rows} {rows} for {n_clients} clients; give one for each")
    check_common_size(name, data)
    if is_test and not size.any():
        raise ValueError("no client has test examples; give some")
    if name != "test" and (size < 1).any():  # a client without test examples is not tested
        empty = int(np.argmin(size))
        raise ValueError(f"client {empty} has no {name} examples; use fewer clients, a larger split or more data")
    index, n_examples = np.asarray(data.index), data.pool.y.shape[0]
    longest = size.max(keepdims=True) if data.is_common else size
    rows = index[np.arange(index.shape[1]) < longest[:, None]]
    check_rows(rows, n_examples)
    is_owned = np.zeros(n_examples, bool)
    is_owned[rows] = True
    rows = np.flatnonzero(is_owned)
    labels = np.asarray(data.pool.y)[rows]
    if are_classes(labels) and labels.min() < 0:
        raise ValueError(f"{name} has label {labels.min()}; labels must be 0, 1, 2, ...")
    for what, values in (("example", data.pool.x), ("target of example", data.pool.y)):
        if np.issubdtype(values.dtype, np.floating) and not _all_are_finite(values):
            is_finite = np.isfinite(np.asarray(values).reshape(n_examples, -1)[rows]).all(axis=1)
            if not is_finite.all():
                row = rows[np.argmin(is_finite)]
                raise ValueError(f"{name} {what} {row} of the pool is not finite; correct it, or leave it out")


def _all_are_finite(values: Array | np.ndarray) -> bool:
    """Whether the sum is finite; large numbers may exceed it too. An accelerator sums: fetching the array is slower."""
    on_accelerator = isinstance(values, Array) and values.devices().pop().platform != "cpu"
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum() if on_accelerator else np.asarray(values).sum()))


def _check_like(what: str, name: str, values: Array, train_values: Array) -> None:
    kind, train_kind = ((str(part.dtype), *part.shape[1:]) for part in (values, train_values))
    if kind != train_kind:
        raise ValueError(f"{name} has {what} {kind} and train {train_kind}; give all splits the same kind")


class Owned(NamedTuple):
    """The rows that each client owns, one client after another."""

    rows: np.ndarray  # (owned,) int64
    size: np.ndarray  # (clients,) int64, the number of rows of each client


def owned_rows(owned: Sequence[Any]) -> Owned:
    """The rows of a pool that client i owns, ``owned[i]``, for all clients.

    Raises:
        ValueError: a client's rows are not a list of whole numbers, for example because client ids were given.
    """
    if isinstance(owned, str | bytes | Mapping) or not np.iterable(owned):
        raise ValueError(f"{said('owned', owned)} is not a sequence; give the rows of each client")
    arrays = [rows_of(rows, i) for i, rows in enumerate(owned)]
    size = np.fromiter(map(len, arrays), np.int64, len(arrays))
    return Owned(np.concatenate(arrays) if arrays else np.zeros(0, np.int64), size)


def rows_of(rows: Any, i: int) -> np.ndarray:
    """(rows,) int64 rows of client i.

    Raises:
        ValueError: they are not a list of whole numbers.
    """
    array = np.asarray(rows)
    if array.ndim != 1 or not (array.dtype.kind in "iu" or not array.size):
        what = f"a number, {rows}" if array.ndim == 0 else f"an array of shape {array.shape} and dtype {array.dtype}"
        raise ValueError(
            f"owned[{i}] is {what}; give for each client the whole numbers of its rows. If each example has a client's "
            "id, use fljax.federation_from_arrays(x, y, client_ids)"
        )
    return array.astype(np.int64, copy=False)


def check_owned(name: str, owned: Owned, n_examples: int) -> None:
    """Raises ValueError if a row is not in the pool, or client i, which owns the rows ``name[i]``, owns a row twice: it
    might be both trained and tested on."""
    check_rows_of(owned, n_examples)
    rows, size = owned
    pairs = np.repeat(np.arange(len(size)), size) * max(n_examples, 1) + rows  # one number per (client, row)
    pairs.sort()
    if (is_repeated := pairs[1:] == pairs[:-1]).any():
        pair = pairs[int(np.argmax(is_repeated))]
        client, row = divmod(int(pair), n_examples)
        count = int((pairs == pair).sum())
        raise ValueError(f"{name}[{client}] has row {row} {count} times; give each row of a client once")


def check_rows_of(owned: Owned, n_examples: int) -> None:
    """Raises ValueError for the first client that owns a row outside the pool."""
    outside = (owned.rows < 0) | (owned.rows >= n_examples)
    if outside.any():
        ends = np.cumsum(owned.size)
        client = int(np.searchsorted(ends, np.argmax(outside), side="right"))
        check_rows(owned.rows[ends[client] - owned.size[client] : ends[client]], n_examples)


def check_rows(rows: np.ndarray, n_examples: int) -> None:
    """Raises ValueError if a row is outside the pool."""
    if len(rows) and (rows.min() < 0 or rows.max() >= n_examples):
        raise ValueError(f"a client owns rows {rows.min()} to {rows.max()}; the pool has 0 to {n_examples - 1}")
