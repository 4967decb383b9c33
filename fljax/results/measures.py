"""The metrics by which finished runs are compared: one value per round, and the round in which it is taken."""

from collections.abc import Sequence
from typing import Any

TRAFFIC = {"megabytes_up": "uplink", "megabytes_down": "downlink"}
ROUNDS = "rounds"
SPENT = (ROUNDS, *TRAFFIC)


def over_rounds(run: Any, measure: str) -> Any:
    """(rounds,) values of a run's metric as tables show it: seconds and bytes are those since the run began."""
    import numpy as np

    from fljax.metrics.best_round import at_best_validation, measures_by_validation
    from fljax.metrics.cost import edge_traffic, megabytes_over_rounds
    from fljax.metrics.headline import NEW
    from fljax.metrics.spread import measured

    n_rounds = len(run.metrics["ids"])
    if measure == ROUNDS:
        return np.arange(1, n_rounds + 1, dtype=np.float64)
    if measure in (sent := TRAFFIC | edge_traffic(run.metrics)):
        return megabytes_over_rounds(run.metrics, sent[measure], _n_clients(run))
    if measure.startswith(NEW) and measure not in run.metrics:
        return np.full(n_rounds, _of_new_clients(run, n_rounds)[measure])
    if measure in measures_by_validation(run.metrics):
        return at_best_validation(run.metrics)
    values = measured(run.metrics, measure)
    return np.cumsum(values, dtype=np.float64) if measure == "simulated_seconds" else values


def measure_of(runs: Sequence[Any], measure: str | None) -> str:
    """``measure``, or if it is None the headline of the first run; ValueError if a run does not have it."""
    from fljax.metrics.headline import measures_of

    first_run = runs[0]
    name = measures_of(first_run.metrics).headline if measure is None else measure
    for run in runs:
        computed = _computed_metrics(run)
        if name in computed or (name in run.metrics and run.metrics[name].ndim == 1):
            continue
        if measure is None:
            raise ValueError(
                f"{first_run.folder} is compared by {name}, which {run.folder} does not have (classification and "
                "regression); show them separately, or by a metric that both have, such as test_loss"
            )
        numbers = [key for key, value in run.metrics.items() if value.ndim == 1 and value.dtype.kind == "f"]
        metric_names = ", ".join([*numbers, *computed])
        raise ValueError(f"measure={name!r}: {run.folder} has no such metric; choose one of {metric_names}")
    return name


def _computed_metrics(run: Any) -> list[str]:
    """Metrics that are computed from those of a run."""
    from fljax.metrics.best_round import measures_by_validation
    from fljax.metrics.cost import edge_traffic
    from fljax.metrics.spread import spreads

    computed = [*spreads(run.metrics), *measures_by_validation(run.metrics), *SPENT, *edge_traffic(run.metrics)]
    return [*computed, *_of_new_clients(run)]


def _of_new_clients(run: Any, n_rounds: int | None = None) -> dict[str, float]:
    """Tests of new clients, by their names in tables; {} if a run has none."""
    from fljax.metrics.headline import NEW
    from fljax.results.result import read_new_tests

    return {NEW + name: float(value) for name, value in read_new_tests(run.folder, n_rounds).items() if value.ndim == 0}


def _n_clients(run: Any) -> int:
    return len(next(value for name, value in run.metrics.items() if name.startswith("client_"))[0])


def counted_at(run: Any, target: float | None) -> str:
    """The round in which a metric is taken, in words."""
    from fljax.metrics.headline import measures_of

    return "at the end" if target is None else f"when {measures_of(run.metrics).headline} first reaches {target:g}"
