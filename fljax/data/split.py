"""Splits of the clients' rows into train, validation and test: drawn client by client, cut for all at once."""

from collections.abc import Sequence

import numpy as np

from fljax.data.validation import Owned, check_owned, check_rows_of, owned_rows
from fljax.placement import on_device
from fljax.types import ClientData, Examples

Rows = Sequence[np.ndarray]
"""For each client, the rows of a pool that it owns."""


def split_rows(
    rng: np.random.Generator, labels: np.ndarray, owned: Rows, split: tuple[float, float, float], stratify: bool
) -> list[Owned]:
    """All clients' rows for training, for validation and for test, each in ascending order.

    Raises:
        ValueError: there are no clients, a row is not in the pool, or a client has a row twice or too few rows.
    """
    all_owned = owned_rows(owned)
    rows, size = all_owned
    if not len(size):
        raise ValueError("owned has 0 clients; give the rows of at least one")
    check_owned("owned", all_owned, len(labels))
    n_splits = sum(fraction > 0 for fraction in split)
    if (is_too_small := size < n_splits).any():
        i = int(np.argmax(is_too_small))
        raise ValueError(
            f"client {i} has {size[i]} examples, too few for {n_splits} splits; leave it out, or use fewer clients "
            "or a larger minimum"
        )
    begin = np.cumsum(size) - size
    # Each client in turn draws an order of its rows, and where its test and validation rows begin.
    order, start = np.zeros(len(rows), np.int64), np.zeros((len(size), 2))
    for i, (first, n) in enumerate(zip(begin.tolist(), size.tolist(), strict=True)):
        order[first : first + n] = rng.permutation(n)
        start[i] = rng.random(), rng.random()
    client = np.repeat(np.arange(len(size)), size)
    rows = rows[begin[client] + order]
    if stratify:
        rows = rows[np.lexsort((labels[rows], client))]
    n_test = np.minimum(_shares(split[2], size), size - 1 - (split[1] > 0))  # leaves one to train, one to validate
    n_val = np.minimum(_shares(split[1], size), size - n_test - 1)
    part = np.zeros(len(rows), np.int8)
    part[_spread(start[:, 0], size, n_test)] = 2
    rest = np.flatnonzero(part == 0)
    part[rest[_spread(start[:, 1], size - n_test, n_val)]] = 1
    ascending = np.lexsort((rows, client))
    rows, part = rows[ascending], part[ascending]
    return [Owned(rows[part == p], n) for p, n in enumerate((size - n_test - n_val, n_val, n_test))]


def _shares(fraction: float, size: np.ndarray) -> np.ndarray:
    """(clients,) about ``fraction`` of each size, at least 1 and not all; 0 if the fraction is 0."""
    if fraction == 0:
        return np.zeros_like(size)
    return np.minimum(np.maximum(1, np.round(fraction * size).astype(size.dtype)), size - 1)


def _spread(start: np.ndarray, size: np.ndarray, count: np.ndarray) -> np.ndarray:
    """For each client, ``count`` of its ``size`` positions at even distances from a ``start`` in [0, 1).

    Any run of positions has its share, within one. Positions are counted through all clients.
    """
    client = np.repeat(np.arange(len(size)), count)
    nth = np.arange(len(client)) - (np.cumsum(count) - count)[client]
    position = ((nth + start[client]) * size[client] / np.maximum(count, 1)[client]).astype(np.int64)
    return (np.cumsum(size) - size)[client] + position


def client_data(pool: Examples, owned: Rows | Owned) -> ClientData:
    """One split: client i owns rows ``owned[i]`` of ``pool``."""
    rows, size = owned if isinstance(owned, Owned) else owned_rows(owned)
    check_rows_of(Owned(rows, size), len(pool.y))  # before the conversion to int32
    index = np.zeros((len(size), max(int(size.max(initial=0)), 1)), np.int32)
    index[np.arange(index.shape[1]) < size[:, None]] = rows
    size = size.astype(np.int32)
    return ClientData(pool, on_device(index, index.dtype), on_device(size, size.dtype))
