"""What a federation must be for a method to train on it."""

from typing import Any

import jax
import numpy as np

from fljax.data.labels import are_classes
from fljax.types import ClientData, Federation


def validate(federation: Federation) -> None:
    """Refuses a federation that no method could train on.

    Raises:
        ValueError: in one line, for a client without training or validation examples, no test examples at all, rows
            outside the pool, labels below 0, pixels or targets that are not finite, splits with other kinds of labels,
            splits or groups with another number of clients.
    """
    n_clients = federation.train.size.shape[0]
    for name in ("train", "val", "test"):
        data = getattr(federation, name)
        if data is not None:
            _check_split_of_clients(name, data, n_clients)
            if (kind := _kind_of(data)) != (wanted := _kind_of(federation.train)):
                raise ValueError(f"{name} has labels {kind} and train {wanted}; give all splits the same")
    if federation.group is not None:
        _check_group(np.asarray(federation.group), n_clients)


def _check_group(group: np.ndarray, n_clients: int) -> None:
    if group.shape != (n_clients,):
        raise ValueError(f"group has shape {group.shape}; give one true group for each of {n_clients} clients")
    found = f"{group.min()} to {group.max()}" if group.dtype.kind in "iuf" else f"values of type {group.dtype}"
    if group.dtype.kind not in "iu" or group.min() < 0:  # some of a federation's clients may be of its later groups
        raise ValueError(f"group has {found}; number the groups 0, 1, 2, ..., or leave it out")


def _check_split_of_clients(name: str, data: ClientData, n_clients: int) -> None:
    index, size = np.asarray(data.index), np.asarray(data.size)
    if n_clients == 0 or len(size) != n_clients:
        raise ValueError(f"{name} has {len(size)} clients and train {n_clients}; give every split the same, at least 1")
    if name == "test" and not size.any():
        raise ValueError("no client has test examples; give some")
    if name != "test" and (size < 1).any():  # who has no test examples is not tested
        empty = int(np.argmin(size))
        raise ValueError(f"client {empty} has no {name} examples; use fewer clients, a larger split or more data")
    rows = np.unique(index[np.arange(index.shape[1]) < size[:, None]])
    n_examples = data.pool.y.shape[0]
    check_rows(rows, n_examples)
    labels = np.asarray(data.pool.y)[rows]
    if are_classes(labels) and labels.min() < 0:
        raise ValueError(f"{name} has label {labels.min()}; labels must be 0, 1, 2, ...")
    for what, values in (("example", data.pool.x), ("target of example", data.pool.y)):
        if np.issubdtype(values.dtype, np.floating) and not _all_are_finite(values):
            finite = np.isfinite(np.asarray(values).reshape(n_examples, -1)[rows]).all(axis=1)
            if not finite.all():
                row = rows[np.argmin(finite)]
                raise ValueError(f"{name} {what} {row} is not finite; remove it or replace its NaN")


def _all_are_finite(values: jax.Array | np.ndarray) -> bool:
    """By the sum, which large numbers may exceed too; an accelerator's array is summed there: fetching it is slower."""
    on_accelerator = isinstance(values, jax.Array) and values.devices().pop().platform != "cpu"
    with np.errstate(all="ignore"):
        return bool(np.isfinite(values.sum() if on_accelerator else np.asarray(values).sum()))


def _kind_of(data: ClientData) -> tuple:
    return (str(data.pool.y.dtype), *data.pool.y.shape[1:])


def check_rows(rows: np.ndarray, n_examples: int) -> None:
    """Raises ValueError where a row is not of the pool."""
    if len(rows) and (rows.min() < 0 or rows.max() >= n_examples):
        raise ValueError(f"a client owns rows {rows.min()} to {rows.max()}; the pool has 0 to {n_examples - 1}")


def check_once(name: str, rows: np.ndarray) -> None:
    """Raises ValueError where a client, of whom ``name`` are the rows, owns one of them twice: it would be trained on
    and tested on."""
    values, counts = np.unique(rows, return_counts=True)
    if (counts > 1).any():
        twice = int(np.argmax(counts > 1))
        raise ValueError(f"{name} has row {values[twice]} {counts[twice]} times; give each row of a client once")


def rows_of(rows: Any, i: int) -> np.ndarray:
    """(rows,) int64 rows of client i.

    Raises:
        ValueError: they are no list of whole numbers, as where the clients' ids are given in their place.
    """
    array = np.asarray(rows)
    if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or not array.size):
        what = f"a number, {rows}" if array.ndim == 0 else f"an array of shape {array.shape} and dtype {array.dtype}"
        raise ValueError(
            f"owned[{i}] is {what}; give for each client the whole numbers of its rows. If each example has a client's "
            "id, use fljax.federation_from_arrays(x, y, client_ids)"
        )
    return array.astype(np.int64)
