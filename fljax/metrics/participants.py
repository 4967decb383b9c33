"""Means over a round's participants, and how many results of a round were left out."""

from collections.abc import Mapping

import numpy as np


def means_of_participants(metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Means over a round's participants, as columns (rounds,).

    ``loss``: mean over those whose result is used, NaN if there are none; ``uplink``, ``downlink``: floats that a
    participant sends and receives on average; ``n_not_finite``: number of those whose result was not finite.
    """
    means = {"loss": [], "uplink": [], "downlink": []}
    for i, (active, ok) in enumerate(zip(metrics["active"], metrics["ok"], strict=True)):
        for name, counted, empty in (("loss", active & ok, np.nan), ("uplink", active, 0.0), ("downlink", active, 0.0)):
            means[name].append(metrics[name][i][counted].mean() if counted.any() else empty)
    columns = {name: np.array(values, np.float64) for name, values in means.items()}
    return columns | {"n_not_finite": n_not_finite(metrics)}


def n_not_finite(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """(rounds,) participants whose result was not finite and was left out."""
    return (np.asarray(metrics["active"]) & ~np.asarray(metrics["ok"])).sum(axis=1)
