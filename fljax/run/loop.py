"""What the host does between chunks of a run: pace, files, progress, checkpoints, and the end."""

import contextlib
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fljax.placement import on_device
from fljax.run import hosts
from fljax.run.chunk import most_rounds
from fljax.run.patience import Ender
from fljax.run.progress import Progress
from fljax.run.record import Record, Records
from fljax.run.termination import Termination
from fljax.types import State


class Loop(NamedTuple):
    """What the host does between chunks."""

    record: Record | Records
    seconds_per_chunk: float
    seconds_per_checkpoint: float
    progress: Progress
    asked: Termination | None
    enders: Sequence[Ender] = ()  # what may end the run before its last round

    def run(self, chunk: Any, state: State, n_rounds: int) -> Any:
        """The rounds from where the record is to ``n_rounds``, by ``chunk``; a `Run`, or one of each of `Records`."""
        pace = Pace(self.seconds_per_chunk, most_rounds(self.record.n_clients))
        # Ctrl-C is put off from here: before the rounds, while they are compiled, nothing would be lost by it.
        with contextlib.nullcontext() if self.asked is None else self.asked.held(signal.SIGINT):
            self.progress.start(self.record.round, n_rounds)
            try:
                state = self._chunks(chunk, state, n_rounds, pace)
            finally:
                try:
                    self.record.settle()  # whatever ended the rounds: who writes here next must find nobody writing
                finally:
                    self.progress.stop()
            return self.record.finished(state, pace.rounds_per_second())

    def _chunks(self, chunk: Any, state: State, n_rounds: int, pace: "Pace") -> State:
        record, files_wanted = self.record, self.record.folder is not None
        saved = counted = time.perf_counter()
        while record.round < (until := self._until(n_rounds)):
            count = min(pace.rounds(), until - record.round)
            began = time.perf_counter()
            with hosts.others_alive(record.round, n_rounds):
                (count,) = hosts.agreed(count)
                state, metrics = chunk(state, on_device(record.round, jnp.int32), on_device(count, jnp.int32))
                # Copies: a view of a few rounds would keep all that the program has room for.
                metrics = {name: value[:count].copy() for name, value in hosts.gathered(metrics).items()}
                pace.took(count, time.perf_counter() - began)
                metrics = record.took(metrics)
                for ender in self.enders:
                    ender.took(metrics)
                ends = files_wanted and any(hosts.from_all_hosts(int(self._is_asked())))
                is_last, waited = record.round == self._until(n_rounds), time.perf_counter() - saved
                late = ends or is_last or waited > self.seconds_per_checkpoint
                (save,) = hosts.agreed(int(late and files_wanted))
                whole = hosts.gathered(state) if save else None
            self.progress.chunk(record.round, metrics, pace.rounds_per_second())
            record.write()
            now = time.perf_counter()
            record.spend(now - counted)
            counted = now
            if whole is not None:
                record.save(whole)
            saved = time.perf_counter() if save else saved
            if ends:
                self._end(record.round, n_rounds)
        return state

    def _until(self, n_rounds: int) -> int:
        return min([n_rounds, *(ender.until(n_rounds) for ender in self.enders)])

    def _is_asked(self) -> bool:
        return self.asked is not None and self.asked.asked

    def _end(self, first: int, n_rounds: int) -> None:
        """Ends as a signal asks that came to this host; goes on where it comes back, or came to another."""
        self.record.settle()
        hosts.all_there("checkpoint written")
        if self.asked is not None and self.asked.asked:
            self.progress.stop()  # or a live bar would keep the terminal's cursor
            self.asked.end()
            self.progress.start(first, n_rounds)


class Pace:
    """How many rounds make a chunk of about the wanted length; measured without the first chunk, which warms up."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.n_chunks, self.steady, self.n_steady = 0, 0.0, 0

    def took(self, count: int, seconds: float) -> None:
        """A chunk of ``count`` rounds took ``seconds``."""
        self.n_chunks += 1
        if self.n_chunks > 1:
            self.steady, self.n_steady = self.steady + seconds, self.n_steady + count

    def rounds_per_second(self) -> float:
        """Without the first chunk; NaN where there was no other."""
        return self.n_steady / self.steady if self.steady > 0 else float("nan")

    def rounds(self) -> int:
        """Of the next chunk."""
        if not self.steady > 0:  # nothing measured, or by a clock that stood still or was set back
            return 1
        return int(np.clip(self.rounds_per_second() * self.seconds, 1, self.most))
