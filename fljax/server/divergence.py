"""Divergences of clients' outputs and label distributions; ``where`` as in `fljax.server.distance`."""

import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike

from fljax import tree
from fljax.server.checks import check_axes, check_one, everyone, shape_of
from fljax.server.entry import POSITIVE, checked, compiled
from fljax.server.gram import mask_pairs
from fljax.types import AnyArray


@compiled
def js_divergence(probabilities: AnyArray, where: AnyArray | None = None) -> Array:
    """Jensen-Shannon divergence of clients' outputs, for all pairs, averaged over a common batch (FedTSDP's stage 1).

    ``JS(p, q) = KL(p | u) / 2 + KL(q | u) / 2`` with ``u = (p + q) / 2`` and the natural logarithm; probabilities are
    clipped from below at 1e-12. SciPy's ``jensenshannon`` is the square root of this divergence. Differentiable.

    Args:
        probabilities: (n, batch, classes), or (n, classes) for one distribution each; the last axis sums to 1.
        where: (n,) bool, clients that count; None: all.

    Returns:
        (n, n) in [0, ln 2], absolute error about 1e-7; 0 for equal outputs.

    Raises:
        ValueError: there are fewer than two axes, or lengths differ.
    """
    if len(shape_of("probabilities", probabilities)) < 2:
        raise ValueError(f"probabilities has shape {probabilities.shape}; expected (n, batch, classes) or (n, classes)")
    probabilities = _with_ones(tree.at_least_float32(probabilities), where)  # 1e-12 is 0 in float16
    p = jnp.maximum(tree.as_matrix(probabilities), 1e-12)
    batch = max(probabilities[0, ..., 0].size, 1)

    def to_all(row: Array) -> Array:
        middle = (row[None, :] + p) / 2
        return (row[None, :] * jnp.log(row[None, :] / middle) + p * jnp.log(p / middle)).sum(axis=1) / 2

    mean = lax.map(to_all, p) / batch
    return mask_pairs(jnp.clip(mean, 0, jnp.log(2.0)), where)


@checked(smoothing=POSITIVE)
@compiled
def label_kld(histogram: AnyArray, smoothing: ArrayLike = 1e-4, where: AnyArray | None = None) -> Array:
    """Symmetric divergence ``(KL(p_i | p_j) + KL(p_j | p_i)) / 2`` of the clients' label distributions, natural log.

    Computed as ``sum_c (p_ic - p_jc) (ln p_ic - ln p_jc) / 2``, which is never negative. Differentiable.

    Args:
        histogram: (n, classes) example counts or shares, 0 or more; a client without examples counts as uniform.
        smoothing: added to every probability, before the row is normalised again; positive (DC-PFL: 1e-4).
        where: (n,) bool, clients that count; None: all.

    Returns:
        (n, n), 0 or more.

    Raises:
        ValueError: ``histogram`` is not (n, classes), lengths differ, or ``smoothing`` is not positive.
    """
    check_axes("histogram", histogram, "n", "classes")
    check_one(smoothing=smoothing)
    count = _with_ones(histogram.astype(jnp.float32), where)
    total = count.sum(axis=1, keepdims=True)
    share = count / jnp.where(total > 0, total, 1) + jnp.asarray(smoothing, jnp.float32)
    p = share / share.sum(axis=1, keepdims=True)
    log_p = jnp.log(p)

    def to_all(row: tuple[Array, Array]) -> Array:
        return ((row[0][None, :] - p) * (row[1][None, :] - log_p)).sum(axis=1) / 2

    return mask_pairs(lax.map(to_all, (p, log_p)), where)


def _with_ones(x: AnyArray, where: AnyArray | None) -> Array:
    """``x`` (n, ...) with ones in the rows that do not count: a NaN there would make gradients NaN."""
    if where is None:
        return jnp.asarray(x)
    return jnp.where(tree.along(everyone(x.shape[0], where, "the clients"), x), x, 1)
