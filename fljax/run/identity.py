"""What makes a run this run and no other: what must be equal for a folder's run to be gone on with."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fljax.types import Algorithm, Federation, Key, Work


def run_identity(
    algorithm: Algorithm,
    hyper: NamedTuple,
    federation: Federation,
    key: Key,
    size: int,
    evaluate_every: int,
    dropout: float | None,
) -> dict[str, Any]:
    """Everything that a run's numbers depend on but the number of rounds, as plain values by name."""
    sizes = np.asarray(federation.train.size)
    numbers = {f"hyper.{name}": None if value is None else float(value) for name, value in hyper._asdict().items()}
    return {
        "algorithm": algorithm.init.__module__.rpartition(".")[2],
        **_static_choices(algorithm),
        **numbers,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "cohort": size,
        "evaluate_every": evaluate_every,
        "dropout": dropout,
        "n_clients": len(sizes),
        "n_examples": int(sizes.sum()),
        "data": _checksum(federation),
    }


def _static_choices(algorithm: Algorithm) -> dict[str, Any]:
    """The factory's arguments that are plain values, read from what the algorithm's functions close over.

    An algorithm is only its functions, so that is where its epochs, batch size or number of clusters are.
    """
    choices: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[Callable] = [algorithm.init, algorithm.round, algorithm.deploy]
    while waiting:
        function = waiting.pop()
        if id(function) in seen or not hasattr(function, "__code__"):
            continue
        seen.add(id(function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            value = cell.cell_contents
            if isinstance(value, Work):
                # Clients side by side change no result, so a run may go on with another `at_once`.
                choices |= {f"work.{field}": v for field, v in value._asdict().items() if field != "at_once"}
            elif isinstance(value, bool | int | float | str):
                choices[name] = value
            elif callable(value):
                waiting.append(value)
    return dict(sorted(choices.items()))


def _checksum(federation: Federation) -> int:
    """A checksum of who owns what and of the labels; pixels are left out for speed."""
    checksum = 0
    for data in (federation.train, federation.test):
        for array in (data.index, data.size, data.pool.y):
            checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
    return checksum
