"""Labels from cutting a tree of `fljax.server.linkage`: at a height, or into k clusters."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.server.checks import check_one, check_vector, everyone, shape_of
from fljax.server.entry import checked, compiled, count_from
from fljax.server.labels import canonical, rank
from fljax.types import AnyArray


@compiled
def cut(tree: AnyArray, height: ArrayLike, where: AnyArray | None = None) -> Array:
    """The clusters of a tree at a height: every merge at or below it is made.

    Args:
        tree: (n-1, 4) from `linkage`, or SciPy's as an array.
        height: () in units of the distance; traced. inf makes every merge of finite height.
        where: (n,) bool, the mask passed to `linkage`; None: all.

    Returns:
        (n,) int32, canonical; -1 where ``where`` is False.

    Raises:
        ValueError: ``tree`` is not of shape (n-1, 4).

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import cut, linkage
        >>> place = jnp.array([0.0, 4.0, 1.0, 4.5])
        >>> tree = linkage(jnp.abs(place[:, None] - place[None, :]), "average")
        >>> cut(tree, 1.0).tolist()
        [0, 1, 0, 1]
    """
    n_clients("tree", tree)
    check_one(height=height)
    is_made = (tree[:, 2] <= jnp.asarray(height, tree.dtype)) & jnp.isfinite(tree[:, 2])
    return _label(tree, is_made, where)


@checked(k=count_from(1, "number of clusters"))
@compiled
def cut_k(tree: AnyArray, k: ArrayLike, where: AnyArray | None = None, within: AnyArray | None = None) -> Array:
    """The clusters of a tree that is cut into k clusters; of merges at equal heights, the later is undone first.

    Args:
        tree: (n-1, 4) from `linkage`, or SciPy's as an array.
        k: () number of clusters, >= 1; traced. The result has more clusters if only merges at height inf could join
            them, and fewer if there are fewer clients.
        where: (n,) bool, the mask passed to `linkage`; None: all.
        within: (n,) integers, the clusters passed to `linkage`; each is cut into k. None: one cluster.

    Returns:
        (n,) int32, canonical; -1 where ``where`` is False.

    Raises:
        ValueError: ``tree`` is not of shape (n-1, 4), lengths differ, or k is not traced and is below 1 or not an
            integer.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import cut_k, linkage
        >>> place = jnp.array([0.0, 4.0, 1.0, 4.5])
        >>> tree = linkage(jnp.abs(place[:, None] - place[None, :]), "average")
        >>> cut_k(tree, 3).tolist()
        [0, 1, 2, 1]
    """
    n = n_clients("tree", tree)
    check_one(k=k)
    mask = everyone(n, where, "clients")
    is_finite = jnp.isfinite(tree[:, 2])
    if within is None:
        return _label(tree, is_finite & (jnp.arange(n - 1) < mask.sum() - k), where)
    check_vector("within", within, n, "clients")
    cluster = rank(within, mask & (within >= 0))
    size = jax.ops.segment_sum(jnp.ones(n, jnp.int32), cluster, n)
    child = jnp.concatenate([jnp.arange(n, dtype=jnp.int32), tree[:, 0].astype(jnp.int32)])
    merge_cluster = jnp.where(is_finite, cluster[_end(child, n)[n:]], n)
    order = jnp.argsort(merge_cluster, stable=True)
    position = jnp.arange(n - 1, dtype=jnp.int32)
    ordered = merge_cluster[order]
    first = jnp.searchsorted(ordered, ordered).astype(jnp.int32)
    ordinal = jnp.zeros(n - 1, jnp.int32).at[order].set(position - first)  # number of earlier merges in its cluster
    return _label(tree, is_finite & (ordinal < size[merge_cluster] - k), where)


def cut_at_or_k(tree: Array, height: Array | float, k: int | None, where: Array | None = None) -> Array:
    """`cut_k` if k is given, else `cut` at the height."""
    return cut(tree, height, where) if k is None else cut_k(tree, k, where)


def n_clients(name: str, tree: AnyArray) -> int:
    """The number of clients n of a tree from `linkage`; ValueError unless its shape is (n-1, 4)."""
    shape = shape_of(name, tree)
    if len(shape) != 2 or shape[1] != 4:
        raise ValueError(f"{name} has shape {shape}; expected (n-1, 4), as linkage returns")
    return shape[0] + 1


def _label(tree: AnyArray, is_made: AnyArray, where: AnyArray | None) -> Array:
    """The clusters if exactly the merges where ``is_made`` are made."""
    n = n_clients("tree", tree)
    children = tree[:, :2].astype(jnp.int32)
    parent = n + jnp.arange(n - 1, dtype=jnp.int32)[:, None]
    pointer = jnp.arange(2 * n - 1, dtype=jnp.int32).at[children].set(jnp.where(is_made[:, None], parent, children))
    return canonical(_end(pointer, n)[:n], where)


def _end(pointer: Array, n: int) -> Array:
    """The end of each chain of pointers, for chains of at most n: every jump doubles the distance."""
    for _ in range(n.bit_length()):
        pointer = pointer[pointer]
    return pointer
