"""The speed of clients: steps and bytes per second, and the simulated seconds of each client's round."""

import csv
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive, Seed
from fljax.client.minibatches import n_batches
from fljax.client.steps import n_steps
from fljax.data.own.csv_files import opened
from fljax.files import as_path, naming
from fljax.ranges import real
from fljax.rounds.per_client import numbers_of_clients
from fljax.types import ClientData, Work

BYTES_A_FLOAT = 4


def seconds_of_clients(values: Any) -> tuple[float, ...]:
    """(clients,) seconds of each client's round, as floats.

    Raises:
        ValueError: they are not numbers, not one-dimensional, or one is negative or not finite.
    """
    row = numbers_of_clients("seconds", values)
    for i, seconds in enumerate(row):
        if not 0 <= seconds < math.inf:
            raise ValueError(f"seconds={seconds:g} of client {i}: choose finite seconds >= 0")
    return row


class Devices(NamedTuple):
    """The clients' devices, one number per client; static."""

    speed: tuple[float, ...]  # local steps per second
    up: tuple[float, ...]  # bytes per second to the server
    down: tuple[float, ...]  # bytes per second from the server
    available: tuple[float, ...] = ()  # probability that a sampled client is available; (): always

    def seconds(self, data: ClientData, work: Work, n_floats: float, n_back: float | None = None) -> np.ndarray:
        """Seconds from the start of a client's download to the end of its upload, (clients,) float64.

        Args:
            data: the clients' training rows.
            work: local work: its epochs and batches determine the steps.
            n_floats: floats down, such as the metric ``downlink``.
            n_back: floats up; None: ``n_floats``.

        Raises:
            ValueError: there are more or fewer devices than clients.
        """
        n_up = n_floats if n_back is None else n_back
        return self._seconds(n_steps(self._sizes(data), work), n_floats, n_up)

    def asking(self, data: ClientData, work: Work, n_floats: float, examples: int | None = None) -> np.ndarray:
        """Seconds in which a client receives a model, computes its loss and sends that, (clients,) float64.

        A forward pass takes a third of a local step.

        Args:
            data: the clients' training rows.
            work: local work, whose batches are those of a step.
            n_floats: floats down, such as the metric ``downlink``.
            examples: number of its examples on which a client computes its loss; None: all.

        Raises:
            ValueError: there are more or fewer devices than clients.
        """
        size = self._sizes(data)
        share = 1.0 if examples is None else np.minimum(examples / np.maximum(size, 1), 1.0)
        return self._seconds(share * n_batches(size, work.batch_size) / 3, n_floats, 1)

    def _sizes(self, data: ClientData) -> np.ndarray:
        size = np.asarray(data.size, np.int64)
        if len(size) != len(self.speed):
            raise ValueError(f"{len(self.speed)} devices for {len(size)} clients; give one per client")
        return size

    def _seconds(self, steps: np.ndarray, n_floats: float, n_up: float) -> np.ndarray:
        return (
            steps / np.asarray(self.speed)
            + BYTES_A_FLOAT * n_floats / np.asarray(self.down)
            + BYTES_A_FLOAT * n_up / np.asarray(self.up)
        )


def devices(speed: ArrayLike, up: ArrayLike = 1e6, down: ArrayLike = 1e7, available: ArrayLike = 1.0) -> Devices:
    """Devices with these steps and bytes per second and probabilities of availability: one number, or one per client.

    Raises:
        ValueError: a device would never finish or is never available.
    """
    n_clients = len(numbers_of_clients("speed", speed))
    rows = {name: _per_client(name, value, n_clients) for name, value in zip(_FIELDS, (speed, up, down), strict=True)}
    for name, row in rows.items():
        for i in np.flatnonzero(~(row > 0) | ~np.isfinite(row)):
            raise ValueError(f"{name}={row[i]:g} of client {i} is not a speed; choose {name} > 0")
    chances = _per_client("available", available, n_clients)
    for i in np.flatnonzero(~((chances > 0) & (chances <= 1))):
        raise ValueError(f"available={chances[i]:g} of client {i} is not a probability; choose 0 < available <= 1")
    return Devices(*(tuple(map(float, row)) for row in (*rows.values(), chances)))


def _per_client(name: str, value: Any, n_clients: int) -> np.ndarray:
    """(n,) numbers, from one for all clients or one per client."""
    try:
        return np.broadcast_to(np.asarray(value, np.float64), n_clients)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r}: give a number for all clients, or one for each of {n_clients}") from None


@checked_kinds
def drawn_devices(
    n_clients: Positive,
    *,
    speed: float = 20.0,
    up: float = 1e6,
    down: float = 1e7,
    available: float = 1.0,
    spread: float = 0.5,
    seed: Seed = 0,
) -> Devices:
    """Devices whose speeds are log-normal about the given medians.

    Args:
        n_clients: number of devices.
        speed: median of the local steps per second.
        up: median of the bytes per second to the server.
        down: median of the bytes per second from the server.
        available: probability that a sampled client is available.
        spread: standard deviation of each logarithm; 0: all equal.
        seed: of the draw.

    Raises:
        ValueError: no clients, a device that would never finish or is never available, or a spread below 0.
    """
    if not 0 <= real("spread", spread) < math.inf:
        raise ValueError(f"spread={spread} is out of its range; choose a finite spread >= 0")
    draws = np.random.default_rng(seed).normal(0, spread, (3, n_clients))
    rows = (median * np.exp(row) for median, row in zip((speed, up, down), draws, strict=True))
    return devices(*rows, available=available)


def devices_of_file(path: str | Path) -> Devices:
    """Devices of a trace: a CSV file with the columns ``speed``, ``up`` and ``down``, and one row per client.

    An optional column ``available`` has the probabilities that clients are available; without it, they always are.
    The file may be packed by gzip, as ``.csv.gz``.

    Raises:
        ValueError: ``path`` is no path, the file is not a table, a column or a number is missing, or a device would
            never finish.
    """
    with naming(path), opened(as_path("path", path)) as file:
        rows = list(csv.DictReader(file))
    try:
        names = (*_FIELDS, "available") if rows and "available" in rows[0] else _FIELDS
        columns = [np.asarray([float(row[name]) for row in rows]) for name in names]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{path}: give a number in each of the columns {', '.join(_FIELDS)}") from None
    with naming(path):
        return devices(*columns)


_FIELDS = ("speed", "up", "down")
