"""Ending when asked to: a batch system's SIGTERM, and a user's Ctrl-C, are put off until the checkpoint is written."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


class Termination:
    """Which signals have come, and how to end as they ask."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._former: dict[int, Handler] = {}

    @property
    def asked(self) -> bool:
        """Whether any has come."""
        return bool(self._came)

    @contextlib.contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Inside it the signal is only noted, and a second one does at once what it did before.

        Its handler is restored afterwards, and one that came late is passed on. Nothing changes where the signal is
        ignored or handled by something that is not Python.
        """
        former = signal.getsignal(number)
        if former in (signal.SIG_IGN, None):
            yield
            return
        self._former[number] = former
        signal.signal(number, self._note)
        try:
            yield
        finally:
            signal.signal(number, former)
            if number in self._came:
                self._came.remove(number)
                signal.raise_signal(number)

    def end(self) -> None:
        """Does what the signals did before; comes back where that lets the process live, and notes them again."""
        while self._came:
            self._pass_on(self._came[0])

    def _pass_on(self, number: int) -> None:
        self._came.remove(number)
        signal.signal(number, self._former[number])
        signal.raise_signal(number)
        signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in self._came:
            self._pass_on(number)
            return
        self._came.append(number)
        if number == signal.SIGINT:  # somebody waits
            with contextlib.suppress(RuntimeError, OSError):  # it came amid another line, or nobody reads
                print("fljax: saving after these rounds; Ctrl-C again stops at once", file=sys.stderr, flush=True)


@contextlib.contextmanager
def put_off(wanted: bool) -> Iterator[Termination | None]:
    """Inside it SIGTERM is only noted (`Termination.held`); of Ctrl-C that is for the rounds to say.

    None is yielded, and nothing changed, where it is not ``wanted`` and off the main thread (Python handles signals in
    that alone).
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield None
        return
    termination = Termination()
    with termination.held(signal.SIGTERM):
        yield termination
