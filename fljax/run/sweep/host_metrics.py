"""Metrics of a sweep's runs that only the host computes, as in single runs: epsilon, seconds, churn, agreement."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fljax.metrics.agreement import ari_of_rounds, truth_of
from fljax.metrics.churn import churn_of_rounds
from fljax.rounds.sampling import Sampling
from fljax.rounds.timing import OF_SECONDS
from fljax.types import Federation

OF_ROUNDS = (*OF_SECONDS, "label", "diverged")
"""The metrics from which they are computed."""


def host_metrics(
    metrics: Mapping[str, Any],
    rounds_run: np.ndarray,
    epsilon: np.ndarray | None,
    sampling: Sampling,
    federation: Federation,
) -> dict[str, np.ndarray]:
    """``epsilon``, ``simulated_seconds``, ``churn``, ``ari``: (points, seeds, rounds), NaN in rounds not run.

    Args:
        metrics: `OF_ROUNDS`, as far as the runs have them, as NumPy arrays (points, seeds, rounds, ...).
        rounds_run: (points,) number of rounds of each.
        epsilon: (points, rounds) epsilon of a private method; None: it is not private.
        sampling: the sampling of clients, with its timing.
        federation: of all runs.
    """
    diverged = metrics["diverged"]
    not_run = diverged | (np.arange(diverged.shape[2]) >= rounds_run[:, None, None])

    def of_each(run: Callable[[dict[str, np.ndarray]], np.ndarray]) -> np.ndarray:
        values = [run({name: value[i] for name, value in metrics.items()}) for i in np.ndindex(not_run.shape[:2])]
        return np.array(values, np.float32).reshape(not_run.shape)

    computed = {} if epsilon is None else {"epsilon": np.broadcast_to(epsilon[:, None], not_run.shape)}
    if (timing := sampling.timing) is not None:
        computed["simulated_seconds"] = of_each(lambda run: timing.of_rounds(0, run))
    if "label" in metrics:
        computed["churn"] = of_each(lambda run: churn_of_rounds(run, federation.train.n_clients)[0])
        if (truth := truth_of(federation)) is not None:
            computed["ari"] = of_each(lambda run: ari_of_rounds(run, truth))
    return {name: np.where(not_run, np.float32("nan"), value) for name, value in computed.items()}
