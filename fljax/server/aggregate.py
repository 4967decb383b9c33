"""Means of client models: over all clients, per cluster, or by any matrix, for whole models or layer by layer.

A client that does not count (weight 0, a label outside the range, an all-zero column) has no effect, even if its
parameters are NaN. Running statistics (the ``batch_stats`` subtree) are averaged like parameters. All functions are
linear in the models, and differentiable with respect to models and weights; the gradient with respect to a weight of 0
treats that client's parameters as zeros, since they are not read. Means are computed from the sums ``sum_i w_i x_i``
and ``sum_i w_i``, which must fit float32: entries times weights must stay between 1e-37 and 1e38.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.choices import check_kind
from fljax.placement import whole
from fljax.server import blocks
from fljax.server.checks import check_shape, check_vector, cluster_numbers, fallback, n_rows, shape_of
from fljax.server.entry import WEIGHT, checked, compiled
from fljax.server.labels import rank
from fljax.types import AnyArray, Params, Stacked

_MANY = 1 << 16
"""Entries of all clusters' models up to which one matrix product is as fast, and compiles faster."""


@checked(weight=WEIGHT)
@compiled
def weighted_mean(stacked: Stacked, weight: AnyArray, empty: Params | None = None) -> Params:
    """``sum_i w_i x_i / sum_i w_i``: the server step of FedAvg (McMahan et al. 2017).

    Args:
        stacked: leaves (clients, ...).
        weight: (clients,) example counts, 0 or more; any real or bool dtype. A client of weight 0 has no effect.
        empty: one model, returned if all weights are 0; None: zeros, never NaN.

    Returns:
        One model: leaves without the leading axis, in the dtypes of ``stacked``; integer leaves as in `mix`.

    Raises:
        ValueError: lengths differ, a weight is negative or not a number, or ``empty`` is not one model of these shapes.
    """
    n = n_rows("stacked", stacked)
    check_vector("weight", weight, n, "stacked")
    empty_row = jax.tree.map(lambda leaf: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype), stacked)
    if empty is not None:
        empty_row = tree.broadcast(fallback("empty", empty, stacked), 1)
    label = jnp.zeros(n, jnp.int32)
    return tree.first(cluster_mean(stacked, weight, label, empty_row))


@checked(weight=WEIGHT)
@compiled
def cluster_mean(stacked: Stacked, weight: AnyArray, label: AnyArray, empty: Stacked) -> Stacked:
    """``sum_{i: a_i = k} w_i x_i / sum_{i: a_i = k} w_i`` for every cluster k.

    Args:
        stacked: leaves (clients, ...).
        weight: (clients,) example counts, 0 or more. A client of weight 0 has no effect.
        label: (clients,) int cluster of each client; a client outside 0..clusters-1 (-1 for noise) does not count.
        empty: leaves (clusters, ...): sets the number of clusters; clusters without weight keep these rows.

    Returns:
        Leaves (clusters, ...), in the dtypes of ``stacked``. As in `mix`, clients that count must be finite, or the
        other clusters become NaN too: exclude clients by ``jnp.where(tree.all_finite(stacked), weight, 0)``.

    Raises:
        ValueError: lengths differ, a weight is negative or not a number, labels are not integers, or ``empty`` differs
            from ``stacked`` in its leaves or in the shapes of its rows.
    """
    n, n_clusters = n_rows("stacked", stacked), n_rows("empty", empty)
    check_vector("weight", weight, n, "stacked")
    label = cluster_numbers("label", label, n, "stacked")
    empty = fallback("empty", empty, stacked, n_clusters)
    n_entries = sum(leaf.size for leaf in jax.tree.leaves(empty))
    means = _means_of_few if 2 * n < n_clusters and n_entries > _MANY else _means_of_all
    return means(stacked, weight, label, empty)


def _means_of_few(stacked: Stacked, weight: AnyArray, label: Array, empty: Stacked) -> Stacked:
    """`cluster_mean` if most clusters are empty: at most one mean per client is computed, and scattered to its cluster.

    Where XLA may work in place, the other rows are not written. In one matrix product, an empty cluster would cost as
    much as any other.
    """
    n, n_clusters = weight.shape[0], n_rows("empty", empty)
    slot = rank(label, (label >= 0) & (label < n_clusters))
    zeros = jax.tree.map(lambda leaf: jnp.zeros((n, *leaf.shape[1:]), leaf.dtype), empty)
    mean = _means_of_all(stacked, weight, slot, zeros)
    has_weight = jnp.zeros(n, bool).at[slot].max(weight > 0, mode="drop")
    cluster = jnp.full(n, n_clusters, jnp.int32).at[slot].set(label, mode="drop")
    row = jnp.where(has_weight, cluster, n_clusters)  # one past the end: dropped
    return jax.tree.map(lambda old, new: old.at[row].set(whole(new), mode="drop"), empty, mean)


def _means_of_all(stacked: Stacked, weight: AnyArray, label: Array, empty: Stacked) -> Stacked:
    """`cluster_mean` as one matrix product."""
    is_member = label[None, :] == jnp.arange(n_rows("empty", empty), dtype=jnp.int32)[:, None]
    wide_weight = weight if weight.dtype == "float64" else weight.astype(jnp.float32)
    matrix = jnp.where(is_member, wide_weight[None, :], 0)
    mass = matrix.sum(axis=1)
    total = mix(matrix, stacked)
    divisor = jnp.where(mass > 0, mass, 1)

    def leaf_mean(leaf: Array, total: Array) -> Array:
        # A sum over all examples has two digits in bfloat16, is inf in float16, and has no fraction in integers.
        if leaf.dtype.itemsize < 4 or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return mix(matrix / divisor[:, None], leaf)
        return total / tree.along(divisor, total).astype(total.dtype)

    mean = jax.tree.map(leaf_mean, stacked, total)
    return tree.where(mass > 0, mean, empty)


@compiled
def mix(matrix: AnyArray, stacked: Stacked) -> Stacked:
    """``y_r = sum_i matrix[r, i] x_i``: any linear aggregation, at full float32 precision on every device.

    Row-stochastic matrices give convex combinations: one row is a weighted mean, ``(clients, clients)`` is personalised
    or decentralised averaging. A client whose column is all zero has no effect. A client with a weight in any row must
    be finite, or the other rows become NaN too (0 times NaN is NaN).

    Args:
        matrix: (rows, clients).
        stacked: leaves (clients, ...). Means of integers, such as counters, are computed in float32, which is exact up
            to 2^24, and rounded.

    Returns:
        Leaves (rows, ...).

    Raises:
        ValueError: the matrix does not have one column per client.
    """
    n = n_rows("stacked", stacked)
    if len(shape_of("matrix", matrix)) != 2 or matrix.shape[1] != n:
        raise ValueError(f"matrix has shape {matrix.shape}; expected (rows, {n}), one column per client")
    tree.check_real(matrix)
    is_counted = jnp.any(matrix != 0, axis=0)

    def leaf_mix(leaf: Array) -> Array:
        tree.check_real(leaf)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return tree.rounded(leaf_mix(leaf.astype(jnp.float32)), leaf.dtype)
        wide_matrix = jnp.asarray(matrix, leaf.dtype if leaf.dtype.itemsize > 4 else jnp.float32)
        flat = blocks.multiply(wide_matrix, tree.as_matrix(leaf), is_counted)
        return flat.reshape(matrix.shape[0], *leaf.shape[1:])

    return jax.tree.map(leaf_mix, stacked)


@compiled
def mix_layers(matrices: dict[str, AnyArray], stacked: Stacked) -> Stacked:
    """`mix` with one matrix per layer: each layer can have its own weights, groups or neighbours.

    Args:
        matrices: layer name -> (rows, clients), one matrix per layer of ``stacked``, all with the same number of rows.
            Running statistics follow the layer of their name.
        stacked: ``{layer: leaves (clients, ...)}``.

    Returns:
        ``{layer: leaves (rows, ...)}``.

    Raises:
        ValueError: a layer without a matrix, a matrix without a layer, or a matrix of another shape.
    """
    trainable = tree.trainable(stacked)
    check_kind("matrices", matrices, Mapping, "give a dict {layer: matrix}")
    check_kind("stacked", trainable, Mapping, "give a dict {layer: arrays}")
    if set(matrices) != set(trainable):
        raise ValueError(f"matrices are given for {sorted(matrices)}; the layers are {sorted(trainable)}")
    (first_name, first_matrix), *other_matrices = matrices.items()
    for name, matrix in other_matrices:
        check_shape(f"matrices[{name!r}]", matrix, first_matrix.shape, f"that of matrices[{first_name!r}]")
    return tree.map_layers(lambda name, layer: mix(matrices[name], layer), stacked)
