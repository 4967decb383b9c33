"""Federations as arrays: every example stored once, index tables that say whose it is, and how a batch is gathered."""

from collections.abc import Sequence
from typing import cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.types import Batch, ClientData, Examples, Federation

Rows = Sequence[np.ndarray]
"""For every client, the rows of a pool that it owns."""


def build(
    pool: Examples,
    owned: Rows,
    split: tuple[float, float, float] = (0.8, 0.0, 0.2),
    seed: int = 0,
    *,
    group: np.ndarray | None = None,
    public: Examples | None = None,
    test_owned: Rows | None = None,
    test_pool: Examples | None = None,
    stratify: bool = True,
) -> Federation:
    """A federation in which client i owns rows ``owned[i]`` of ``pool``, cut into train, validation and test.

    Every split of every client has at least one example where its fraction is above 0, and with ``stratify`` the count
    of each class in each split is within one of its share. The splits share one pool: the same object, stored once.

    Args:
        pool: all examples, ``x`` (examples, height, width, channels) uint8 or floating, ``y`` (examples,).
        owned: rows of each client; they may overlap between clients.
        split: fractions of train, validation and test; they sum to 1. Validation 0 gives ``val=None``.
        seed: decides which rows go to which split.
        group: true group of each client, where there is one.
        public: the server's own data; its labels are replaced by -1.
        test_owned: test rows of each client, where the setting gives them; then the test fraction must be 0.
        test_pool: what ``test_owned`` points into; None: ``pool``.
        stratify: False splits at random instead.

    Raises:
        ValueError: in one line, for what `validate` refuses, fractions that do not sum to 1 and clients too small to
            be split.
    """
    _check_split(split, test_owned)
    pool = as_arrays(pool)
    rng = np.random.default_rng(seed)
    labels = np.asarray(pool.y)
    pieces = [_split_rows(rng, labels, np.asarray(rows, np.int32), split, stratify, i) for i, rows in enumerate(owned)]
    train, val, test = (_table(pool, [piece[part] for piece in pieces]) for part in range(3))
    if test_owned is not None:
        test = _table(pool if test_pool is None else as_arrays(test_pool), test_owned)
    federation = Federation(
        train=train,
        val=val if split[1] > 0 else None,
        test=test,
        public=None if public is None else as_arrays(on_host(public.x, np.full(len(public.y), -1))),
        group=None if group is None else jnp.asarray(np.asarray(group, np.int32)),
    )
    validate(federation)
    return federation


def on_host(x: np.ndarray | Array, y: np.ndarray | Array) -> Examples:
    """Examples that are NumPy arrays: what readers return and partitions work on."""
    return Examples(cast(Array, np.asarray(x)), cast(Array, np.asarray(y, np.int32)))


def as_arrays(examples: Examples) -> Examples:
    """``examples`` as JAX arrays: ``x`` uint8 or float32, ``y`` int32."""
    kind = np.dtype(examples.x.dtype)
    if kind != np.uint8 and not np.issubdtype(kind, np.floating):
        raise ValueError(f"x has dtype {kind}; give uint8 pixels (0 to 255) or floating-point features")
    dtype = jnp.uint8 if kind == np.uint8 else jnp.float32
    return Examples(jnp.asarray(examples.x, dtype), jnp.asarray(np.asarray(examples.y), jnp.int32))


def select(data: ClientData, ids: Array) -> ClientData:
    """The clients ``ids`` (cohort,) of ``data``; the pool is shared, not copied."""
    return ClientData(data.pool, data.index[ids], data.size[ids])


def minibatch(pool: Examples, rows: Array, weight: Array) -> Batch:
    """Rows of the pool as a batch: ``x = pixels / 255`` for a uint8 pool, as it is for a float32 pool.

    ``rows`` and ``weight`` share any shape ``(batch,)`` or more. Rows of weight 0 are gathered like the others, so
    point them at examples of the same client (`fljax.client.local.batch_rows` does): batch statistics then see real
    images, and nothing foreign.
    """
    x = pool.x[rows]
    if x.dtype == jnp.uint8:
        x = x.astype(jnp.float32) / jnp.float32(255)
    return Batch(x, pool.y[rows], weight)


def present(data: ClientData) -> Array:
    """(clients, capacity) bool: which entries of ``data.index`` are real, the others fill the shape."""
    return jnp.arange(data.index.shape[1])[None] < data.size[:, None]


def class_histogram(data: ClientData, n_classes: int) -> Array:
    """(clients, classes) int32: how many examples of each class each client has."""
    labels = jnp.where(present(data), data.pool.y[data.index], n_classes)
    client = jnp.arange(labels.shape[0])[:, None]
    counts = jnp.zeros((labels.shape[0], n_classes), jnp.int32)
    return counts.at[jnp.broadcast_to(client, labels.shape), labels].add(1, mode="drop")


def n_classes(federation: Federation) -> int:
    """One more than the largest label of the pools, so a class that no client owns still counts."""
    return 1 + max(int(federation.train.pool.y.max()), int(federation.test.pool.y.max()))


def validate(federation: Federation) -> None:
    """Refuses a federation that no method could train on.

    Raises:
        ValueError: in one line, for a client without examples, rows outside the pool, labels below 0, pixels that are
            not finite, splits or groups with another number of clients.
    """
    n_clients = federation.train.size.shape[0]
    for name in ("train", "val", "test"):
        data = getattr(federation, name)
        if data is not None:
            _check_split_of_clients(name, data, n_clients)
    if federation.group is not None and federation.group.shape != (n_clients,):
        raise ValueError(
            f"group has shape {federation.group.shape}; give one true group for each of {n_clients} clients"
        )


def _check_split_of_clients(name: str, data: ClientData, n_clients: int) -> None:
    index, size = np.asarray(data.index), np.asarray(data.size)
    if n_clients == 0 or len(size) != n_clients:
        raise ValueError(f"{name} has {len(size)} clients and train {n_clients}; give every split the same, at least 1")
    if (size < 1).any():
        empty = int(np.argmin(size))
        raise ValueError(f"client {empty} has no {name} examples; use fewer clients, a larger split or more data")
    rows = np.unique(index[np.arange(index.shape[1]) < size[:, None]])
    n_examples = data.pool.y.shape[0]
    _check_rows(rows, n_examples)
    labels = np.asarray(data.pool.y)[rows]
    if labels.min() < 0:
        raise ValueError(f"{name} has label {labels.min()}; labels must be 0, 1, 2, ...")
    if data.pool.x.dtype != jnp.uint8:
        finite = np.isfinite(np.asarray(data.pool.x).reshape(n_examples, -1)[rows]).all(axis=1)
        if not finite.all():
            raise ValueError(f"{name} example {rows[np.argmin(finite)]} is not finite; remove it or replace its NaN")


def _check_rows(rows: np.ndarray, n_examples: int) -> None:
    if len(rows) and (rows.min() < 0 or rows.max() >= n_examples):
        raise ValueError(f"a client owns rows {rows.min()} to {rows.max()}; the pool has 0 to {n_examples - 1}")


def _check_split(split: tuple[float, float, float], test_owned: Rows | None) -> None:
    if len(split) != 3 or min(split) < 0 or split[0] <= 0 or abs(sum(split) - 1) > 1e-6:
        raise ValueError(f"split={split}: give fractions of train (above 0), validation and test that sum to 1")
    if (test_owned is None) == (split[2] == 0):
        raise ValueError(f"split={split}: give either a test fraction above 0 or the test rows, not both")


def _split_rows(
    rng: np.random.Generator,
    labels: np.ndarray,
    rows: np.ndarray,
    split: tuple[float, float, float],
    stratify: bool,
    i: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of client i as (train, validation, test)."""
    _check_rows(rows, len(labels))
    n, wanted = len(rows), sum(fraction > 0 for fraction in split)
    if n < wanted:
        raise ValueError(
            f"client {i} has {n} examples, too few for {wanted} splits; use fewer clients or a larger minimum"
        )
    rows = rows[rng.permutation(n)]
    if stratify:
        rows = rows[np.argsort(labels[rows], kind="stable")]
    n_test = _share(split[2], n)
    n_val = min(_share(split[1], n), n - n_test - 1)
    test = spread(rng, n, n_test)
    rest = np.delete(rows, test)
    val = spread(rng, len(rest), n_val)
    return np.sort(np.delete(rest, val)), np.sort(rest[val]), np.sort(rows[test])


def _share(fraction: float, n: int) -> int:
    return 0 if fraction == 0 else min(max(1, round(fraction * n)), n - 1)


def spread(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """``k`` of the positions 0..n-1 at even distances from a random start: of any run of them, its share within one."""
    return ((np.arange(k) + rng.random()) * n / max(k, 1)).astype(np.int64)


def _table(pool: Examples, owned: Rows) -> ClientData:
    size = np.array([len(rows) for rows in owned], np.int32)
    index = np.zeros((len(owned), max(int(size.max(initial=0)), 1)), np.int32)
    for i, rows in enumerate(owned):
        index[i, : len(rows)] = rows
    return ClientData(pool, jnp.asarray(index), jnp.asarray(size))
