"""Federations as arrays: each example stored once, index tables of the clients' rows, and how a batch is gathered."""

from numbers import Real
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike

from fljax.choices import Seed, check_choices
from fljax.data.items import check_float32
from fljax.data.labels import are_classes, as_labels, check_classes
from fljax.data.scale import warn_of_scale
from fljax.data.split import Rows, client_data, split_rows
from fljax.data.validation import check_owned, owned_rows, validate
from fljax.placement import on_device
from fljax.types import Batch, ClientData, Examples, Federation


def build(
    pool: Examples,
    owned: Rows,
    split: tuple[float, float, float] = (0.8, 0.0, 0.2),
    seed: Seed = 0,
    *,
    group: ArrayLike | None = None,
    public: Examples | None = None,
    test_owned: Rows | None = None,
    test_pool: Examples | None = None,
    stratify: bool = True,
) -> Federation:
    """A federation in which client i owns rows ``owned[i]`` of ``pool``, cut into train, validation and test.

    Each split of each client has at least one example if its fraction is above 0. With ``stratify``, the count of each
    class in each split is about its share, within two. The splits share one pool: the same object, stored once.

    Args:
        pool: all examples, ``x`` (examples, ...) uint8, floating or int32, ``y`` as `as_labels` reads it.
        owned: rows of each client, no row twice; clients may share rows.
        split: fractions of train, validation and test; they sum to 1. Validation 0 gives ``val=None``.
        seed: decides which rows go to which split.
        group: true group of each client, if known: whole numbers from 0, or names of any kind, which are numbered in
            sorted order.
        public: the server's own data; its labels are replaced by -1.
        test_owned: test rows of each client, if the setting defines them; then the test fraction must be 0. A client
            without test rows is not tested.
        test_pool: the pool of the rows in ``test_owned``; None: ``pool``.
        stratify: False: splits at random, as always if labels are not classes.

    Raises:
        ValueError: in one line, for what `validate` rejects, no clients, a row that a client owns twice, fractions that
            do not sum to 1, and clients too small to be split.
    """
    check_split(split)
    if test_owned is None and split[2] == 0:
        raise ValueError(f"split={split}: no client would be tested; give a test fraction (the last) above 0")
    if test_owned is not None and split[2] > 0:
        raise ValueError(
            f"split={split} has a test fraction, but test_owned gives the test rows; give a test fraction of 0"
        )
    check_choices(build, {"seed": seed})
    if public is not None:
        _check_examples("public", public)
    _check_examples("pool", pool)
    raw_x, pool = pool.x, as_arrays(pool)
    warn_of_scale(raw_x)
    rng = np.random.default_rng(seed)
    labels = np.asarray(pool.y)
    stratify = stratify and are_classes(labels)
    train, val, test = (client_data(pool, part) for part in split_rows(rng, labels, owned, split, stratify))
    if test_owned is not None:
        test_rows = owned_rows(test_owned)
        test_pool = pool if test_pool is None else as_arrays(test_pool)
        check_owned("test_owned", test_rows, len(test_pool.y))
        test = client_data(test_pool, test_rows)
    federation = Federation(
        train=train,
        val=val if split[1] > 0 else None,
        test=test,
        public=None if public is None else as_arrays(on_host(public.x, np.full(len(public.y), -1))),
        group=None if group is None else on_device(_numbered(np.asarray(group)), jnp.int32),
    )
    validate(federation)
    return federation


def _check_examples(name: str, examples: Any) -> None:
    if not (hasattr(examples, "x") and hasattr(examples, "y")):
        raise ValueError(f"{name} is of type {type(examples).__name__}, not Examples; give fljax.Examples(x, y)")


def on_host(x: np.ndarray | Array, y: np.ndarray | Array) -> Examples:
    """Examples as NumPy arrays, which readers return and partitions use; labels as `as_labels` returns them."""
    return Examples(cast(Array, np.asarray(x)), cast(Array, as_labels(y)))


def as_arrays(examples: Examples) -> Examples:
    """``examples`` as JAX arrays: ``x`` uint8 or float32, or int32 for whole numbers of any other type; ``y`` as
    `as_labels` returns it.

    Raises:
        ValueError: ``x`` is not an array, is of another type, holds numbers beyond int32 or float32, or differs from
            ``y`` in the number of examples; or as `as_labels`.
    """
    if not hasattr(examples.x, "dtype"):
        raise ValueError(f"x is a {type(examples.x).__name__}; give an array (examples, ...)")
    kind, y = np.dtype(examples.x.dtype), as_labels(examples.y)
    dtype = jnp.uint8 if kind == np.uint8 else jnp.int32 if kind.kind in "iu" else jnp.float32
    if dtype == jnp.float32 and not np.issubdtype(kind, np.floating):
        wanted = "uint8 pixels (0 to 255), floating-point features, or tokens of a text as whole numbers"
        tokens = ", which fljax.from_frame makes of a column of texts, Columns(text=...)" if kind.kind in "USO" else ""
        raise ValueError(f"x has dtype {kind}; give {wanted}{tokens}")
    check_float32("x has", examples.x)
    bounds = np.iinfo(np.int32)
    if dtype == jnp.int32 and examples.x.size and not bounds.min <= examples.x.min() <= examples.x.max() <= bounds.max:
        raise ValueError(f"x has tokens {examples.x.min()} to {examples.x.max()}; give tokens that int32 holds")
    if len(examples.x) != len(y):
        raise ValueError(f"x has {len(examples.x)} examples and y {len(y)}; give a label for each example")
    return Examples(on_device(examples.x, dtype), on_device(y, y.dtype))


def select(data: ClientData, ids: Array) -> ClientData:
    """The clients ``ids`` (cohort,) of ``data``; the pool is shared, not copied."""
    return data._replace(index=data.index if data.is_common else data.index[ids], size=data.size[ids])


def minibatch(pool: Examples, rows: Array, weight: Array) -> Batch:
    """Rows of the pool as a batch: ``x = pixels / 255`` for a uint8 pool, unchanged for a float32 or int32 pool.

    ``rows`` and ``weight`` share any shape ``(batch,)`` or more. Rows of weight 0 are gathered like the others, so
    point them at examples of the same client (`fljax.client.minibatches.batch_rows` does): batch statistics then see
    only this client's examples.
    """
    return Batch(as_inputs(pool.x[rows]), pool.y[rows], weight)


def as_inputs(x: Array) -> Array:
    """A network's inputs from examples: ``pixels / 255`` for uint8, other types unchanged."""
    return x.astype(jnp.float32) / jnp.float32(255) if x.dtype == jnp.uint8 else x


def present(data: ClientData) -> Array:
    """(clients, capacity) bool: which entries of ``data.index`` are real; the others are padding."""
    return jnp.arange(data.index.shape[1])[None] < data.size[:, None]


def class_histogram(data: ClientData, n_classes: int) -> Array:
    """(clients, classes) int32: how many examples of each class each client has."""
    check_classes(data.pool.y)
    labels = jnp.where(present(data), data.pool.y[data.index], n_classes)
    client = jnp.arange(labels.shape[0])[:, None]
    counts = jnp.zeros((labels.shape[0], n_classes), jnp.int32)
    return counts.at[jnp.broadcast_to(client, labels.shape), labels].add(1, mode="drop")


def n_classes(federation: Federation) -> int:
    """The number of a network's outputs: one more than the largest class in the pools, so that a class without owner
    counts too; for a regression or several labels, the number of targets.
    """
    labels = federation.train.pool.y
    if not are_classes(labels):
        return 1 if labels.ndim == 1 else labels.shape[1]
    splits = (federation.train, federation.val, federation.test)
    pools = {id(split.pool): split.pool for split in splits if split is not None}  # usually one pool, searched once
    return 1 + max(int(np.asarray(pool.y).max()) for pool in pools.values())


def check_split(split: tuple[float, float, float]) -> None:
    """Raises ValueError unless ``split`` is three fractions that sum to 1, with that of train above 0."""
    are_numbers = isinstance(split, tuple | list | np.ndarray) and all(isinstance(fraction, Real) for fraction in split)
    are_shares = are_numbers and len(split) == 3 and min(split) >= 0 and split[0] > 0
    if not (are_shares and abs(sum(split) - 1) <= 1e-6):  # which NaN is not
        raise ValueError(f"split={split}: give fractions of train (above 0), validation and test that sum to 1")


def _numbered(group: np.ndarray) -> np.ndarray:
    """Groups as numbers from 0; whole numbers below the number of clients stay as they are."""
    if group.dtype.kind in "iu" and (group < group.size).all():
        return group.astype(np.int32)  # `validate` rejects negative ones
    try:
        place = np.unique(group, return_inverse=True)[1]
    except TypeError:  # names of several kinds have no order, but as texts they do
        place = np.unique(group.astype(str), return_inverse=True)[1]
    return place.reshape(group.shape).astype(np.int32)
