"""What each client contributes: leave-one-out and Shapley values, from what coalitions of the clients are worth.

`fljax.coalitions` trains with each coalition. Its worth is any number that it reaches, such as the last accuracy.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fljax.argument_kinds import checked_kinds
from fljax.checks.arguments import as_array
from fljax.choices import Positive, Seed

MOST_CLIENTS = 20
"""Of `every_coalition`: their number doubles with each client."""


@checked_kinds
def every_coalition(n_clients: Positive) -> np.ndarray:
    """(2^clients, clients) bool: all coalitions; client i is a member of coalition b if bit i of b is set.

    Raises:
        ValueError: there are no clients, or more than 20: take `random_orders` then.
    """
    if n_clients > MOST_CLIENTS:
        raise ValueError(f"n_clients={n_clients} have 2^{n_clients} coalitions; sample some by random_orders")
    return (np.arange(2**n_clients)[:, None] >> np.arange(n_clients)[None] & 1).astype(bool)


@checked_kinds
def one_left_out(n_clients: Positive) -> np.ndarray:
    """(1 + clients, clients) bool: all clients, then all but client 0, all but client 1, and so on.

    Raises:
        ValueError: there are no clients.
    """
    return np.concatenate([np.ones((1, n_clients), bool), ~np.eye(n_clients, dtype=bool)])


@checked_kinds
def random_orders(n_clients: Positive, n_orders: Positive, seed: Seed = 0) -> np.ndarray:
    """(orders, clients) ids, each row a random order in which all clients join a coalition.

    Raises:
        ValueError: there are no clients or no orders, or the seed is negative.
    """
    return np.random.default_rng(seed).permuted(np.tile(np.arange(n_clients), (n_orders, 1)), axis=1)


def coalitions_of(orders: ArrayLike) -> np.ndarray:
    """(coalitions, clients) bool: the distinct coalitions that arise as clients join in ``orders``, the empty one too.

    Raises:
        ValueError: a row of ``orders`` is not an order of all clients.
    """
    return np.unique(np.concatenate(list(_joining(_checked_orders(orders)))), axis=0)


def leave_one_out(members: ArrayLike, worth: ArrayLike) -> np.ndarray:
    """(clients, ...) by how much all clients are worth more than all but one of them.

    Args:
        members: (coalitions, clients) bool, with those of `one_left_out` among them.
        worth: (coalitions, ...) what each coalition is worth; further axes, such as seeds, are kept.

    Raises:
        ValueError: a coalition is missing or given twice, or the two differ in length.
    """
    table = _Table(members, worth)
    everyone, *others = one_left_out(table.n_clients)
    return table.of([everyone]) - table.of(others)


def shapley(members: ArrayLike, worth: ArrayLike, orders: ArrayLike | None = None) -> np.ndarray:
    r"""(clients, ...) Shapley values: what a client adds to the coalition before it, mean over the orders of joining.

    .. math:: \phi_i = \sum_{S \not\ni i} \frac{|S|!\,(n-|S|-1)!}{n!} \bigl(v(S \cup \{i\}) - v(S)\bigr)

    The values sum to the worth of all clients minus that of none. Source: Shapley, A Value for n-Person Games, 1953;
    over sampled orders: Castro, Gómez and Tejada, Polynomial calculation of the Shapley value based on sampling,
    Computers & Operations Research 2009.

    Args:
        members: (coalitions, clients) bool: those of `every_coalition`, or with ``orders`` their `coalitions_of`.
        worth: (coalitions, ...) what each coalition is worth; further axes, such as seeds, are kept.
        orders: (orders, clients) ids, the orders of which the mean is taken; None: all orders, without sampling.

    Raises:
        ValueError: a coalition is missing or given twice, the two differ in length, or ``orders`` are not orders of
            these clients.
    """
    table = _Table(members, worth)
    n = table.n_clients
    if orders is None:
        coalitions = every_coalition(n)
        size = coalitions.sum(1)
        weight = np.array([1 / (n * math.comb(n - 1, k)) for k in range(n)])
        without = [coalitions[~coalitions[:, i]] for i in range(n)]
        added = [table.of(S | (np.arange(n) == i)) - table.of(S) for i, S in enumerate(without)]
        return np.stack([np.tensordot(weight[size[~coalitions[:, i]]], added[i], 1) for i in range(n)])
    joining = _checked_orders(orders)
    if joining.shape[1] != n:
        raise ValueError(
            f"orders are of {joining.shape[1]} clients and members of {n}; give orders of the same clients"
        )
    values = np.zeros((n, *table.worth.shape[1:]))
    for order, coalitions in zip(joining, _joining(joining), strict=True):
        values[order] += np.diff(table.of(coalitions), axis=0)
    return values / len(joining)


def _joining(orders: np.ndarray) -> Sequence[np.ndarray]:
    """For each order the coalitions (1 + clients, clients) of its first 0, 1, ... clients."""
    n = orders.shape[1]
    return [np.argsort(order)[None] < np.arange(n + 1)[:, None] for order in orders]


def _checked_orders(orders: ArrayLike) -> np.ndarray:
    table = np.asarray(as_array("orders", orders))
    are_ids = table.ndim == 2 and table.size > 0 and np.issubdtype(table.dtype, np.integer)
    if not are_ids or not (np.sort(table, 1) == np.arange(table.shape[1])).all():
        raise ValueError(
            "orders: a row is not an order of all clients; make them by random_orders(n_clients, n_orders)"
        )
    return table


class _Table:
    """What coalitions are worth, found by their members."""

    def __init__(self, members: ArrayLike, worth: ArrayLike) -> None:
        table, values = (np.asarray(as_array(*named)) for named in (("members", members), ("worth", worth)))
        if table.dtype != bool or table.ndim != 2 or not table.shape[1]:
            raise ValueError(f"members is {table.dtype}{[*table.shape]}; give bool (coalitions, clients)")
        if values.shape[:1] != (len(table),):
            raise ValueError(f"worth has shape {values.shape} for {len(table)} coalitions; give one row for each")
        if values.dtype.kind not in "biufV":  # V: bfloat16
            raise ValueError(f"worth has dtype {values.dtype}; give real numbers")
        self.worth = values.astype(np.float64)
        self.n_clients = table.shape[1]
        self.row = {coalition.tobytes(): row for row, coalition in enumerate(table)}
        if len(self.row) < len(table):
            raise ValueError("members has a coalition twice; give each once")

    def of(self, coalitions: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """(coalitions, ...) what they are worth."""
        for coalition in coalitions:
            if coalition.tobytes() not in self.row:
                missing = f"of clients {np.flatnonzero(coalition).tolist()}" if coalition.any() else "without clients"
                raise ValueError(
                    f"members lacks the coalition {missing}; make them by every_coalition, one_left_out, or "
                    "coalitions_of the orders"
                )
        return self.worth[[self.row[coalition.tobytes()] for coalition in coalitions]]
