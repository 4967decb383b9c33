"""The progress of a run: a bar with rounds per second and the latest accuracy, or nothing."""

import sys
import time
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from fljax.metrics.headline import measures_of

SECONDS_A_LINE = 60.0
"""Least time between two lines where no bar can be drawn."""


class Progress(Protocol):
    """Called by `fljax.run.train.train` during a run."""

    def prepare(self) -> None:
        """The run's programs are about to be compiled, or read."""
        ...

    def start(self, done: int, n_rounds: int) -> None:
        """The run begins, or is resumed after ``done`` rounds."""
        ...

    def chunk(self, done: int, metrics: dict[str, np.ndarray], rounds_per_second: float) -> None:
        """A chunk has ended; ``metrics`` are those of its rounds, ``rounds_per_second`` is NaN while unknown."""
        ...

    def stop(self) -> None:
        """The run has ended."""
        ...


def checked_progress(progress: Progress | None) -> Progress:
    """``progress``; for None one that shows nothing.

    Raises:
        ValueError: it lacks a method of `Progress`.
    """
    if progress is None:
        return SilentProgress()
    if not all(callable(getattr(progress, name, None)) for name in ("prepare", "start", "chunk", "stop")):
        kind = type(progress).__name__
        remedy = "for a logger of rounds give fljax.run.logging.LogProgress([logger])"
        raise ValueError(f"progress is of type {kind}, without prepare, start, chunk and stop; {remedy}")
    return progress


class SilentProgress:
    """Shows nothing."""

    def prepare(self) -> None:
        """Nothing."""

    def start(self, done: int, n_rounds: int) -> None:
        """Nothing."""

    def chunk(self, done: int, metrics: dict[str, np.ndarray], rounds_per_second: float) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class BarProgress:
    """A live bar with a ``title``; where none can be drawn, as in a file, one line per minute and one at the end.

    ``FORCE_COLOR``, which CI services and notebooks set, means colours alone: it draws no bar into a file or a pipe.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        columns = (
            TextColumn("{task.description:<12}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _State(Column(no_wrap=True)),
            TimeRemainingColumn(),
        )
        console = console or Console(force_interactive=None if sys.stdout.isatty() else False)
        self.title, self.bar = title, RichProgress(*columns, console=console)
        self.task = self.bar.add_task(title, total=None, state=COMPILING, accuracy="")
        self.printed_at = time.monotonic()

    def prepare(self) -> None:
        """Draws the bar, which shows the seconds until the first round."""
        self.bar.reset(self.task, state=COMPILING, accuracy="")
        self.bar.start()

    def start(self, done: int, n_rounds: int) -> None:
        """Shows the rounds."""
        self.bar.start()
        self.bar.reset(self.task, state="" if done < n_rounds else "already done", accuracy="")
        self.bar.update(self.task, total=n_rounds, completed=done)

    def chunk(self, done: int, metrics: dict[str, np.ndarray], rounds_per_second: float) -> None:
        """Moves the bar; warns once per chunk about results that are not finite."""
        fields: dict[str, Any] = {}
        if np.isfinite(rounds_per_second):
            fields["state"] = f"{rounds_per_second:.1f} rounds/s"
        measures = measures_of(metrics)
        score = metrics[measures.headline]
        tested = score[np.isfinite(score)]
        if len(tested):
            fields["accuracy"] = f"{measures.word} {tested[-1]:.4f}"
        self.bar.update(self.task, completed=done, **fields)
        self._print_line(done, fields)
        is_left_out = metrics["active"] & ~metrics["ok"]
        if n_left_out := int(is_left_out.sum()):
            round = done - len(is_left_out) + int(np.argmax(is_left_out.any(axis=1))) + 1  # as tables count
            self.bar.console.print(
                f"{self.title}: {n_left_out} client results were not finite and were left out, first in round {round}; "
                "a lower learning rate may help",
                markup=False,
            )

    def _print_line(self, done: int, fields: dict[str, str]) -> None:
        """Prints a line if no bar can be drawn, as in a job's log file."""
        console = self.bar.console
        is_drawn = console.is_jupyter or console.is_interactive
        if not is_drawn and time.monotonic() - self.printed_at >= SECONDS_A_LINE:
            self.printed_at, n_rounds = time.monotonic(), self.bar.tasks[self.task].total
            line = ", ".join([f"{self.title}: {done} of {n_rounds:g} rounds", *fields.values()])
            console.print(line, markup=False)

    def stop(self) -> None:
        """Leaves the finished bar on the screen."""
        self.bar.stop()


COMPILING = "compiling"


class _State(ProgressColumn):
    """The state of the run: the seconds of compiling so far; or its rounds per second and accuracy."""

    def render(self, task: Task) -> Text:
        state, accuracy = task.fields["state"], task.fields["accuracy"]
        if state == COMPILING:
            state = f"{COMPILING} {task.elapsed or 0:.0f} s"
        return Text(f"{state:>14}  {accuracy}")
