"""The maximum mean discrepancy of two models' features of the same examples (Gretton et al., JMLR 2012)."""

import jax.numpy as jnp
from jax import Array

from fljax.client.given_gradients import without_gradient
from fljax.server.distance import pairwise_squared_l2

RELATIVE_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Widths of the kernels ``exp(-d / width)``, divided by the mean of the squared distances d, in the code of FedPHP."""

FIXED_WIDTHS = (20.0, 30.0, 40.0, 100.0)
"""Widths of the kernels in FedCP's code, and in PFLlib's code of FedPHP."""


def discrepancy(x: Array, y: Array, weight: Array, relative: bool) -> Array:
    """() ``mean_ij k(x_i, x_j) + k(y_i, y_j) - 2 k(x_i, y_j)``, where k is a sum of Gaussian kernels.

    Args:
        x: (batch, d) features.
        y: (batch, d) features of the same examples under another model.
        weight: (batch,) 1, or 0 for examples that do not count.
        relative: the kernels' widths follow the mean squared distance of all features, without a gradient.
    """
    counts = jnp.concatenate([weight, weight])
    squared = pairwise_squared_l2(jnp.concatenate([x, y]), counts > 0)
    widths = jnp.asarray(FIXED_WIDTHS, squared.dtype)
    if relative:
        n_pairs = jnp.maximum(counts.sum() * (counts.sum() - 1), 1.0)
        mean_distance = without_gradient(squared.sum()) / n_pairs + 1e-8
        widths = mean_distance * jnp.asarray(RELATIVE_WIDTHS, squared.dtype)
    kernel = jnp.exp(-squared[None] / widths[:, None, None]).sum(0)
    sign = jnp.concatenate([weight, -weight]) / jnp.maximum(weight.sum(), 1.0)
    return sign @ kernel @ sign
