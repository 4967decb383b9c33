"""A server's step that lowers the losses of all participants, as far as their updates allow it (FedMGDA+)."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.server.aggregate import weighted_mean
from fljax.server.gram import gram
from fljax.server.min_norm import min_norm_weights
from fljax.server.robust import is_within_reach
from fljax.types import Params, Stacked


def common_descent(hyper: Any, shared: Params, received: Stacked, weight: Array) -> Params:
    """``theta + eta sum_i a_i d_i / |d_i|`` with ``d_i = w_i - theta`` and the a that makes the sum shortest.

    ``a_i`` is at most epsilon, ``hyper.mgda_epsilon``, from ``p_i = omega_i / sum_j omega_j``, not negative, and their
    sum is 1; eta is ``hyper.mgda_step``. If epsilon is 1, the sum's product with each ``d_i / |d_i|`` is at least the
    square of its length. Participants that did not move have no direction, and do not count. Running statistics are
    averaged by ``a_i``. Source: Hu, Shaloudegi, Zhang, Yu, IEEE TNSE 2022.
    """
    update = tree.moves(received, shared)
    product = gram(update, (weight > 0) & is_within_reach(update)).astype(jnp.float32)
    norm = tree.root(jnp.diagonal(product))
    has_direction = norm > 0
    inverse = jnp.where(has_direction, 1 / jnp.where(has_direction, norm, 1.0), 0.0)
    counted = jnp.where(has_direction, weight, 0.0)
    p = counted / jnp.maximum(counted.sum(), 1e-12)
    least = jnp.maximum(p - hyper.mgda_epsilon, 0.0)
    most = jnp.where(has_direction, jnp.minimum(p + hyper.mgda_epsilon, 1.0), 0.0)
    a = min_norm_weights(inverse[:, None] * product * inverse[None, :], least, most)
    length = hyper.mgda_step * jnp.vdot(a, inverse)
    (theta, statistics), (_, sent_statistics) = tree.split_statistics(shared), tree.split_statistics(received)
    direction = weighted_mean(update, a * inverse)
    new = tree.map_trainable(lambda t, d: t + length * d, theta, direction)
    if statistics:
        statistics = weighted_mean(sent_statistics, a, empty=statistics)
    return tree.as_before(tree.join_statistics(new, statistics), shared)
