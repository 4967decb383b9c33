"""Agglomerative clustering: SciPy's trees from a distance matrix; `fljax.server.tree_cuts` turns them into labels."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax.placement import whole
from fljax.server.checks import check_square, check_vector, everyone
from fljax.server.entry import checked, compiled
from fljax.types import AnyArray

Method = Literal["single", "complete", "average"]


class _Chain(NamedTuple):
    """The growing nearest-neighbour chain, and the merges that it has found."""

    distance: Array  # (n, n) between slots, without the update `row`; a merged cluster is in its higher slot
    row: Array  # (n,) row and column `target` of `distance`, not yet written
    target: Array  # () int32
    size: Array  # (n,) float, clients in each slot; 0: the slot is unused
    node: Array  # (n,) int32 the tree node in each slot: i < n a client, n + k the result of merge k
    chain: Array  # (n,) int32 slots, each the nearest neighbour of the one before
    length: Array  # () int32
    merges: Array  # (n-1, 4) node, node, height, size; in the order they were found
    n_merges: Array  # () int32


@checked()
@partial(compiled, static_argnames="method")
def linkage(distance: AnyArray, method: Method, where: AnyArray | None = None, within: AnyArray | None = None) -> Array:
    """The tree of agglomerative clustering (dendrogram), in SciPy's format.

    Row i merges the nodes in its first two columns into node n + i; the third column is the height of the merge, the
    fourth its number of clients. Node j < n is client j; heights never decrease. The height of a merge is the smallest
    ("single"), largest ("complete") or mean ("average", UPGMA) distance over all pairs of clients across the two nodes.
    Ties are broken as in SciPy's nearest-neighbour chain. O(n²), whatever the data.

    Args:
        distance: (n, n), symmetric; the diagonal is ignored; inf keeps two clients apart.
        method: "single", "complete" or "average"; static.
        where: (n,) bool, the clients that count; None: all. The others may hold NaN; they merge last, at height inf.
        within: (n,) integers, clusters to search separately: clients of different clusters are at distance inf, and
            clients with a negative label are at distance inf from all others. None: one cluster.

    Returns:
        (n-1, 4) float32, or float64 if the matrix is. `cut` and `cut_k` never make a merge at height inf. No gradient.

    Raises:
        ValueError: ``method`` is unknown, the matrix is not square, or lengths differ.

    Source: Müllner, Modern hierarchical, agglomerative clustering algorithms, 2011 (nearest-neighbour chain).

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import linkage
        >>> place = jnp.array([0.0, 4.0, 1.0])
        >>> distance = jnp.abs(place[:, None] - place[None, :])
        >>> linkage(distance, "average").tolist()
        [[0.0, 2.0, 1.0, 2.0], [1.0, 3.0, 3.5, 3.0]]
    """
    n = check_square("distance", distance)
    mask = everyone(n, where, "distance")
    if distance.dtype not in ("float32", "float64"):  # others cannot hold every node number and mean height
        distance = distance.astype(jnp.float32)
    pair = mask[:, None] & mask[None, :]
    if within is not None:
        check_vector("within", within, n, "distance")
        pair &= (within[:, None] == within[None, :]) & (within >= 0)[:, None]
    if n == 1:
        return jnp.zeros((0, 4), distance.dtype)
    masked = whole(jax.lax.stop_gradient(jnp.where(pair & ~jnp.isnan(distance), distance, jnp.inf)))
    start = _Chain(
        distance=masked,
        row=masked[0],
        target=jnp.int32(0),
        size=jnp.ones(n, distance.dtype),
        node=jnp.arange(n, dtype=jnp.int32),
        chain=jnp.zeros(n, jnp.int32),
        length=jnp.int32(1),
        merges=jnp.zeros((n - 1, 4), distance.dtype),
        n_merges=jnp.int32(0),
    )
    # A merge removes two slots from the chain, so n - 1 merges need at most 2 (n - 1) additions to it. The number of
    # steps is fixed: under vmap, a data-dependent end would copy every lane's matrix at every step.
    merges = jax.lax.fori_loop(0, 3 * (n - 1), lambda _, chain: _step(chain, method), start).merges
    return _ordered(merges, n)


def _step(c: _Chain, method: Method) -> _Chain:
    """Finds the nearest neighbour of the chain's end; merges the two if mutual, else appends it to the chain."""
    n = c.size.shape[0]
    slot = jnp.arange(n, dtype=jnp.int32)
    x, previous = c.chain[c.length - 1], c.chain[jnp.maximum(c.length - 2, 0)]
    # Writing the previous step's row before reading lets XLA keep the matrix in place; the other order copies it.
    distance = jax.lax.dynamic_update_slice(c.distance, c.row[None, :], (c.target, jnp.int32(0)))
    distance = jax.lax.dynamic_update_slice(distance, c.row[:, None], (jnp.int32(0), c.target))
    row = distance[x]
    largest = jnp.finfo(row.dtype).max  # a slot at distance inf is still nearer than an unused one
    candidates = jnp.where((c.size > 0) & (slot != x), jnp.minimum(row, largest), jnp.inf)
    # The first minimum, as by `argmin`, but from two reductions that a CPU vectorises.
    nearest = jnp.where(candidates == candidates.min(), slot, n).min()
    is_mutual = (c.length > 1) & (candidates[previous] <= candidates[nearest])
    y = jnp.where(is_mutual, previous, nearest)
    low, high = jnp.minimum(x, y), jnp.maximum(x, y)

    size = c.size[x] + c.size[y]
    merged = _merged_row(row, distance[y], c.size[x], c.size[y], method)
    merge = jnp.stack([c.node[low].astype(row.dtype), c.node[high].astype(row.dtype), row[y], size])
    merge_row = jnp.where(is_mutual, c.n_merges, n)  # n: past the end, dropped
    sizes = jnp.where(is_mutual, jnp.where(slot == low, 0, jnp.where(slot == high, size, c.size)), c.size)
    length = jnp.where(is_mutual, c.length - 2, c.length)
    is_empty = length == 0
    next_slot = jnp.where(is_empty, jnp.where(sizes > 0, slot, n).min(), y)
    is_appended = is_empty | ~is_mutual
    return _Chain(
        distance=distance,
        row=jnp.where(is_mutual, merged, row),  # without a merge, the same row is written again: cheaper than a branch
        target=jnp.where(is_mutual, high, x),
        size=sizes,
        node=c.node.at[jnp.where(is_mutual, high, n)].set(n + c.n_merges, mode="drop"),
        chain=c.chain.at[jnp.where(is_appended, length, n)].set(next_slot, mode="drop"),
        length=length + is_appended.astype(jnp.int32),
        merges=c.merges.at[merge_row].set(merge, mode="drop"),
        n_merges=c.n_merges + is_mutual.astype(jnp.int32),
    )


def _merged_row(a: Array, b: Array, size_a: Array, size_b: Array, method: Method) -> Array:
    """Distances of the union of two clusters, from the distances of both (Lance and Williams)."""
    if method == "single":
        return jnp.minimum(a, b)
    if method == "complete":
        return jnp.maximum(a, b)
    mean = (size_a * a + size_b * b) / (size_a + size_b)
    return jnp.maximum(mean, jnp.minimum(a, b))  # rounding must not make the union nearer than both parts


def _ordered(merges: Array, n: int) -> Array:
    """Merges in order of height, nodes renumbered accordingly, the lower node first."""
    order = jnp.argsort(merges[:, 2], stable=True)  # parts are found before their merge, at most as high
    position = jnp.zeros(n - 1, jnp.int32).at[order].set(jnp.arange(n - 1, dtype=jnp.int32))
    node = merges[order, :2].astype(jnp.int32)
    node = jnp.where(node < n, node, n + position[jnp.maximum(node - n, 0)])
    return jnp.concatenate([jnp.sort(node, axis=1).astype(merges.dtype), merges[order, 2:]], axis=1)
