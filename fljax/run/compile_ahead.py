"""Compiling the methods of a job side by side, while earlier ones run."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from fljax.devices.programs import Compile
from fljax.run.arguments import Arguments, called
from fljax.run.chunk import prepared

NAME = "fljax compiles ahead"
"""Name of the threads."""


def still_compiles() -> bool:
    """Whether such a thread is running: a thread inside the compiler aborts the process when the interpreter ends."""
    return any(thread.name == NAME for thread in threading.enumerate())


def compile_ahead(
    *, folder: str | Path | None = None, compile: Compile = "auto", program: str | None = None, **run: Unpack[Arguments]
) -> None:
    """Compiles what `train` with the same arguments will need, in another thread while something else runs."""
    with called(**run) as call:
        prepared(call.algorithm, call.draw, call.numbers, compile, program, None if folder is None else Path(folder))


class Ahead:
    """Threads, one per core, that compile the runs' programs in order; `wait` for a run's programs before running it.

    ``compile`` is called with the arguments of each of ``runs`` by name.
    """

    def __init__(self, runs: dict[str, dict[str, Any]], compile: Callable[..., None] = compile_ahead) -> None:
        self.runs, self.compile, self.todo, self.lock = runs, compile, list(runs), threading.Lock()
        self.ready = {name: threading.Event() for name in runs}
        self.seconds = dict.fromkeys(runs, 0.0)
        for _ in range(min(os.cpu_count() or 1, len(runs)) if len(runs) > 1 else 0):
            # Daemon threads: a job that is stopped does not wait for the compiler.
            threading.Thread(target=self._compile, daemon=True, name=NAME).start()

    def _compile(self) -> None:
        while (name := self._next()) is not None:
            began = time.perf_counter()
            try:
                self.compile(**self.runs[name])
            except Exception:
                pass  # the run itself compiles again and raises the error
            finally:
                self.seconds[name] = time.perf_counter() - began
                self.ready[name].set()

    def _next(self) -> str | None:
        with self.lock:
            return self.todo.pop(0) if self.todo else None

    def wait(self, name: str) -> float:
        """Waits until a run's programs are compiled; returns the seconds that this took."""
        if len(self.runs) > 1:
            self.ready[name].wait()
        return self.seconds[name]
