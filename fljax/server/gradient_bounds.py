"""What the errors of clients' gradients allow their cosines to be: the theory of clustered federated learning."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array


@jax.jit
def intra_bound(gamma: Array, other: Array | None = None) -> Array:
    r"""The least cosine that two clients of one distribution can have, :math:`H_{ij}`.

    With :math:`\gamma_i = \|\nabla R - \nabla r_i\| / \|\nabla R\|`, how far the gradient of a client's loss is from
    that of its distribution's, the angle between the two is at most :math:`\arcsin \gamma_i`, so that
    :math:`\alpha_{ij} \ge H_{ij} = \cos(\arcsin \gamma_i + \arcsin \gamma_j)
    = -\gamma_i \gamma_j + \sqrt{1 - \gamma_i^2} \sqrt{1 - \gamma_j^2}`.

    Args:
        gamma: of any shape, :math:`\gamma_i` in [0, 1).
        other: of the same shape or one that broadcasts, :math:`\gamma_j`; None: ``gamma``, so that of the largest it
            is :math:`\alpha^{intra}_{min} \ge 1 - 2 \gamma_{max}^2`.

    Returns:
        Of the shape of both; -1, which promises nothing, where one of them is 1 or more.

    Source: Sattler et al., Clustered Federated Learning, 2020, used by Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import intra_bound
        >>> gamma = jnp.array([0.25, 0.5])
        >>> round(float(intra_bound(gamma[0], gamma[1])), 3), float(intra_bound(gamma.max()))
        (0.714, 0.5)
    """
    other = gamma if other is None else other
    informed = jnp.maximum(gamma, other) < 1
    a, b = (jnp.where(informed, x, 0) for x in (gamma, other))
    return jnp.where(informed, jnp.sqrt((1 - a * a) * (1 - b * b)) - a * b, -1)


@partial(jax.jit, static_argnames="n_groups")
def cross_bound(intra: Array, n_groups: int = 2) -> Array:
    r"""The largest cosine across the best bipartition of ``n_groups`` distributions, at a stationary point.

    There the distributions' gradients cancel, so that two parts can have an angle of :math:`\pi / (k - 1)` or more
    between them; clients come nearer by what their own gradients are off:
    :math:`\alpha^{cross}_{max} \le \cos(\pi / (k - 1) - \arccos H)` where :math:`H \ge \cos(\pi / (k - 1))`, else 1.
    For two distributions it is :math:`-H`.

    Args:
        intra: of any shape, H: `intra_bound`'s least value, :math:`1 - 2 \gamma_{max}^2`.
        n_groups: k, the number of distributions; static.

    Returns:
        Of the shape of ``intra``; 1, where little is known of the gradients, promises nothing. `best_bipartition`'s
        ``cross``, the optimum for "single" linkage, is no larger.

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
    angle = math.pi / (n_groups - 1)
    reached = intra >= math.cos(angle)
    h = jnp.where(reached, jnp.clip(intra, -1, 1), 0)
    return jnp.where(reached, math.cos(angle) * h + math.sin(angle) * jnp.sqrt(1 - h * h), 1)


@jax.jit
def gamma_limit(cross: Array) -> Array:
    r"""How large :math:`\gamma_{max}` may be for a split to be right, :math:`\sqrt{(1 - \alpha^{cross}_{max}) / 2}`.

    Below it :math:`\alpha^{intra}_{min} \ge 1 - 2 \gamma_{max}^2 > \alpha^{cross}_{max}`: no two clients of one
    distribution are less alike than two across the split.

    Args:
        cross: of any shape, the largest cosine across a split, such as `best_bipartition`'s.

    Returns:
        Of the same shape, in [0, 1]; 0, for which no split is right, where ``cross`` is 1 or more.

    Source: Sattler et al., Clustered Federated Learning, 2020; Yuan et al., LayerCFL, Cybersecurity 2023.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import gamma_limit
        >>> gamma_limit(jnp.array([-1.0, 0.5, 1.0])).tolist()
        [1.0, 0.5, 0.0]
    """
    return jnp.sqrt(jnp.clip((1 - cross) / 2, 0, 1))
