"""Runs in folders that go on where they were stopped, tested in their last rounds, and how long they took in all."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from fljax.run.progress import Progress, SilentProgress
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
    train_options: dict[str, Any] = {"seconds_per_checkpoint": 120.0, "seconds_per_chunk": 30.0} | options
    shown_progress = SilentProgress() if progress is None else progress

    def until(stop: int) -> Run:
        return train(
            algorithm,
            hyper,
            federation,
            key,
            stop,
            folder=folder,
            progress=_Timed(folder, shown_progress),
            **train_options,
        )

    for stop in range(first, n_rounds):
        until(stop)
    return until(n_rounds), seconds_taken(folder)


def rounds_done(folder: Path) -> int:
    """Rounds that the folder's run has written; 0 for none."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def seconds_taken(folder: Path) -> float:
    """Seconds of all calls, compilation included, each until its last chunk of rounds ended."""
    file = folder / "seconds.json"
    return float(sum(json.loads(file.read_text()))) if file.exists() else 0.0


def seconds_a_round(folder: Path) -> float:
    """Seconds a round, without compilation, of the rounds between the last two checkpoints.

    A run that stood still earlier, as behind other work, is not told to be slow for it.
    """
    entries = json.loads((folder / "spent.json").read_text())["rounds"]  # (round, seconds until then, compiling)
    (first, before, _), (last, after, _) = [[0, 0.0, 0.0], *entries][-2:]
    return (after - before) / (last - first)


class _Timed:
    """A progress that also writes after every chunk how long the call has taken, for a call may be killed."""

    def __init__(self, folder: Path, shown: Progress) -> None:
        self.file, self.shown, self.begin = folder / "seconds.json", shown, time.perf_counter()
        self.past = json.loads(self.file.read_text()) if self.file.exists() else []
        self.prepare, self.start, self.stop = shown.prepare, shown.start, shown.stop

    def chunk(self, done: int, metrics: dict[str, np.ndarray], rounds_per_second: float) -> None:
        self.file.write_text(json.dumps([*self.past, round(time.perf_counter() - self.begin, 3)]))
        self.shown.chunk(done, metrics, rounds_per_second)
