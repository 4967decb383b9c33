"""Held-out clients, which do not participate in training: a trained server is tested on them as new clients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.choices import Seed, check_choices
from fljax.data.federation import select
from fljax.ranges import real
from fljax.types import Federation, Stages


@checked_kinds
def hold_out_clients(federation: Federation, new_clients: float, seed: int = 0) -> tuple[Federation, Federation]:
    """Splits a federation by clients: those that train, and those that are new afterwards.

    Args:
        federation: all clients.
        new_clients: share of clients that never participate, in (0, 1); ``round(new_clients * n_clients)`` clients are
            chosen uniformly.
        seed: of the choice.

    Returns:
        Two federations whose clients keep their order; they share the pools and the server's public data.

    Raises:
        ValueError: the share is not in (0, 1), or leaves no client on one side.
    """
    old, new = old_and_new(federation.train.n_clients, new_clients, seed)
    return clients_of(federation, old), clients_of(federation, new)


def old_and_new(n_clients: int, new_clients: float, seed: Seed = 0) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, in order, of the clients that train and of those that are new, as in `hold_out_clients`.

    Raises:
        ValueError: as `hold_out_clients`.
    """
    check_new_clients(new_clients)
    check_choices(old_and_new, {"seed": seed})
    n_new = round(new_clients * n_clients)
    if not 0 < n_new < n_clients:
        nobody = "no new client" if n_new == 0 else "no client to train"
        raise ValueError(f"new_clients={new_clients} of {n_clients} clients leaves {nobody}; choose another share")
    is_new = np.zeros(n_clients, bool)
    is_new[np.random.default_rng(seed).permutation(n_clients)[:n_new]] = True
    return np.flatnonzero(~is_new), np.flatnonzero(is_new)


def some_clients(federation: Federation, n_clients: int, seed: int = 0) -> Federation:
    """``n_clients`` clients of a federation, chosen uniformly, in their old order.

    Raises:
        ValueError: there are fewer clients.
    """
    return clients_of(federation, some_of(federation.train.n_clients, n_clients, seed))


def some_of(n_all: int, n_clients: int, seed: int = 0) -> np.ndarray:
    """The numbers, in order, of the clients that `some_clients` chooses of ``n_all``.

    Raises:
        ValueError: as `some_clients`.
    """
    if not 1 <= n_clients <= n_all:
        raise ValueError(f"n_clients={n_clients}: the data has {n_all} clients; choose 1 to {n_all}, or 0 for all")
    return np.sort(np.random.default_rng(seed).permutation(n_all)[:n_clients])


def check_new_clients(new_clients: float) -> None:
    """Raises ValueError unless the share is in (0, 1)."""
    if not 0 < real("new_clients", new_clients) < 1:
        raise ValueError(f"new_clients={new_clients} is not a share of the clients; choose 0 < new_clients < 1")


def clients_of(federation: Federation, ids: np.ndarray | Array) -> Federation:
    """The federation of the clients ``ids`` only."""
    clients = jnp.asarray(ids)
    return federation._replace(
        train=select(federation.train, clients),
        val=None if federation.val is None else select(federation.val, clients),
        test=select(federation.test, clients),
        triggered=None if federation.triggered is None else select(federation.triggered, clients),
        group=None if federation.group is None else federation.group[clients],
        there=None if federation.there is None else federation.there[clients],
        stages=_stages_of(federation.stages, clients),
    )


def _stages_of(stages: Stages | None, clients: Array) -> Stages | None:
    if stages is None:
        return None
    tables: Any = stages._replace(begins=None)  # pyrefly: ignore[bad-argument-type]
    return jax.tree.map(lambda rows: rows[:, clients], tables)._replace(begins=stages.begins)
