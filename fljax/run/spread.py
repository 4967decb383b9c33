"""How a measure is spread over the clients, round by round: who fares worst, and how far clients are apart."""

from collections.abc import Callable, Collection, Mapping

import numpy as np

from fljax.rounds.round_metrics import OF_CLIENT


def worst(values: np.ndarray, share: float = 0.1) -> float:
    """Mean over the worst ``share`` of the clients, at least one of them; clients that were not tested do not count."""
    known = np.sort(values[np.isfinite(values)])
    return float(known[: max(1, int(np.ceil(share * len(known))))].mean()) if len(known) else float("nan")


def deviation(values: np.ndarray) -> float:
    """Standard deviation over the clients that were tested."""
    known = values[np.isfinite(values)]
    return float(known.std()) if len(known) else float("nan")


SPREADS: Mapping[str, Callable[[np.ndarray], float]] = {"worst10": worst, "deviation": deviation}
"""What a measure's name ends in, as ``accuracy_worst10``: the function of the clients' values."""

OF = ("accuracy", "f1", "r2", "auc", "average_precision", "balanced_accuracy", "top3", "top5")
"""Measures of a client of which more is better, so that the lowest are the worst."""


def spreads(metrics: Collection[str]) -> list[str]:
    """The names that `spread_over_clients` has of a run with these metrics."""
    return [f"{kind}_{name}" for kind in OF if OF_CLIENT + kind in metrics for name in SPREADS]


def spread_over_clients(metrics: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """(rounds,) float64, one of `spreads` after every round; NaN where nobody was tested. Of metrics with more leading
    axes, as a sweep's (points, seeds, rounds, ...), of each.
    """
    kind, _, how = name.partition("_")
    return np.apply_along_axis(SPREADS[how], -1, np.asarray(metrics[OF_CLIENT + kind], np.float64))


def measured(metrics: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The metric ``name``: one of ``metrics``, or one of `spreads`."""
    return np.asarray(metrics[name]) if name in metrics else spread_over_clients(metrics, name)
