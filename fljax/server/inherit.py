"""What new clusters take over from old ones when the partition of the clients changes."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.ops import segment_min

from fljax import tree
from fljax.server.checks import check_axes, cluster_numbers, n_rows
from fljax.server.entry import checked


@checked()
@jax.jit
def inherit(rows: Any, old: Array, new: Array) -> Any:
    """Rows of the clusters of ``new``: each that of the old cluster of its lowest-index member.

    After a split both children have their parent's row. Members that were in no cluster do not count; a slot without
    others keeps the row it has.

    Args:
        rows: pytree with leaves (clusters, ...), a row for each old cluster.
        old: (clients,) integers below clusters, the clusters that ``rows`` belong to; a negative one was in none.
        new: (clients,) integers below clusters; a negative one is in no cluster.

    Returns:
        The same shapes as ``rows``.

    Raises:
        ValueError: lengths differ, or a label is no whole number.

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
    first = segment_min(client, jnp.where((new < 0) | (old < 0), n_clusters, new), n_clusters)
    inherited = old[jnp.minimum(first, n_clients - 1)]
    return tree.take(rows, jnp.where(first < n_clients, inherited, jnp.arange(n_clusters, dtype=jnp.int32)))
