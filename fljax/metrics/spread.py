"""The spread of a metric over the clients, round by round: the worst clients, and the standard deviation."""

from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import ArrayLike

from fljax.rounds.round_metrics import OF_CLIENT


def worst(values: ArrayLike, share: float = 0.1) -> np.ndarray:
    """Mean over the worst ``share`` of the clients, at least one: () of (clients,), or of each row of more axes.

    Clients that were not tested do not count; NaN if none was.
    """
    ascending = np.sort(_of_tested(values), axis=-1)  # NaN comes last
    n = (~np.isnan(ascending)).sum(axis=-1)
    n_counted = np.maximum(1, np.ceil(share * n))
    is_counted = np.arange(ascending.shape[-1]) < n_counted[..., None]
    return np.where(n > 0, np.where(is_counted, ascending, 0.0).sum(axis=-1) / n_counted, np.nan)


def deviation(values: ArrayLike) -> np.ndarray:
    """Standard deviation over the clients that were tested: () of (clients,), or of each row of more axes."""
    tested = _of_tested(values)
    n = (~np.isnan(tested)).sum(axis=-1)
    mean = np.nansum(tested, axis=-1) / np.maximum(n, 1)
    squares = np.nansum(np.square(tested - mean[..., None]), axis=-1)
    return np.where(n > 0, np.sqrt(squares / np.maximum(n, 1)), np.nan)


def _of_tested(values: ArrayLike) -> np.ndarray:
    """The values as float64, NaN for clients without a finite test."""
    doubles = np.asarray(values, np.float64)
    return np.where(np.isfinite(doubles), doubles, np.nan)


SPREADS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"worst10": worst, "deviation": deviation}
"""Ending of a metric's name, as in ``accuracy_worst10`` -> the function of the clients' values."""

OF = ("accuracy", "f1", "r2", "auc", "average_precision", "balanced_accuracy", "top3", "top5")
"""Metrics of a client of which higher is better, so that the lowest are the worst."""


def spreads(metrics: Collection[str]) -> list[str]:
    """The names that `spread_over_clients` accepts for a run with these metrics."""
    return [f"{kind}_{name}" for kind in OF if OF_CLIENT + kind in metrics for name in SPREADS]


def spread_over_clients(metrics: Mapping[str, ArrayLike], name: str) -> np.ndarray:
    """(rounds,) float64, one of `spreads` after every round; NaN if no client was tested. Further leading axes, as in a
    sweep's metrics (points, seeds, rounds, ...), are kept.
    """
    kind, _, spread = name.rpartition("_")
    return SPREADS[spread](np.asarray(metrics[OF_CLIENT + kind]))


def measured(metrics: Mapping[str, ArrayLike], name: str) -> np.ndarray:
    """The metric ``name``: one of ``metrics``, or one of `spreads`."""
    return np.asarray(metrics[name]) if name in metrics else spread_over_clients(metrics, name)
