"""Contributions of clients: games with known values, and the mean over all orders by brute force."""

from itertools import permutations

import jax.numpy as jnp
import numpy as np
import pytest

from fljax.report import contributions
from fljax.report.contributions import (
    coalitions_of,
    every_coalition,
    leave_one_out,
    one_left_out,
    random_orders,
    shapley,
)

N = 4
ALL = every_coalition(N)
RANDOM = np.random.default_rng(0).normal(size=(len(ALL), 3))  # a game for each of three seeds


def by_brute_force(members, worth):
    """What each client adds when it joins, in every order there is."""
    value = {frozenset(np.flatnonzero(row)): worth for row, worth in zip(members, worth, strict=True)}
    n = members.shape[1]
    added = [
        [
            value[frozenset([*before, i])] - value[frozenset(before)]
            for i in range(n)
            for before in [order[: order.index(i)]]
        ]
        for order in permutations(range(n))
    ]
    return np.mean(added, axis=0)


def test_shapley_values_are_means_over_all_orders():
    expected = by_brute_force(ALL, RANDOM)
    np.testing.assert_allclose(shapley(ALL, RANDOM), expected, atol=1e-12)
    shuffled = np.random.default_rng(1).permutation(len(ALL))  # coalitions are found wherever they are
    np.testing.assert_allclose(shapley(ALL[shuffled], RANDOM[shuffled]), expected, atol=1e-12)
    orders = list(permutations(range(N)))
    np.testing.assert_allclose(shapley(ALL, RANDOM, orders), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("worth", "expected"),
    [
        (lambda ids: sum(i + 1 for i in ids), [1, 2, 3, 4]),  # each adds its own
        (
            lambda ids: max((i + 1 for i in ids), default=0),
            [1 / 4, 1 / 4 + 1 / 3, 1 / 4 + 1 / 3 + 1 / 2, 25 / 12],
        ),  # airport
        (lambda ids: min(sum(i < 1 for i in ids), sum(i >= 1 for i in ids)), [3 / 4, 1 / 12, 1 / 12, 1 / 12]),  # gloves
        (lambda ids: float(len(ids) == N), [1 / 4] * 4),
    ],
)
def test_games_with_known_values(worth, expected):
    np.testing.assert_allclose(shapley(ALL, [worth(np.flatnonzero(row)) for row in ALL]), expected, atol=1e-12)


def test_of_sampled_orders_only_their_coalitions_are_needed():
    orders = random_orders(9, 5, seed=3)
    assert [sorted(order) for order in orders.tolist()] == [list(range(9))] * 5
    members = coalitions_of(orders)
    assert len(members) < 5 * 10
    assert len(np.unique(members, axis=0)) == len(members)
    weight = np.arange(9.0)
    np.testing.assert_allclose(shapley(members, members @ weight, orders), weight)
    worth = np.random.default_rng(0).normal(size=len(members))
    total = worth[members.all(1)] - worth[~members.any(1)]
    np.testing.assert_allclose(shapley(members, worth, orders).sum(), total[0])  # efficiency, order by order


def test_orders_are_those_of_the_seed():
    orders = [random_orders(9, 5, seed=seed).tolist() for seed in (3, 3, 4)]
    assert orders[0] == orders[1] != orders[2]


def test_as_many_clients_as_allowed_have_all_their_coalitions(monkeypatch):
    monkeypatch.setattr(contributions, "MOST_CLIENTS", N)
    assert every_coalition(N).shape == (2**N, N)
    with pytest.raises(ValueError, match=r"^n_clients=5 have 2\^5 coalitions"):
        every_coalition(N + 1)


def test_worth_is_of_any_real_dtype():
    worth = jnp.arange(16, dtype=jnp.bfloat16)
    np.testing.assert_array_equal(shapley(ALL, worth), shapley(ALL, np.arange(16)))


def test_leave_one_out():
    rows = one_left_out(N)
    assert rows.sum(1).tolist() == [4, 3, 3, 3, 3]
    np.testing.assert_allclose(leave_one_out(rows, rows @ np.arange(4.0)), np.arange(4.0))
    everyone = RANDOM[ALL.all(1)][0]
    expected = [everyone - RANDOM[((np.arange(N) != i) == ALL).all(1)][0] for i in range(N)]
    np.testing.assert_allclose(leave_one_out(ALL, RANDOM), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: every_coalition(0), "n_clients=0"),
        (lambda: every_coalition(21), "n_clients=21 have 2\\^21 coalitions; sample some by random_orders"),
        (lambda: one_left_out(0), "n_clients=0 is not positive; choose n_clients >= 1"),
        (lambda: one_left_out(True), "n_clients=True is not a whole number"),
        (lambda: random_orders(3, 0), "n_orders=0"),
        (lambda: random_orders(0, 3), "n_clients=0"),
        (lambda: random_orders(3, 2, -1), "seed=-1 is negative; choose seed >= 0"),
        *(
            (lambda orders=orders: coalitions_of(orders), "orders: a row is not an order of all clients")
            for orders in ([[0, 1], [1, 1]], [0, 1], [[0.0, 1.0]], [[False, True]], np.zeros((0, 2), int), [[]], "ab")
        ),
        (lambda: coalitions_of([[0, 1], [0]]), "orders has rows that differ in length; give an array"),
        (lambda: shapley(ALL, ["a"] * 16), "worth has dtype <U1; give real numbers"),
        (lambda: shapley(ALL, 1j * RANDOM), "worth has dtype complex128; give real numbers"),
        (lambda: shapley(ALL, None), "worth has shape \\(\\) for 16 coalitions"),
        (lambda: shapley(np.zeros((1, 0), bool), [0.0]), "members is bool\\[1, 0\\]"),
        (lambda: shapley(ALL[1:], RANDOM[1:]), "members lacks the coalition without clients"),
        (lambda: shapley(ALL, RANDOM[1:]), "worth has shape \\(15, 3\\) for 16 coalitions"),
        (lambda: shapley(ALL, RANDOM, [[0, 1, 2]]), "orders are of 3 clients and members of 4"),
        (lambda: shapley(ALL.astype(int), RANDOM), "members is int64\\[16, 4\\]; give bool"),
        (lambda: leave_one_out(ALL[:-1], RANDOM[:-1]), "members lacks the coalition of clients \\[0, 1, 2, 3\\]"),
        (lambda: leave_one_out(np.concatenate([ALL, ALL[:1]]), np.zeros(17)), "members has a coalition twice"),
    ],
)
def test_what_cannot_be_counted_is_refused(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
