"""New clusters' rows, from the old clusters of their clients, if the partition changes."""

from typing import Any

import jax.numpy as jnp
from jax.ops import segment_min

from fljax import tree
from fljax.server.checks import check_axes, cluster_numbers, n_rows
from fljax.server.entry import checked, compiled
from fljax.types import AnyArray


@checked()
@compiled
def inherit(rows: Any, old: AnyArray, new: AnyArray) -> Any:
    """Rows for the clusters in ``new``: each is the row of the old cluster of its lowest-index member.

    After a split, both halves have the row of the old cluster. Members that were in no cluster are ignored; a cluster
    without other members keeps the row of its own number.

    Args:
        rows: pytree with leaves (clusters, ...), one row per old cluster.
        old: (clients,) integers below clusters, the clusters of ``rows``; negative: was in no cluster.
        new: (clients,) integers below clusters; negative: is in no cluster.

    Returns:
        The same shapes as ``rows``.

    Raises:
        ValueError: lengths differ, or labels are not integers.

    Example:
        >>> import jax.numpy as jnp
        >>> from fljax.server import inherit
        >>> centers = jnp.array([10.0, 20.0, 30.0])
        >>> inherit(centers, jnp.array([0, 1, 1]), jnp.array([0, 1, 2])).tolist()
        [10.0, 20.0, 20.0]
    """
    (n_clients,), n_clusters = check_axes("old", old, "clients"), n_rows("rows", rows)
    old, new = cluster_numbers("old", old, n_clients, "old"), cluster_numbers("new", new, n_clients, "old")
    client = jnp.arange(n_clients, dtype=jnp.int32)
    first_member = segment_min(client, jnp.where((new < 0) | (old < 0), n_clusters, new), n_clusters)
    old_cluster = old[jnp.minimum(first_member, n_clients - 1)]
    return tree.take(rows, jnp.where(first_member < n_clients, old_cluster, jnp.arange(n_clusters, dtype=jnp.int32)))
