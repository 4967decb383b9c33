"""Who attacks: a share of the clients, spread over the federation or in one of its groups, or clients by name."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fljax.types import Federation

Placed = Literal["spread", "one_group"]
"""Attackers are spread evenly over the clients in order of their groups, or fill one group after another."""


def attackers(federation: Federation, share: float, ids: Sequence[int] | None, placed: Placed) -> tuple[int, ...]:
    """The attackers' ids, ascending.

    Args:
        federation: its clients; without true groups the order of ids stands for theirs.
        share: of the clients, in [0, 1); rounded, at least one where it is above 0. Not read where ``ids`` is given.
        ids: the attackers.
        placed: where among the clients, "spread" or "one_group".

    Raises:
        ValueError: a client that does not exist, or nobody is left who is honest.
    """
    n = federation.train.n_clients
    if ids is not None:
        found = sorted(set(ids))
        if found and not 0 <= found[0] <= found[-1] < n:
            wrong = next(one for one in found if not 0 <= one < n)
            raise ValueError(f"ids: client {wrong} attacks but there are {n}; give ids from 0 to {n - 1}")
    else:
        if not 0 <= share < 1:
            raise ValueError(
                f"share={share} is not a share of the clients that leaves someone honest; choose 0 <= share < 1"
            )
        count = max(round(share * n), share > 0)
        order = np.arange(n) if federation.group is None else np.argsort(np.asarray(federation.group), kind="stable")
        places = np.arange(count) * n // max(count, 1) if placed == "spread" else np.arange(count)
        found = sorted(int(one) for one in order[places])
    if len(found) >= n:
        raise ValueError(f"{len(found)} of {n} clients attack, and nobody is left who is honest; choose fewer")
    return tuple(found)
