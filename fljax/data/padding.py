"""Federations padded to one shape, so that a program compiled for one of them serves all."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fljax.argument_kinds import check_own_kind
from fljax.ranges import said
from fljax.types import ClientData, Examples, Federation


def same_shapes(federations: Sequence[Federation]) -> list[Federation]:
    """The federations with tables and pools padded to the largest of them; padding is never read.

    Partitions of one data set with different seeds differ in the size of the largest client, and so in the width of
    their tables of rows. Results of a run do not depend on that width, except for the rounding of test losses, which
    are then summed in another order. Equal pools are stored once.

    Raises:
        ValueError: they are not federations, or differ in the number of clients, the splits, the kinds of examples or
            labels, or the size of the public data, which the server reads entirely: padding cannot make these equal.
    """
    if isinstance(federations, Federation):
        raise ValueError("federations is a single federation; give several, such as [first, second]")
    if isinstance(federations, str | Mapping) or not np.iterable(federations):
        raise ValueError(f"{said('federations', federations)} is not a sequence; give several federations")
    federations = list(federations)
    for i, federation in enumerate(federations):
        check_own_kind(f"federation {i}", federation, Federation)
    if not federations:
        return []
    kinds = [_kind(federation) for federation in federations]
    for i, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ValueError(f"federation {i} is {kind} and federation 0 {kinds[0]}; these must be equal")
    if federations[0].stages is not None:
        raise ValueError("the federations change over the rounds; pad them first and add the drift afterwards")
    distinct_pools: list[Examples] = []
    pools = [_pools(federation, distinct_pools) for federation in federations]
    longest = {name: max(len(split_pools[name].y) for split_pools in pools if name in split_pools) for name in pools[0]}
    padded_pools: dict[tuple[int, int], Examples] = {}
    result = []
    for federation, split_pools in zip(federations, pools, strict=True):
        padded = {name: _padded_pool(pool, longest[name], padded_pools) for name, pool in split_pools.items()}
        splits: dict[str, Any] = {
            name: ClientData(padded[name], _padded_index(data, _capacity(federations, name)), data.size)
            for name in ("train", "val", "test")
            if (data := getattr(federation, name)) is not None
        }
        result.append(federation._replace(**splits, public=padded.get("public")))
    return result


def _kind(federation: Federation) -> tuple[Any, ...]:
    x, y = federation.train.pool
    return (
        f"{len(federation.train.size)} clients",
        f"examples {x.shape[1:]} {x.dtype}",
        f"labels {y.shape[1:]} {y.dtype}",
        "tested on one set" if federation.test.is_common else "tested on their own examples",
        "with validation" if federation.val is not None else "without validation",
        "no public data" if federation.public is None else f"{len(federation.public.y)} public examples",
        "known groups" if federation.group is not None else "no groups",
        "the same in every round" if federation.stages is None else "changing over the rounds",
    )


def _pools(federation: Federation, distinct: list[Examples]) -> dict[str, Examples]:
    """The pool of each split; of equal pools, always the first."""

    def first_equal(pool: Examples) -> Examples:
        for pool_before in distinct:
            if pool_before is pool or _are_equal(pool_before, pool):
                return pool_before
        distinct.append(pool)
        return pool

    splits = {name: getattr(federation, name) for name in ("train", "val", "test")}
    pools = {name: first_equal(data.pool) for name, data in splits.items() if data is not None}
    return pools if federation.public is None else pools | {"public": first_equal(federation.public)}


def _are_equal(first: Examples, second: Examples) -> bool:
    same = first.x.shape == second.x.shape and first.y.shape == second.y.shape and first.x.dtype == second.x.dtype
    return same and all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(first, second, strict=True))


def _padded_pool(pool: Examples, length: int, padded_pools: dict[tuple[int, int], Examples]) -> Examples:
    """``pool`` padded with zeros to ``length`` rows. One object per pool, because splits may share it."""
    if (key := (id(pool), length)) not in padded_pools:
        padded_pools[key] = Examples(*(_padded_rows(part, length) for part in pool)) if length > len(pool.y) else pool
    return padded_pools[key]


def _padded_rows(rows: Any, length: int) -> Any:
    return jnp.pad(rows, [(0, length - rows.shape[0]), *[(0, 0)] * (rows.ndim - 1)])


def _capacity(federations: Sequence[Federation], name: str) -> int:
    return max(getattr(federation, name).index.shape[1] for federation in federations)


def _padded_index(data: ClientData, capacity: int) -> Any:
    return jnp.pad(data.index, [(0, 0), (0, capacity - data.index.shape[1])])
