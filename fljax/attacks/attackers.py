"""The attackers: a share of the clients, spread over the federation or in one of its groups, or given ids."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fljax.types import Federation

Placed = Literal["spread", "one_group"]
"""Attackers are spread evenly over the clients sorted by group, or fill one group after another."""


def attackers(federation: Federation, share: float, ids: Sequence[int] | None, placed: Placed) -> tuple[int, ...]:
    """The attackers' ids, ascending.

    Args:
        federation: the clients; without true groups, the order of ids is used instead.
        share: of the clients, in [0, 1); rounded, at least one client if above 0. Not used if ``ids`` is given.
        ids: the attackers.
        placed: their position among the clients, "spread" or "one_group".

    Raises:
        ValueError: a client does not exist, or no client is honest.
    """
    n = federation.train.n_clients
    if ids is not None:
        attacker_ids = sorted(set(ids))
        if attacker_ids and not 0 <= attacker_ids[0] <= attacker_ids[-1] < n:
            unknown = next(client for client in attacker_ids if not 0 <= client < n)
            raise ValueError(f"ids: client {unknown} attacks but there are {n}; give ids from 0 to {n - 1}")
    else:
        if not 0 <= share < 1:
            raise ValueError(
                f"share={share} is not a share of the clients that leaves an honest client; choose 0 <= share < 1"
            )
        count = max(round(share * n), share > 0)
        order = np.arange(n) if federation.group is None else np.argsort(np.asarray(federation.group), kind="stable")
        places = np.arange(count) * n // max(count, 1) if placed == "spread" else np.arange(count)
        attacker_ids = sorted(int(client) for client in order[places])
    if len(attacker_ids) >= n:
        given = f"share={share}" if ids is None else f"ids={attacker_ids}"
        raise ValueError(f"{given}: {len(attacker_ids)} of {n} clients attack, and no client is honest; choose fewer")
    return tuple(attacker_ids)
