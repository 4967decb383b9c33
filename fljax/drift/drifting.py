"""Makes a federation that changes: copies of examples for every version, and tables for every stage."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from fljax.argument_kinds import checked_kinds
from fljax.choices import check_kind
from fljax.drift.changed import changed
from fljax.drift.stages import at
from fljax.drift.timeline import Drift, Timeline, Version
from fljax.types import ClientData, Examples, Federation, Rows, Stages

SPLITS = ("train", "val", "test")


@checked_kinds
def drifting(federation: Federation, drift: Drift) -> Federation:
    """``federation`` changed by ``drift`` over the rounds.

    Training, validation and test examples of a client change together, and so does its true group: clients with the
    data of the same group in the same version are one group. An absent client does not participate and is not tested;
    it still counts as a client, and takes part in what a method does before the first round.

    Args:
        federation: its initial state.
        drift: of `DRIFTS`.

    Raises:
        ValueError: ``drift`` is not a `Drift`, the federation changes already, its clients share one test set, no
            client would be present, the drift does not fit the data, or its `Timeline` does not fit the federation.
    """
    check_kind("drift", drift, Drift, "call one of fljax.drift, such as fljax.drift.arrive(share=0.5, start=3)")
    if drift.timeline is None:
        return federation
    if federation.stages is not None:
        raise ValueError("the federation changes over the rounds already; give one drift")
    if federation.test.is_common:
        raise ValueError(
            f"{drift.name}: a drift changes each client's tests, but all clients share one test set; give clients "
            "with test examples of their own"
        )
    timeline = _checked(drift, drift.timeline(federation), federation.train.n_clients)
    if not timeline.there.any(axis=1).all():
        raise ValueError(f"{drift.name}: no client would be present; choose a smaller share")
    begins = jnp.asarray(drift.begins, jnp.int32)
    group = _groups(federation, timeline)
    pools: dict[int, Examples] = {}
    splits: dict[str, ClientData] = {name: split for name in SPLITS if (split := getattr(federation, name)) is not None}
    rows = dict.fromkeys(SPLITS) | {
        name: _rows(drift.name, data, timeline, pools, name == "test") for name, data in splits.items()
    }
    stages = Stages(begins, **rows, group=group, there=jnp.asarray(timeline.there))  # pyrefly: ignore[bad-argument-type]
    grown_splits: Any = {name: data._replace(pool=pools[id(data.pool.x)]) for name, data in splits.items()}
    return at(federation._replace(**grown_splits, stages=stages), 0)._replace(stages=stages)


def _checked(drift: Drift, timeline: Timeline, n_clients: int) -> Timeline:
    """The timeline with arrays of the right shape, whose clients and versions exist."""
    shape, arrays = (len(drift.begins), n_clients), {}
    kinds = (
        ("owner", np.integer, "whole numbers", n_clients - 1),
        ("version", np.integer, "whole numbers", len(timeline.versions)),
        ("there", np.bool_, "True or False", 1),
    )
    for name, kind, word, largest in kinds:
        values = arrays[name] = np.asarray(getattr(timeline, name))
        if values.shape != shape or not np.issubdtype(values.dtype, kind):
            raise ValueError(
                f"{drift.name}: {name} of shape {values.shape} and dtype {values.dtype}; give {word} of shape {shape}, "
                "one row per stage (changes + 1) and one column per client"
            )
        if values.min() < 0 or values.max() > largest:
            raise ValueError(f"{drift.name}: {name} from {values.min()} to {values.max()}; choose from 0 to {largest}")
    return timeline._replace(**arrays)


def _groups(federation: Federation, timeline: Timeline) -> Any:
    """(stages, clients) true groups: those of the data's owners, separate for each version."""
    if federation.group is None:
        return jnp.asarray(timeline.version, jnp.int32) if timeline.versions else None
    group = np.asarray(federation.group)
    return jnp.asarray(group[timeline.owner] + (group.max() + 1) * timeline.version, jnp.int32)


def _rows(name: str, data: ClientData, timeline: Timeline, pools: dict[int, Examples], only_present: bool) -> Rows:
    """A split's tables; the copies of every version are appended to its pool in ``pools``, which splits may share."""
    index, size = np.asarray(data.index), np.asarray(data.size)
    pool, tables = pools.get(id(data.pool.x), data.pool), [index]
    for v, version in enumerate(timeline.versions, start=1):
        owners = np.unique(timeline.owner[timeline.version == v])
        first, table = len(pool.y), index.copy()
        version_name = f"{name}: version {v}"
        pool = Examples(*map(jnp.asarray, _with_copies(version_name, pool, index, size, owners, version)))
        begins = first + np.cumsum(size[owners]) - size[owners]
        table[owners] = begins[:, None] + np.minimum(np.arange(index.shape[1]), np.maximum(size[owners, None] - 1, 0))
        tables.append(table)
    pools[id(data.pool.x)] = pool
    rows, owner_size = np.stack(tables)[timeline.version, timeline.owner], size[timeline.owner]
    return Rows(
        jnp.asarray(rows, jnp.int32),
        jnp.asarray(np.where(timeline.there | (not only_present), owner_size, 0), jnp.int32),
    )


def _with_copies(
    name: str, pool: Examples, index: np.ndarray, size: np.ndarray, owners: np.ndarray, version: Version
) -> tuple[np.ndarray, np.ndarray]:
    """The pool, followed by every owner's examples in that version."""
    x, y = (np.asarray(part) for part in pool)
    rows = index[owners][np.arange(index.shape[1]) < size[owners, None]]
    if not len(rows):
        return x, y
    originals = x[rows], y[rows]
    new_x, new_y = changed(name, version(*originals), *originals)
    return np.concatenate([x, new_x]), np.concatenate([y, new_y])
