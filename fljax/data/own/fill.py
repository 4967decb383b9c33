"""Values for empty cells of a table: one number per column, computed from the clients' training examples."""

from typing import Literal

import jax.numpy as jnp
import numpy as np

from fljax.types import ClientData, Federation

Fill = Literal["median", "mean"]


def fills(federation: Federation, empty: np.ndarray, fill: Fill) -> np.ndarray:
    """(features,) float32: each column's median or mean over the training examples, each counted once.

    Args:
        federation: the clients that train; their pool has the table's rows.
        empty: (rows, features) bool: cells that are empty and do not count.
        fill: "median" or "mean".

    Returns:
        The values; 0 for a column that is empty in all these examples.
    """
    rows = _rows_of(federation.train)
    x, is_counted = np.asarray(federation.train.pool.x, np.float64)[rows], ~empty[rows]
    statistic = {"median": np.median, "mean": np.mean}[fill]
    columns = zip(x.T, is_counted.T, strict=True)
    return np.array([statistic(column[mask]) if mask.any() else 0.0 for column, mask in columns], np.float32)


def filled(federation: Federation, empty: np.ndarray, values: np.ndarray) -> Federation:
    """The federation with ``values`` (features,) in the cells that are ``empty`` (rows, features)."""
    pools = {}

    def filled_data(data: ClientData) -> ClientData:  # splits that share a pool still share it
        if id(data.pool) not in pools:
            pools[id(data.pool)] = data.pool._replace(x=jnp.where(empty, values, data.pool.x))
        return data._replace(pool=pools[id(data.pool)])

    val = None if federation.val is None else filled_data(federation.val)
    return federation._replace(train=filled_data(federation.train), val=val, test=filled_data(federation.test))


def _rows_of(data: ClientData) -> np.ndarray:
    index, size = np.asarray(data.index), np.asarray(data.size)
    return np.unique(index[np.arange(index.shape[1]) < size[:, None]])
