"""A federation made to change: copies of examples for every version, and tables for every stage."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fljax.drift.stages import at
from fljax.drift.timeline import Drift, Timeline, Version
from fljax.types import ClientData, Examples, Federation, Rows, Stages

SPLITS = ("train", "val", "test")


def drifting(federation: Federation, drift: Drift) -> Federation:
    """``federation`` as ``drift`` changes it over the rounds.

    Training, validation and test examples of a client change together, and its true group: those who have the data of a
    group in the same version are one. A client that is not there takes no part and is not tested; it still counts as a
    client, and what a method does before the first round it does with all.

    Args:
        federation: how it begins.
        drift: of `DRIFTS`.

    Raises:
        ValueError: it changes already, nobody would be there, or the drift does not fit the data.
    """
    if drift.timeline is None:
        return federation
    if federation.stages is not None:
        raise ValueError("the federation changes over the rounds already; give one drift")
    line = drift.timeline(federation)
    if not line.there.any(axis=1).all():
        raise ValueError(f"{drift.name}: nobody would be there; choose a smaller share")
    begins = jnp.asarray(drift.begins, jnp.int32)
    group = _groups(federation, line)
    pools: dict[int, Examples] = {}
    splits: dict[str, ClientData] = {name: one for name in SPLITS if (one := getattr(federation, name)) is not None}
    rows = dict.fromkeys(SPLITS) | {name: _rows(data, line, pools, name == "test") for name, data in splits.items()}
    stages = Stages(begins, **rows, group=group, there=jnp.asarray(line.there))  # pyright: ignore[reportArgumentType]
    grown: Any = {name: data._replace(pool=pools[id(data.pool.x)]) for name, data in splits.items()}
    return at(federation._replace(**grown, stages=stages), 0)._replace(stages=stages)


def _groups(federation: Federation, line: Timeline) -> Any:
    """(stages, clients) true groups: those of the data's owners, each version of them others."""
    if federation.group is None:
        return jnp.asarray(line.version, jnp.int32) if line.versions else None
    group = np.asarray(federation.group)
    return jnp.asarray(group[line.owner] + (group.max() + 1) * line.version, jnp.int32)


def _rows(data: ClientData, line: Timeline, pools: dict[int, Examples], if_there: bool) -> Rows:
    """A split's tables; its pool in ``pools``, which splits may share, gets the copies of every version behind it."""
    index, size = np.asarray(data.index), np.asarray(data.size)
    pool, tables = pools.get(id(data.pool.x), data.pool), [index]
    for v, version in enumerate(line.versions, start=1):
        owners = np.unique(line.owner[line.version == v])
        first, table = len(pool.y), index.copy()
        pool = Examples(*map(jnp.asarray, _with_copies(pool, index, size, owners, version)))
        begins = first + np.cumsum(size[owners]) - size[owners]
        table[owners] = begins[:, None] + np.minimum(np.arange(index.shape[1]), np.maximum(size[owners, None] - 1, 0))
        tables.append(table)
    pools[id(data.pool.x)] = pool
    rows, counts = np.stack(tables)[line.version, line.owner], size[line.owner]
    return Rows(jnp.asarray(rows, jnp.int32), jnp.asarray(np.where(line.there | (not if_there), counts, 0), jnp.int32))


def _with_copies(
    pool: Examples, index: np.ndarray, size: np.ndarray, owners: np.ndarray, version: Version
) -> tuple[np.ndarray, np.ndarray]:
    """The pool, and behind it every owner's examples in that version."""
    x, y = (np.asarray(part) for part in pool)
    rows = index[owners][np.arange(index.shape[1]) < size[owners, None]]
    new_x, new_y = version(x[rows], y[rows])
    return np.concatenate([x, np.asarray(new_x, x.dtype)]), np.concatenate([y, np.asarray(new_y, y.dtype)])
