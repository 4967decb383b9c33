"""Samplings with one number per client of the federation."""

from typing import Any

import numpy as np

from fljax.rounds.sampling import Sampling


def numbers_of_clients(name: str, values: Any) -> tuple[float, ...]:
    """(clients,) numbers, one per client, as floats.

    Raises:
        ValueError: they are not numbers, or not one-dimensional.
    """
    try:
        row = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        row = np.full((), np.nan)
    if row.ndim != 1 or not row.size or np.isnan(row).any():
        raise ValueError(f"{name}={values!r}: give a number for each client, (clients,)")
    return tuple(row.tolist())


def for_each_client(name: str, row: tuple[float, ...], sampling: Sampling) -> Sampling:
    """``sampling`` for a federation with as many clients as ``row`` has numbers; its description contains them."""

    def n_places(n_clients: int) -> int:
        if n_clients != len(row):
            raise ValueError(f"{name}: {len(row)} numbers for {n_clients} clients; give one per client")
        return sampling.n_places(n_clients)

    return sampling._replace(n_places=n_places, about=(*sampling.about, (name, row)))
