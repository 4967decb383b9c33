"""Bounds on the cosines of clients' gradients from the gradients' errors: theory of clustered federated learning."""

import math
from functools import partial

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax.server.entry import compiled
from fljax.types import AnyArray


@compiled
def intra_bound(gamma: AnyArray, other: AnyArray | None = None) -> Array:
    r"""The lower bound on the cosine of two clients of one distribution, :math:`H_{ij}`.

    Let :math:`\gamma_i = \|\nabla R - \nabla r_i\| / \|\nabla R\|` be the relative error of a client's gradient as an
    estimate of its distribution's gradient. The angle between the two is at most :math:`\arcsin \gamma_i`, so
    :math:`\alpha_{ij} \ge H_{ij} = \cos(\arcsin \gamma_i + \arcsin \gamma_j)
    = -\gamma_i \gamma_j + \sqrt{1 - \gamma_i^2} \sqrt{1 - \gamma_j^2}`.

    Args:
        gamma: :math:`\gamma_i` in [0, 1), of any shape.
        other: :math:`\gamma_j`, of the same shape or one that broadcasts; None: ``gamma``. For the largest gamma this
            gives :math:`\alpha^{intra}_{min} \ge 1 - 2 \gamma_{max}^2`.

    Returns:
        Of the broadcast shape; -1, the trivial bound, where gamma or other is 1 or more.

    Source: Sattler et al., Clustered Federated Learning, 2020, used by Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import intra_bound
        >>> gamma = jnp.array([0.25, 0.5])
        >>> round(float(intra_bound(gamma[0], gamma[1])), 3), float(intra_bound(gamma.max()))
        (0.714, 0.5)
    """
    other = gamma if other is None else other
    is_informed = jnp.maximum(gamma, other) < 1
    a, b = (jnp.where(is_informed, x, 0) for x in (gamma, other))
    return jnp.where(is_informed, jnp.sqrt((1 - a * a) * (1 - b * b)) - a * b, -1)


@partial(compiled, static_argnames="n_groups")
def cross_bound(intra: ArrayLike, n_groups: int = 2) -> Array:
    r"""The upper bound on the cosine across the best bipartition of ``n_groups`` distributions, at a stationary point.

    At this point the distributions' gradients cancel, so a bipartition with an angle of at least
    :math:`\pi / (k - 1)` across it exists; the errors of the clients' gradients reduce this angle:
    :math:`\alpha^{cross}_{max} \le \cos(\pi / (k - 1) - \arccos H)` where :math:`H \ge \cos(\pi / (k - 1))`, else 1.
    For two distributions it is :math:`-H`.

    Args:
        intra: H, of any shape: the smallest value of `intra_bound`, :math:`1 - 2 \gamma_{max}^2`.
        n_groups: k, the number of distributions; static.

    Returns:
        Of the shape of ``intra``; 1, the trivial bound, where the gradients' errors are too large. The ``cross`` of
        `best_bipartition`, which is the optimum for "single" linkage, is at most this.

    Raises:
        ValueError: fewer than two distributions.

    Source: Sattler et al., Clustered Federated Learning, 2020, used by Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import cross_bound
        >>> [round(float(cross_bound(jnp.float32(0.8), k)), 2) for k in (2, 3, 9)]
        [-0.8, 0.6, 1.0]
    """
    if n_groups < 2:
        raise ValueError(f"n_groups={n_groups} cannot be separated; choose n_groups >= 2")
    intra, angle = jnp.asarray(intra), math.pi / (n_groups - 1)
    is_reached = intra >= math.cos(angle)
    h = jnp.where(is_reached, jnp.clip(intra, -1, 1), 0)
    return jnp.where(is_reached, math.cos(angle) * h + math.sin(angle) * jnp.sqrt(1 - h * h), 1)


@compiled
def gamma_limit(cross: ArrayLike) -> Array:
    r"""The limit on :math:`\gamma_{max}` for a correct split, :math:`\sqrt{(1 - \alpha^{cross}_{max}) / 2}`.

    Below it, :math:`\alpha^{intra}_{min} \ge 1 - 2 \gamma_{max}^2 > \alpha^{cross}_{max}`: any two clients of one
    distribution are more similar than any two clients across the split.

    Args:
        cross: the largest cosine across a split, such as `best_bipartition`'s, of any shape.

    Returns:
        Of the same shape, in [0, 1]; 0 where ``cross`` is 1 or more: no error is small enough.

    Source: Sattler et al., Clustered Federated Learning, 2020; Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import gamma_limit
        >>> gamma_limit(jnp.array([-1.0, 0.5, 1.0])).tolist()
        [1.0, 0.5, 0.0]
    """
    return jnp.sqrt(jnp.clip((1 - cross) / 2, 0, 1))
