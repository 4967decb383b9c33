"""The host's work between chunks of a run: chunk lengths, files, progress, checkpoints, and the end."""

import contextlib
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np

from fljax.devices import hosts
from fljax.placement import on_device
from fljax.run.chunk import most_rounds
from fljax.run.patience import Ender
from fljax.run.progress import Progress
from fljax.run.termination import Termination


class LoopRecord(Protocol):
    """What the loop tells of its rounds: `fljax.run.record.Record` of one run, others of several."""

    folder: Path | None

    @property
    def round(self) -> int:
        """Rounds made."""
        ...

    @property
    def n_clients(self) -> int:
        """Clients of all runs together."""
        ...

    def took(self, metrics: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Receives a chunk's metrics (rounds, ...), and returns those for the progress."""
        ...

    def spend(self, seconds: float) -> None:
        """Counts the seconds of a chunk."""
        ...

    def write(self) -> None:
        """Writes the last chunk's rounds."""
        ...

    def save(self, state: Any, /) -> None:
        """Begins to write a checkpoint with this state, on the host."""
        ...

    def settle(self) -> None:
        """Waits until the last checkpoint is on the disk."""
        ...

    def finished(self, state: Any, rate: float, /) -> Any:
        """The result."""
        ...


class Loop(NamedTuple):
    """The host's loop over chunks."""

    record: LoopRecord
    seconds_per_chunk: float
    seconds_per_checkpoint: float
    progress: Progress
    asked: Termination | None
    enders: Sequence[Ender] = ()  # may end the run before its last round

    def run(self, chunk: Any, state: Any, n_rounds: int) -> Any:
        """Makes the rounds from the record's round to ``n_rounds`` with ``chunk``; returns the record's result."""
        pace = Pace(self.seconds_per_chunk, most_rounds(self.record.n_clients))
        # Ctrl-C is delayed from here on; before the rounds, during compilation, it loses nothing.
        with contextlib.nullcontext() if self.asked is None else self.asked.held(signal.SIGINT):
            self.progress.start(self.record.round, n_rounds)
            try:
                state = self._chunks(chunk, state, n_rounds, pace)
            finally:
                try:
                    self.record.settle()  # whatever ended the rounds, so that the next writer finds no other at work
                finally:
                    self.progress.stop()
            return self.record.finished(state, pace.rounds_per_second())

    def _chunks(self, chunk: Any, state: Any, n_rounds: int, pace: "Pace") -> Any:
        record, files_wanted = self.record, self.record.folder is not None
        saved_at = counted_at = time.perf_counter()
        while record.round < (until := self._until(n_rounds)):
            count = min(pace.rounds(), until - record.round)
            began = time.perf_counter()
            with hosts.others_alive(record.round, n_rounds):
                (count,) = hosts.agreed(count)
                state, metrics = chunk(state, on_device(record.round, jnp.int32), on_device(count, jnp.int32))
                # Copies, because a view of a few rounds would keep the whole array of the program alive.
                metrics = {name: value[:count].copy() for name, value in hosts.gathered(metrics).items()}
                pace.took(count, time.perf_counter() - began)
                metrics = record.took(metrics)
                for ender in self.enders:
                    ender.took(metrics)
                is_ending = files_wanted and any(hosts.from_all_hosts(int(self._is_asked())))
                is_last, waited = record.round == self._until(n_rounds), time.perf_counter() - saved_at
                should_save = is_ending or is_last or waited > self.seconds_per_checkpoint
                (save,) = hosts.agreed(int(should_save and files_wanted))
                host_state = hosts.gathered(state) if save else None
            self.progress.chunk(record.round, metrics, pace.rounds_per_second())
            record.write()
            now = time.perf_counter()
            record.spend(now - counted_at)
            counted_at = now
            if host_state is not None:
                record.save(host_state)
            saved_at = time.perf_counter() if save else saved_at
            if is_ending:
                self._end(record.round, n_rounds)
        return state

    def _until(self, n_rounds: int) -> int:
        return min([n_rounds, *(ender.until(n_rounds) for ender in self.enders)])

    def _is_asked(self) -> bool:
        return self.asked is not None and self.asked.asked

    def _end(self, first: int, n_rounds: int) -> None:
        """Ends the process if this host received the signal; continues if its handler returns, or another host received
        it."""
        self.record.settle()
        hosts.all_there("checkpoint written")
        if self.asked is not None and self.asked.asked:
            self.progress.stop()  # or a live bar would leave the terminal's cursor hidden
            self.asked.end()
            self.progress.start(first, n_rounds)


class Pace:
    """The number of rounds in a chunk of about the wanted length, measured without the first chunk, which warms up."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.n_chunks, self.steady, self.n_steady = 0, 0.0, 0

    def took(self, count: int, seconds: float) -> None:
        """A chunk of ``count`` rounds took ``seconds``."""
        self.n_chunks += 1
        if self.n_chunks > 1:
            self.steady, self.n_steady = self.steady + seconds, self.n_steady + count

    def rounds_per_second(self) -> float:
        """Rounds per second without the first chunk; NaN if there was no other."""
        return self.n_steady / self.steady if self.steady > 0 else float("nan")

    def rounds(self) -> int:
        """The number of rounds of the next chunk."""
        if not self.steady > 0:  # nothing was measured, or the clock stood still or was set back
            return 1
        return int(np.clip(self.rounds_per_second() * self.seconds, 1, self.most))
