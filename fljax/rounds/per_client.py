"""Samplings that know something of each client: as many numbers as a federation has clients."""

from typing import Any

import numpy as np

from fljax.rounds.sampling import Sampling


def numbers_of_clients(name: str, given: Any) -> tuple[float, ...]:
    """(clients,) numbers, one a client, as floats.

    Raises:
        ValueError: they are no numbers, or not in one row.
    """
    try:
        row = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        row = np.full((), np.nan)
    if row.ndim != 1 or not row.size or np.isnan(row).any():
        raise ValueError(f"{name}={given!r}: give a number for each client, (clients,)")
    return tuple(row.tolist())


def for_each_client(name: str, row: tuple[float, ...], sampling: Sampling) -> Sampling:
    """``sampling`` of a federation with as many clients as ``row`` has numbers, which its description names."""

    def n_places(n_clients: int) -> int:
        if n_clients != len(row):
            raise ValueError(f"{name}: {len(row)} numbers for {n_clients} clients; give one a client")
        return sampling.n_places(n_clients)

    return sampling._replace(n_places=n_places, about=(*sampling.about, (name, row)))
