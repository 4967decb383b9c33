"""FedGWC's rewards for losses near the mean of the cluster, and the affinity of clients with similar rewards."""

import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.numbers import Scalar
from fljax.server.checks import check_axes, check_one, check_shape, check_square, check_vector
from fljax.server.distance import pairwise_squared_l2
from fljax.types import AnyArray

_ROUNDING = 1e-6
"""A loss whose relative distance to the mean is below this counts as the mean."""


def gaussian_rewards(losses: AnyArray, taken: AnyArray, together: AnyArray) -> Array:
    """(cohort,) mean over steps of ``exp(-(l - m)^2 / (2 sigma^2))``, m and sigma^2 over the client's cluster.

    A client whose loss is the mean has reward 1; so have all clients if their losses are equal.

    Args:
        losses: (cohort, steps).
        taken: (cohort, steps) bool, the steps that count.
        together: (cohort, cohort) bool, whether the column's client counts and is in the row's client's cluster.

    Raises:
        ValueError: shapes do not match.

    Source: Licciardi et al., FedGWC, ICML 2025.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import gaussian_rewards
        >>> losses, everyone = jnp.array([[1.0], [2.0], [3.0]]), jnp.ones((3, 3), bool)
        >>> [round(r, 2) for r in gaussian_rewards(losses, jnp.ones((3, 1), bool), everyone).tolist()]
        [0.47, 1.0, 0.47]
    """
    shape = check_axes("losses", losses, "cohort", "steps")
    check_shape("taken", taken, shape, "an entry per loss")
    check_shape("together", together, (shape[0], shape[0]), "an entry per pair of clients in losses")
    taken = taken & jnp.any(together, axis=0)[:, None]  # the losses of others may be NaN
    losses = jnp.where(taken, losses, 0.0)
    step_weight, client_weight = taken.astype(jnp.float32), together.astype(jnp.float32)
    count = jnp.maximum(tree.product(client_weight, step_weight), 1.0)
    mean = tree.product(client_weight, losses) / count
    difference = losses - mean
    # For equal losses, a rounded mean leaves differences of rounding size, which would be about one sigma each.
    squared = jnp.square(jnp.where(jnp.abs(difference) > _ROUNDING * jnp.abs(mean), difference, 0.0)) * step_weight
    variance = tree.product(client_weight, squared) / count
    reward = jnp.exp(-squared / (2 * jnp.maximum(variance, 1e-16)))
    return (reward * step_weight).sum(1) / jnp.maximum(step_weight.sum(1), 1.0)


def row_affinity(reward: AnyArray, member: AnyArray, beta: Scalar) -> Array:
    """(clients, clients) ``exp(-beta |v_k - v_j|^2)``, with v_k the row k of P over the members except k and j.

    Args:
        reward: (clients, clients) P.
        member: (clients,) bool; the results of other clients have no meaning.
        beta: () inverse width of the kernel.

    Raises:
        ValueError: shapes do not match.

    Source: Licciardi et al., FedGWC, ICML 2025.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import row_affinity
        >>> reward = jnp.array([[9.0, 9.0, 1.0], [9.0, 9.0, 1.0], [9.0, 2.0, 9.0]])
        >>> [round(a, 2) for a in row_affinity(reward, jnp.ones(3, bool), 1.0)[0].tolist()]
        [1.0, 1.0, 0.0]
    """
    check_vector("member", member, check_square("reward", reward), "reward")
    check_one(beta=beta)
    reward = jnp.where(member[None] & member[:, None], reward, 0.0)
    column_square = jnp.square(jnp.diagonal(reward)[:, None] - reward.T)  # column k of the rows k and j
    return jnp.exp(-beta * jnp.maximum(pairwise_squared_l2(reward) - column_square - column_square.T, 0.0))
