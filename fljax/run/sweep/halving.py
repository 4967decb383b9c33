"""Successive halving: all points for a few rounds, then the better ones for more.

Jamieson, Talwalkar: Non-stochastic Best Arm Identification and Hyperparameter Optimization, AISTATS 2016,
https://arxiv.org/abs/1502.07943. Bad points stop; the others continue from their states, so their results are those of
the full sweep.
"""

from typing import NamedTuple

import numpy as np

from fljax.checks.arguments import whole


class Rung(NamedTuple):
    """One stage of a search."""

    n_points: int  # in this stage
    until: int  # number of rounds at its end


def rungs(n_points: int, n_rounds: int, eta: int | None = None, evaluate_every: int = 1) -> list[Rung]:
    """``ceil(n_points / eta^k)`` points until about ``n_rounds / eta^(K - k)`` rounds, k = 0 ... K.

    K is the largest with ``eta^K <= n_points`` and ``eta^K evaluate_every <= n_rounds``, so that 24 points with eta 2
    end as 2; each rung ends later than the one before it. Rungs end in tested rounds, so halving does not change which
    rounds are tested. ``eta`` None: one rung, the full sweep.

    Raises:
        ValueError: eta is not a whole number of at least 2.
    """
    if eta is None:
        return [Rung(n_points, n_rounds)]
    if whole("halving", eta) < 2:
        raise ValueError(f"halving={eta} keeps every point; choose halving >= 2")
    n_rungs = 1
    while eta**n_rungs <= n_points and eta**n_rungs * evaluate_every <= n_rounds:
        n_rungs += 1
    all_rungs: list[Rung] = []
    for k in range(n_rungs):
        rounds = -(-n_rounds // (eta ** (n_rungs - 1 - k) * evaluate_every)) * evaluate_every
        if k == n_rungs - 1 or rounds < n_rounds:
            all_rungs.append(Rung(-(-n_points // eta**k), min(rounds, n_rounds)))
    return all_rungs


def survivors(score: np.ndarray, n_points: int) -> np.ndarray:
    """The ``n_points`` with the highest ``score`` (points,), in their own order; the first of equal ones. NaN is the
    lowest."""
    order = np.argsort(-np.where(np.isnan(score), -np.inf, score), kind="stable")
    return np.sort(order[:n_points])
