"""DBSCAN on a distance matrix, with scikit-learn's labels, as a fixed-shape function."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from fljax import tree
from fljax.placement import whole
from fljax.server.checks import check_one, check_square, check_vector, everyone
from fljax.server.entry import at_least, checked, compiled
from fljax.server.labels import canonical
from fljax.types import AnyArray


@checked(
    eps=at_least(0, "the radius of a neighbourhood")._replace(infinite=True), min_samples=at_least(1, "neighbours")
)
@compiled
def dbscan(
    distance: AnyArray,
    eps: ArrayLike,
    min_samples: ArrayLike,
    where: AnyArray | None = None,
    within: AnyArray | None = None,
) -> Array:
    """Density-based clusters of clients.

    Two clients are neighbours if ``distance <= eps``; a client with at least ``min_samples`` neighbours, itself
    included, is a core client. Core clients that a chain of neighbouring core clients connects share a cluster. Any
    other client with a core neighbour is a border client; if it has core neighbours in several clusters, it joins the
    one whose lowest-index core client comes first, as in scikit-learn. All other clients are noise.

    Args:
        distance: (n, n), symmetric; the diagonal is ignored.
        eps: () neighbourhood radius, >= 0, in units of the distance; traced.
        min_samples: () number of neighbours of a core client, itself included, >= 1; traced.
        where: (n,) bool, the clients that count; None: all. The others may hold NaN.
        within: (n,) integers, clusters to search separately: clients of different clusters are never neighbours, and
            clients with a negative label have no neighbours (FedTSDP's second stage). None: one cluster.

    Returns:
        (n,) int32, canonical; -1 for noise and where ``where`` is False. `noise_to_singletons` makes each noise client
        a cluster.

    Raises:
        ValueError: the matrix is not square, lengths differ, or ``eps`` or ``min_samples`` is out of its range or not
            one number.

    Source: Ester et al., A density-based algorithm for discovering clusters, KDD 1996.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import dbscan
        >>> place = jnp.array([0.0, 5.0, 0.5, 5.25, 99.0])
        >>> distance = jnp.abs(place[:, None] - place[None, :])
        >>> dbscan(distance, 1.0, 2).tolist()
        [0, 1, 0, 1, -1]
    """
    n = check_square("distance", distance)
    check_one(eps=eps, min_samples=min_samples)
    mask = everyone(n, where, "distance")
    distance = tree.at_least_float32(distance)  # an integer eps would be truncated, or overflow
    is_near = (distance <= jnp.asarray(eps, distance.dtype)) & mask[:, None] & mask[None, :]
    if within is not None:
        check_vector("within", within, n, "distance")
        is_near &= (within[:, None] == within[None, :]) & (within >= 0)[:, None]
    is_near = whole(is_near | (jnp.eye(n, dtype=bool) & mask[:, None]))
    is_core = whole((is_near.sum(axis=0, dtype=jnp.int32) >= min_samples) & mask)
    component = _first_connected(is_near, is_core)
    cluster = _lowest_neighbour(is_near, jnp.where(is_core, component, n))
    return canonical(jnp.where(cluster < n, cluster, -1))


def _lowest_neighbour(is_near: Array, value: Array) -> Array:
    """(n,) the smallest ``value`` among the neighbours of each client; n if it has none."""
    # `is_near` is symmetric: reducing over the first axis reads memory in order.
    return jnp.where(is_near, value[:, None], value.shape[0]).min(axis=0)


def _first_connected(is_near: Array, is_core: Array) -> Array:
    """The lowest index in each core client's connected component of core clients; its own index for others.

    Every client points to a client of equal or lower index in its component. An iteration hooks each tree of pointers
    onto the lowest neighbouring tree and then shortens all pointers, so that the number of iterations grows with log n,
    not with the diameter (Zhang, Azad and Hu, FastSV, SIAM PP 2020).
    """
    n = is_core.shape[0]
    index = jnp.arange(n, dtype=jnp.int32)

    def advance(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        parent, _ = carry
        grandparent = parent[parent]
        lowest = _lowest_neighbour(is_near, jnp.where(is_core, grandparent, n))
        lowest = jnp.where(is_core, lowest, index)
        hooked = parent.at[parent].min(lowest)
        hooked = jnp.minimum(jnp.minimum(hooked, lowest), grandparent)
        hooked = hooked[hooked]
        return hooked, jnp.any(hooked != parent)

    return jax.lax.while_loop(lambda carry: carry[1], advance, (index, jnp.bool_(True)))[0]
