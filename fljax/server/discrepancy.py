"""DC-PFL's discrepancies of models that are scaled to [0, 1]; ``where`` as in `fljax.server.distance`."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from fljax.server import blocks
from fljax.server.checks import check_alike, cluster_numbers, n_rows
from fljax.server.entry import checked, compiled
from fljax.server.gram import mask_pairs, matrices_and_mask, sum_pairs, trainable_layers, trainable_matrices
from fljax.types import AnyArray, Stacked


@checked()
@partial(compiled, static_argnames="layers")
def model_discrepancy(x: Stacked, where: AnyArray | None = None, layers: tuple[str, ...] | None = None) -> Array:
    """DC-PFL's ``|S(w_i) - S(w_j)|_1 / P`` with ``S(w) = (w - min w) / (max w - min w)`` over the whole flat model.

    A constant model scales to zeros. Scaling a model by c > 0 or shifting it by a constant changes nothing. Computed
    from differences, so exact up to rounding; costs n^2 P / 2 subtractions, about ten times as long as a matrix
    product. Differentiable almost everywhere.

    Args:
        x: (n, d) array or stacked pytree.
        where: (n,) bool, rows that count; None: all.
        layers: names of the subtrees to compare, scaled together; None: all. Static.

    Returns:
        (n, n) in [0, 1].
    """
    matrices, where = matrices_and_mask(x, where, layers)
    matrices = tuple(_learning(matrix, where) for matrix in matrices)
    low, span = _range(matrices)

    def scaled(block: Array, low: Array, span: Array) -> Array:
        return jnp.where(where[:, None], (block - low) / span, 0)

    def pair(a: Array, b: Array) -> Array:
        return jnp.abs(a[:, None] - b[None, :]).sum(axis=-1)

    total = sum_pairs(pair, scaled, matrices, low, span, columns=blocks.width(where.shape[0], 2**18))
    mean = jnp.minimum(total / sum(matrix.shape[1] for matrix in matrices), 1)
    return mask_pairs(mean, where)


@checked()
@partial(compiled, static_argnames="layers")
def layer_discrepancy(stacked: Stacked, centers: Stacked, label: AnyArray, layers: tuple[str, ...]) -> Array:
    """DC-PFL's ``D_kl = mean_{i: a_i = k} |S(w_il) - S(Theta_kl)|_1 / P_l``, S over each layer separately.

    Args:
        stacked: ``{layer: leaves (clients, ...)}``.
        centers: ``{layer: leaves (clusters, ...)}``.
        label: (clients,) int; a client whose label is outside 0..clusters-1 has no effect.
        layers: layer names in the order of the result's columns, such as ``model.layers``. Static.

    Returns:
        (clusters, layers) in [0, 1]; 0 for an empty cluster.

    Raises:
        ValueError: a layer is unknown, ``centers`` has other leaves or shapes, lengths differ, or labels are not
            integers.
    """
    check_alike("centers", trainable_layers(centers, layers), "stacked", trainable_layers(stacked, layers))
    label = cluster_numbers("label", label, n_rows("stacked", stacked), "stacked")
    n_clusters = n_rows("centers", centers)
    member = jax.nn.one_hot(label, n_clusters, dtype=bool)
    is_counted, cluster = member.any(axis=1), jnp.clip(label, 0, n_clusters - 1)

    def layer(name: str) -> Array:
        client_matrices, center_matrices = trainable_matrices(stacked, (name,)), trainable_matrices(centers, (name,))
        client_matrices = tuple(_learning(matrix, is_counted) for matrix in client_matrices)
        (low, span), (low_center, span_center) = _range(client_matrices), _range(center_matrices)
        total = jnp.zeros(label.shape[0], jnp.promote_types(client_matrices[0].dtype, center_matrices[0].dtype))
        for matrix, center in zip(client_matrices, center_matrices, strict=True):
            difference = (matrix - low) / span - ((center - low_center) / span_center)[cluster]
            total += jnp.abs(_learning(difference, is_counted)).sum(axis=1)
        mean = total / sum(matrix.shape[1] for matrix in client_matrices)
        return jnp.where(member, mean[:, None], 0).sum(axis=0) / jnp.maximum(member.sum(axis=0), 1).astype(mean.dtype)

    return jnp.stack([layer(name) for name in layers], axis=1)


def _range(matrices: tuple[Array, ...]) -> tuple[Array, Array]:
    """(n, 1) smallest entry of every row over all matrices, and the range to its largest entry (1 if that is 0)."""
    low = jnp.stack([matrix.min(axis=1) for matrix in matrices]).min(axis=0)
    span = jnp.stack([matrix.max(axis=1) for matrix in matrices]).max(axis=0) - low
    return low[:, None], jnp.where(span > 0, span, 1)[:, None]


@jax.custom_jvp
def _learning(x: Array, where: Array) -> Array:
    """``x`` (n, p) with gradient 0 in the rows that do not count: without this, a NaN there makes gradients NaN."""
    return x


@_learning.defjvp
def _learning_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    x, where = primals
    return x, jnp.where(where[:, None], tangents[0], 0)
