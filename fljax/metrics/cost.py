"""The network cost of a run: floats sent, as bytes, seconds and joules.

Every method counts the floats that a participating client sends (``uplink``) and receives (``downlink``) in a round;
losses, labels and other scalars count one each. Everything else follows from these counts, on the host and in double
precision, because a long run sends more floats than float32 can count exactly.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

BYTES_PER_FLOAT = 4

EDGE_TRAFFIC = {"edge_megabytes_up": "edge_uplink", "edge_megabytes_down": "edge_downlink"}
"""10^6 bytes between edge servers and the cloud -> the metric (rounds,) of methods that have them."""

OF_TRAFFIC = ("ids", "active", "uplink", "downlink", "candidates", *EDGE_TRAFFIC.values())
"""The metrics from which traffic is computed; a run has ``candidates`` only if its sampling asks clients for losses."""

Floats = Any
"""A number or an array of them."""


class Link(NamedTuple):
    """A client's connection to the server. An infinite rate costs neither time nor energy.

    The default, 2 Mbit/s up and a free downlink, is the setting of DC-PFL (Liu et al.).
    """

    uplink: float = 2e6  # bits per second, > 0
    downlink: float = float("inf")  # bits per second, > 0
    transmit: float = 0.0  # watts while sending
    receive: float = 0.0  # watts while receiving


class Processor(NamedTuple):
    """A client's processor. An infinite rate costs neither time nor energy."""

    rate: float = float("inf")  # operations per second, > 0; the caller defines an operation
    power: float = 0.0  # watts while working


class Traffic(NamedTuple):
    """Totals of a run in bytes."""

    uplink: np.ndarray  # (clients,)
    downlink: np.ndarray  # (clients,)


def n_bytes(floats: Floats) -> np.ndarray:
    """``4 floats``: the bytes of float32 numbers. Shape of ``floats``."""
    return BYTES_PER_FLOAT * np.asarray(floats, np.float64)


def seconds(uplink: Floats, downlink: Floats, link: Link) -> np.ndarray:
    """``32 uplink / link.uplink + 32 downlink / link.downlink``: time to receive and then send these floats.

    Raises:
        ValueError: a rate of the link is not positive.
    """
    sending, receiving = _seconds_each_way(uplink, downlink, link)
    return sending + receiving


def joules(uplink: Floats, downlink: Floats, link: Link) -> np.ndarray:
    """Seconds sending times ``link.transmit`` plus seconds receiving times ``link.receive``.

    Raises:
        ValueError: a rate of the link is not positive.
    """
    sending, receiving = _seconds_each_way(uplink, downlink, link)
    return link.transmit * sending + link.receive * receiving


def working(operations: Floats, processor: Processor) -> tuple[np.ndarray, np.ndarray]:
    """Seconds ``operations / rate`` and joules ``power * seconds`` of computing the operations.

    Raises:
        ValueError: the processor's rate is not positive.
    """
    if not processor.rate > 0:
        raise ValueError(f"rate={processor.rate} operations per second is not positive; give a rate above 0")
    spent = np.asarray(operations, np.float64) / processor.rate
    return spent, processor.power * spent


def traffic_of_clients(metrics: Mapping[str, Any], n_clients: int) -> Traffic:
    """Bytes that each client has sent and received over all rounds of a run's ``metrics``.

    A client that dropped out of a round has no traffic in it. One that was asked for its loss but did not participate
    has sent this number, and received as much as a participant on average.

    Raises:
        ValueError: the run has more clients.
    """
    ids, active = np.asarray(metrics["ids"]), np.asarray(metrics["active"])
    if (largest := int(ids.max(initial=-1))) >= n_clients:
        raise ValueError(f"n_clients={n_clients}, but there is a participant {largest}; give {largest + 1} or more")
    totals = np.zeros((2, n_clients))
    for total, name in zip(totals, ("uplink", "downlink"), strict=True):
        np.add.at(total, ids, np.where(active, n_bytes(_per_participant(metrics, name)), 0.0))
        for asked, floats in zip(*_of_candidates(metrics, name), strict=True):
            total[asked] += n_bytes(floats)
    return Traffic(*totals)


def megabytes_over_rounds(metrics: Mapping[str, Any], name: str, n_clients: int) -> np.ndarray:
    """(rounds,) 10^6 bytes of ``name``, "uplink" or "downlink", since the run began, mean over all clients.

    Those between edge servers and the cloud, "edge_uplink" or "edge_downlink", are divided by the clients too.
    """
    if name in EDGE_TRAFFIC.values():
        return np.cumsum(n_bytes(metrics[name])) / n_clients / 1e6
    sent_bytes = np.where(np.asarray(metrics["active"]), n_bytes(_per_participant(metrics, name)), 0.0)
    asked, floats = _of_candidates(metrics, name)
    bytes_of_candidates = n_bytes([len(ids) * n for ids, n in zip(asked, floats, strict=True)] or np.zeros(1))
    return np.cumsum(sent_bytes.sum(axis=1) + bytes_of_candidates) / n_clients / 1e6


def edge_traffic(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Those of `EDGE_TRAFFIC` that a run has."""
    return {
        name: floats for name, floats in EDGE_TRAFFIC.items() if floats in metrics and np.ndim(metrics[floats]) == 1
    }


def seconds_of_rounds(metrics: Mapping[str, Any], link: Link) -> np.ndarray:
    """(rounds,) network time of each round: that of its slowest active participant, because all send at once."""
    participant_seconds = seconds(_per_participant(metrics, "uplink"), _per_participant(metrics, "downlink"), link)
    return np.where(np.asarray(metrics["active"]), participant_seconds, 0.0).max(axis=1)


def _per_participant(metrics: Mapping[str, Any], name: str) -> np.ndarray:
    """(rounds, cohort) floats; one number per round applies to every participant."""
    floats, ids = np.asarray(metrics[name], np.float64), np.asarray(metrics["ids"])
    return np.broadcast_to(floats[:, None] if floats.ndim == 1 else floats, ids.shape)


def _of_candidates(metrics: Mapping[str, Any], name: str) -> tuple[list[np.ndarray], list[float]]:
    """For each round the ids of the clients that were asked for their loss and do not participate, and the floats of
    ``name`` for each of them. Empty lists if the sampling does not ask for losses.
    """
    if "candidates" not in metrics:
        return [], []
    floats, asked, sent = _per_participant(metrics, name), [], []
    columns = [np.asarray(metrics[key]) for key in ("ids", "active", "candidates")]
    for ids, active, candidates, row in zip(*columns, floats, strict=True):
        asked.append(np.setdiff1d(candidates[candidates >= 0], ids[active]))
        sent.append(1.0 if name == "uplink" else float(row[active].mean()) if active.any() else 0.0)
    return asked, sent


def _seconds_each_way(uplink: Floats, downlink: Floats, link: Link) -> tuple[np.ndarray, np.ndarray]:
    for name in ("uplink", "downlink"):
        if not getattr(link, name) > 0:
            raise ValueError(f"{name}={getattr(link, name)} bits per second is not positive; give a rate above 0")
    return 8 * n_bytes(uplink) / link.uplink, 8 * n_bytes(downlink) / link.downlink
