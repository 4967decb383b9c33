"""Runs in folders that go on where they were stopped, tested in their last rounds, and how long they took in all."""

import json
import time
from pathlib import Path
from typing import Any

from jax import Array

from fljax.run.progress import Progress
from fljax.run.record import Run
from fljax.run.train import train
from fljax.types import Algorithm, Federation


def resumed(
    algorithm: Algorithm,
    hyper: Any,
    federation: Federation,
    key: Array,
    n_rounds: int,
    *,
    folder: Path,
    tested_last: int = 1,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Run, float]:
    """The run with the metrics of all rounds, and the seconds of all calls that made them.

    Args:
        algorithm: from `fljax.algorithms`.
        hyper: its numbers.
        federation: the clients.
        key: of the run.
        n_rounds: in all, those done before included.
        folder: of this run alone.
        tested_last: of how many of the last rounds clients are tested after each, whatever ``evaluate_every`` says.
        progress: told of every chunk.
        options: of `fljax.run.train.train`.
    """
    # A run always tests after its last round, and its length is no part of what it is: so it is called for longer and
    # longer runs, each of which goes on with the one before.
    first = min(max(n_rounds - tested_last + 1, rounds_done(folder), 1), n_rounds)
    given: dict[str, Any] = {"seconds_per_checkpoint": 120.0, "seconds_per_chunk": 30.0} | options

    def until(stop: int) -> Run:
        begin, new = time.perf_counter(), rounds_done(folder) < stop
        run = train(algorithm, hyper, federation, key, stop, folder=folder, progress=progress, **given)
        if new:
            _add_seconds(folder, time.perf_counter() - begin)
        return run

    for stop in range(first, n_rounds):
        until(stop)
    return until(n_rounds), seconds_taken(folder)


def rounds_done(folder: Path) -> int:
    """Rounds that the folder's run has written; 0 for none."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def seconds_taken(folder: Path) -> float:
    """Seconds of all finished calls, compilation included; those of a call that was killed are not in it."""
    file = folder / "seconds.json"
    return float(sum(json.loads(file.read_text()))) if file.exists() else 0.0


def _add_seconds(folder: Path, seconds: float) -> None:
    file = folder / "seconds.json"
    past = json.loads(file.read_text()) if file.exists() else []
    file.write_text(json.dumps([*past, round(seconds, 3)]))
