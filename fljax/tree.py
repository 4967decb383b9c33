"""Maths on pytrees of models, also stacked along a leading axis such as clients or clusters."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax.choices import listed, short_repr
from fljax.placement import whole
from fljax.types import AnyArray, ModelTable, Params, Stacked

STATISTICS = "batch_stats"
"""The subtree of Params with running statistics: averaged or kept, but never counted, penalised or compared."""


_SMALL = 1 << 16
"""Array size up to which comparing all entries is faster than compiling a scatter."""


def n_rows(stacked: Stacked) -> int:
    """Length of the leading axis that the leaves share; in a `ModelTable`, leaves may also have one row."""
    return max(leaf.shape[0] for leaf in jax.tree.leaves(stacked))


def take(stacked: Stacked, index: Array | int) -> Stacked:
    """Rows ``index`` of every leaf: ``(rows, ...) -> index.shape + (...)``."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)


def first(stacked: Stacked) -> Params:
    """Row 0 of every leaf, for example for the shapes of stacked models, or if all rows are equal."""
    return take(stacked, jnp.int32(0))


def row(models: Stacked, index: Array | int) -> Params:
    """The model in row ``index`` () of a `ModelTable`'s ``params``: a leaf with one row belongs to every model."""

    def taken(leaf: Array) -> Array:
        if leaf.shape[0] == 1:  # with a constant index, it stays unbatched under vmap
            return leaf[0]
        return lax.dynamic_index_in_dim(leaf, index, keepdims=False)

    return jax.tree.map(taken, models)


def stacked(models: ModelTable) -> Stacked:
    """Every client's model, (clients, ...)."""
    return jax.tree.map(
        lambda leaf: jnp.asarray(leaf)[models.row if leaf.shape[0] > 1 else 0 * models.row], models.params
    )


def put(stacked: Stacked, index: Array, rows: Stacked, mask: Array | None = None) -> Stacked:
    """``stacked`` with its rows ``index`` (distinct, in 0..rows-1) replaced by ``rows``.

    If ``mask`` (entries,) is given, only rows with True are replaced.

    Each row looks up its replacement: one kernel per leaf, whereas a scatter is a loop of six. If few rows of a large
    leaf change, only those are written.
    """
    n_put = index.shape[0]
    if mask is not None:
        rows = where(mask, rows, take(stacked, index))

    def replaced(leaf: Array, new: Array) -> Array:
        n = leaf.shape[0]
        if 2 * n_put < n and leaf.size > _SMALL:
            return leaf.at[index].set(new)
        position = _positions_in(index, n)
        replacement = whole(new if new.dtype == leaf.dtype else new.astype(leaf.dtype)).at[position].get(mode="clip")
        # Whole, like the input: otherwise several devices would exchange the rows again in the next round.
        return whole(jnp.where(along(position < n_put, leaf), replacement, leaf))

    return jax.tree.map(replaced, stacked, rows)


def _positions_in(index: Array, n: int) -> Array:
    """(n,) int32: the position of row i in ``index`` (entries,), distinct; the number of entries if it is absent."""
    entry, row = jnp.arange(index.shape[0], dtype=jnp.int32), jnp.arange(n, dtype=jnp.int32)
    if entry.size * n > _SMALL:
        return jnp.full(n, entry.size, jnp.int32).at[index].set(entry)
    return jnp.where(index[None, :] == row[:, None], entry, entry.size).min(axis=1)


def stack(trees: Iterable[Params]) -> Stacked:
    """Equal-shaped trees under a new leading axis.

    Raises:
        ValueError: ``trees`` are no list, there are none, or one has other leaves or shapes than the first.
    """
    if not (trees := listed("trees", trees, "give several models")):
        raise ValueError("trees are none; give at least one model")
    for i, one in enumerate(trees):
        _check_as_first(i, one, trees[0])
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _check_as_first(i: int, one: Params, first: Params) -> None:
    """Raises ValueError if tree ``i`` of several is not of the structure and the shapes of the ``first``."""
    remedy, shapes, first_shapes = "give models of one network", _shapes(i, one), _shapes(0, first)
    for path in (*first_shapes, *shapes):
        here, there = (f"of shape {at[path]}" if path in at else "missing" for at in (shapes, first_shapes))
        if here != there:
            raise ValueError(f"trees[{i}]{path} is {here}, but trees[0]{path} is {there}; {remedy}")
    if (structure := jax.tree.structure(one)) != (first_structure := jax.tree.structure(first)):
        raise ValueError(f"trees[{i}] is of the structure {structure}, but trees[0] of {first_structure}; {remedy}")


def _shapes(i: int, params: Params) -> dict[str, tuple[int, ...]]:
    """The path of each leaf -> its shape; ValueError if a leaf of tree ``i`` is neither an array nor a number."""
    shapes = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(params):
        path = jax.tree_util.keystr(keys)
        if not isinstance(leaf, Array | np.ndarray | np.generic | int | float | complex):
            raise ValueError(f"trees[{i}]{path} is {short_repr(leaf)}, not an array; give models")
        shapes[path] = jnp.shape(leaf)
    return shapes


def broadcast(params: Params, rows: int) -> Stacked:
    """``rows`` equal copies of one model under a new leading axis."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (rows, *leaf.shape)), params)


def where(mask: AnyArray, on_true: Stacked, on_false: Stacked) -> Stacked:
    """Row-wise selection by ``mask`` (rows,), or () for all rows; NaN in rows that are not selected has no effect."""
    return jax.tree.map(lambda a, b: jnp.where(along(mask, a) if mask.ndim else mask, a, b), on_true, on_false)


def mixture(share: AnyArray, a: Params, b: Params) -> Params:
    """``share a + (1 - share) b`` with a share () or, for stacked models, (rows,); running statistics too."""
    return as_before(jax.tree.map(lambda x, y: y + along(share, x) * (x - y), a, b), b)


def along(row: AnyArray, leaf: AnyArray) -> AnyArray:
    """``row`` (rows,) shaped to broadcast against ``leaf`` (rows, ...)."""
    return row.reshape(row.shape + (1,) * (leaf.ndim - row.ndim))


def split_statistics(params: Params) -> tuple[Params, Params]:
    """``params`` as (trainable subtrees, running statistics): two dicts, which ``|`` joins again."""
    if not (isinstance(params, dict) and STATISTICS in params):
        return params, {}
    return without(params, STATISTICS), {STATISTICS: params[STATISTICS]}


def join_statistics(trainable: Params, statistics: Params) -> Params:
    """The inverse of `split_statistics`."""
    return trainable | statistics if statistics else trainable


def trainable(params: Params) -> Params:
    """``params`` without running statistics."""
    return split_statistics(params)[0]


def map_trainable(function: Callable[..., Any], params: Params, *others: Params) -> Params:
    """``function`` of the trainable leaves of ``params`` and ``others``, plus the running statistics of ``params``."""
    trainable_part, statistics = split_statistics(params)
    return join_statistics(jax.tree.map(function, trainable_part, *map(trainable, others)), statistics)


def map_layers(function: Callable[..., Any], params: Params, *others: Params) -> Params:
    """``function(name, *layers)`` of each layer of models ``{name: layer}``, and of each layer's running statistics."""

    def mapped(*models: Params) -> Params:
        return {name: function(name, *(model[name] for model in models)) for name in models[0]}

    parts = [split_statistics(model) for model in (params, *others)]
    statistics = [part.get(STATISTICS, {}) for _, part in parts]
    return join_statistics(
        mapped(*(layers for layers, _ in parts)),
        {STATISTICS: mapped(*statistics)} if statistics[0] else {},
    )


def side_by_side(**models: Params) -> Params:
    """Several models as one model, whose layers they are, by name; their running statistics become that model's.

    Otherwise server optimisers and uplink bricks would treat the running statistics as parameters.
    """
    parts = {name: split_statistics(model) for name, model in models.items()}
    named_statistics = {name: statistics[STATISTICS] for name, (_, statistics) in parts.items() if statistics}
    return join_statistics(
        {name: layers for name, (layers, _) in parts.items()},
        {STATISTICS: named_statistics} if named_statistics else {},
    )


def apart(params: Params) -> dict[str, Params]:
    """The inverse of `side_by_side`."""
    models, statistics = split_statistics(params)
    named_statistics = statistics.get(STATISTICS, {})
    return {
        name: join_statistics(model, {STATISTICS: named_statistics[name]} if name in named_statistics else {})
        for name, model in models.items()
    }


def named_leaves(params: Params, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Path of names -> array, in the order of the dicts: the names of a model's leaves in files.

    Raises:
        ValueError: a node of ``params`` is neither an array nor a dict with strings as keys.
    """
    place = "the model's params" + "".join(f"[{name!r}]" for name in path)
    if not isinstance(params, Mapping):
        if path and hasattr(params, "dtype"):
            return {path: params}
        raise ValueError(f"{place} is a {type(params).__name__}; give an array, or a dict {{name: array}}")
    if wrong_keys := [name for name in params if not isinstance(name, str)]:
        raise ValueError(
            f"{place} has the key {wrong_keys[0]!r}, a {type(wrong_keys[0]).__name__}; give strings as names"
        )
    parts = [named_leaves(part, (*path, name)) for name, part in params.items()]
    return {name: leaf for part in parts for name, leaf in part.items()}


def flatten(stacked: Stacked) -> Array:
    """Trainable leaves of every row, flattened and concatenated: ``(rows, ...) -> (rows, parameters)``."""
    leaves = jax.tree.leaves(trainable(stacked))
    return jnp.concatenate([as_matrix(leaf) for leaf in leaves], axis=1)


def as_matrix(leaf: Array) -> Array:
    """A leaf (rows, ...) as (rows, scalars), without a copy.

    Raises:
        ValueError: it has no rows.
    """
    if leaf.shape[0] == 0:
        raise ValueError(f"an array of shape {leaf.shape} has no rows, one per client; give at least one")
    return leaf.reshape(leaf.shape[0], -1)


def select(params: Params, layers: tuple[str, ...]) -> Params:
    """The subtrees of the named layers, of one model or of stacked models."""
    return {name: params[name] for name in layers}


def without(params: Params, *names: str) -> Params:
    """``params`` without the subtrees of these names."""
    return {name: part for name, part in params.items() if name not in names}


def check_layers(layers: tuple[str, ...], known: Iterable[str]) -> None:
    """Raises ValueError if ``layers`` are no names, or have one that is not among the ``known`` layers."""
    known = tuple(known)
    if isinstance(layers, str):
        raise ValueError(f"layers={layers!r} is one string; give a tuple of {known}")
    for name in listed("layers", layers, f"give a tuple of {known}"):
        if name not in known:
            raise ValueError(f"layers={tuple(layers)}: there is no layer {name!r}; choose among {known}")


def size(params: Params) -> int:
    """Number of trainable scalars of one model: ``P`` in the uplink and downlink counts."""
    return sum(leaf.size for leaf in jax.tree.leaves(trainable(params)))


def row_size(stacked: Stacked) -> int:
    """`size` of each of the stacked models."""
    return size(stacked) // n_rows(stacked)


def squared_norm(params: Params) -> Array:
    """Sum of squares over all trainable leaves, () float32."""
    return dot(params, params)


def squared_norms(stacked: Stacked) -> Array:
    """(rows,) float32, `squared_norm` of each of the stacked models."""
    return jax.vmap(squared_norm)(stacked)


def dot(a: Params, b: Params) -> Array:
    """Sum of products over all trainable leaves, () float32."""
    leaves = (map(at_least_float32, jax.tree.leaves(trainable(params))) for params in (a, b))
    pairs = zip(*leaves, strict=True)
    return sum((jnp.vdot(x, y, precision=lax.Precision.HIGHEST) for x, y in pairs), start=jnp.float32(0))


def root(square: Array) -> Array:
    """The square root of a sum of squares, with gradient 0 instead of NaN where the sum is 0."""
    return jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), square)


def subtract(a: Params, b: Params) -> Params:
    """``a - b``, leaf by leaf."""
    return jax.tree.map(jnp.subtract, a, b)


def check_real(x: AnyArray) -> None:
    """Raises ValueError if ``x`` has complex numbers."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"an array has dtype {x.dtype}; give real numbers, such as .real and .imag side by side")


def at_least_float32(x: AnyArray) -> Array:
    """``x`` in float32, or in float64 if it has 64 bits: for sums over many entries and exact comparisons.

    Raises:
        ValueError: ``x`` has complex numbers, whose imaginary part would be lost.
    """
    check_real(x)
    if x.dtype.itemsize <= 4:
        return jnp.asarray(x, jnp.float32)
    return jnp.asarray(x, x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.float64)  # 64-bit integers


def rounded(value: Array, dtype: jnp.dtype) -> Array:
    """``value`` in ``dtype``, rounded to the nearest for integer dtypes, where a conversion would truncate."""
    return (value if jnp.issubdtype(dtype, jnp.inexact) else jnp.round(value)).astype(dtype)


def product(a: AnyArray, b: AnyArray) -> Array:
    """``a @ b`` at full float32 precision; by default, accelerators round a matrix product's inputs (TF32)."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def as_before(new: Any, old: Any) -> Any:
    """``new`` with its floating-point leaves in the dtypes of ``old``, since the carry of a loop must keep its dtypes.

    A float32 number, such as a hyperparameter, times a bfloat16 array is float32.
    """

    def like(leaf: Any, old_leaf: Any) -> Any:
        dtypes = [getattr(array, "dtype", None) for array in (leaf, old_leaf)]
        if dtypes[0] == dtypes[1] or not all(
            dtype is not None and jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes
        ):
            return leaf
        return leaf.astype(dtypes[1])

    return jax.tree.map(like, new, old)


def moves(stacked: Stacked, params: Params) -> Stacked:
    """``w_i - w`` for every row, without running statistics."""
    return jax.tree.map(lambda w_i, w: w_i - w[None], trainable(stacked), trainable(params))


def all_finite(stacked: Stacked) -> Array:
    """(rows,) bool: whether every entry of the row is finite."""
    flags = [jnp.isfinite(as_matrix(leaf)).all(axis=1) for leaf in jax.tree.leaves(stacked)]
    return jnp.stack(flags).all(axis=0)


def is_finite(params: Params) -> Array:
    """() bool: whether every entry is finite."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()


def everyone(params: Params, n_clients: int) -> ModelTable:
    """One model held by all clients."""
    return ModelTable(broadcast(params, 1), jnp.zeros(n_clients, jnp.int32))


def own(stacked: Stacked) -> ModelTable:
    """Personal models: client i holds row i."""
    return ModelTable(stacked, jnp.arange(n_rows(stacked), dtype=jnp.int32))
