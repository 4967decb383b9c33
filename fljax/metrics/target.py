"""The cost of reaching a target accuracy: rounds, bytes and network seconds."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fljax.checks.arguments import check_count
from fljax.choices import check_kind
from fljax.metrics.cost import (
    OF_TRAFFIC,
    Link,
    edge_traffic,
    megabytes_over_rounds,
    seconds_of_rounds,
    traffic_of_clients,
)
from fljax.metrics.headline import named_measure
from fljax.ranges import real


class Reached(NamedTuple):
    """The cost of a run until it first reached a target."""

    round: int  # from 1
    megabytes_up: float  # 10^6 bytes, mean over all clients
    megabytes_down: float
    seconds: float  # simulated: by the run's clock, or network time, each round with its slowest participant
    edge_megabytes_up: float | None = None  # 10^6 bytes from edge servers to the cloud, per client; None: no edges
    edge_megabytes_down: float | None = None


def reach(
    metrics: Mapping[str, Any], target: float, *, n_clients: int, link: Link | None = None, measure: str | None = None
) -> Reached | None:
    """The first tested round in which the metric is at least ``target``, and its cost; None if there is none.

    Args:
        metrics: of a run.
        target: of the metric.
        n_clients: number of clients of the federation.
        link: each client's link, for the seconds; None: the run's own ``simulated_seconds``, if clients have a clock,
            or else the default of `fljax.metrics.cost.Link`.
        measure: a metric (rounds,), higher is better; None: the headline (accuracy_macro, for regression r2_micro).

    Raises:
        ValueError: the run has no such metric, or it can never reach the target: an accuracy is a share, 0 to 1.
    """
    check_count("n_clients", n_clients)
    first = first_reached(metrics, target, measure)
    if first is None:
        return None
    names = [name for name in OF_TRAFFIC if name in metrics]
    metrics_until = {name: np.asarray(metrics[name])[: first + 1] for name in names}
    traffic = traffic_of_clients(metrics_until, n_clients)
    megabytes = float(traffic.uplink.mean() / 1e6), float(traffic.downlink.mean() / 1e6)
    has_clock = link is None and "simulated_seconds" in metrics
    seconds = (
        metrics["simulated_seconds"][: first + 1] if has_clock else seconds_of_rounds(metrics_until, link or Link())
    )
    of_edges = {
        column: float(megabytes_over_rounds(metrics_until, name, n_clients)[-1])
        for column, name in edge_traffic(metrics_until).items()
    }
    return Reached(first + 1, *megabytes, float(np.sum(seconds)), **of_edges)


def first_reached(metrics: Mapping[str, Any], target: float, measure: str | None = None) -> int | None:
    """The first round, from 0, in which the metric is at least ``target``; None if there is none. See `reach`."""
    check_kind("metrics", metrics, Mapping, "give those of a run, as of fljax.simulate")
    name = named_measure(metrics, measure)
    if real("target", target) > 1 and name.startswith(("accuracy", "f1", "r2", "attack")):
        raise ValueError(f"target={target}: {name} is at most 1; give a share, such as 0.5")
    reached = np.flatnonzero(np.asarray(metrics[name]) >= target)  # a round that was not tested is NaN
    return int(reached[0]) if len(reached) else None
