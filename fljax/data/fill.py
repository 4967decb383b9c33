"""What takes the place of empty cells of a table: a number of each column, of the examples that clients train on."""

from typing import Literal

import jax.numpy as jnp
import numpy as np

from fljax.types import ClientData, Federation

Fill = Literal["median", "mean"]


def fills(federation: Federation, empty: np.ndarray, fill: Fill) -> np.ndarray:
    """(features,) float32: each column's median or mean over the training examples, each counted once.

    Args:
        federation: the clients that train, whose pool has the table's rows.
        empty: (rows, features) bool: the cells that are empty, which do not count.
        fill: which of the two.

    Returns:
        0 for a column that all these examples have empty.
    """
    rows = _rows_of(federation.train)
    x, counts = np.asarray(federation.train.pool.x, np.float64)[rows], ~empty[rows]
    of = {"median": np.median, "mean": np.mean}[fill]
    columns = zip(x.T, counts.T, strict=True)
    return np.array([of(column[own]) if own.any() else 0.0 for column, own in columns], np.float32)


def filled(federation: Federation, empty: np.ndarray, values: np.ndarray) -> Federation:
    """The federation with ``values`` (features,) in the cells that are ``empty`` (rows, features)."""
    made = {}

    def of(data: ClientData) -> ClientData:  # splits that share a pool go on sharing it
        if id(data.pool) not in made:
            made[id(data.pool)] = data.pool._replace(x=jnp.where(empty, values, data.pool.x))
        return data._replace(pool=made[id(data.pool)])

    val = None if federation.val is None else of(federation.val)
    return federation._replace(train=of(federation.train), val=val, test=of(federation.test))


def _rows_of(data: ClientData) -> np.ndarray:
    index, size = np.asarray(data.index), np.asarray(data.size)
    return np.unique(index[np.arange(index.shape[1]) < size[:, None]])
