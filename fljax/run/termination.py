"""A batch system's SIGTERM and a user's Ctrl-C are delayed until the checkpoint is written."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


class Termination:
    """The signals that have arrived, and how to end the process as they ask."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._former: dict[int, Handler] = {}

    @property
    def asked(self) -> bool:
        """Whether a signal has arrived."""
        return bool(self._came)

    @contextlib.contextmanager
    def held(self, number: int) -> Iterator[None]:
        """Only notes the signal in the block; a second one has its former effect at once.

        The former handler is restored afterwards, and a signal that was noted is passed on to it. Nothing changes if
        the signal is ignored or is not handled by Python.
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
        """Passes the signals to their former handlers; if these let the process live, returns and notes signals
        again."""
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
        if number == signal.SIGINT:  # a user waits
            with contextlib.suppress(RuntimeError, OSError):  # it interrupted another print, or nobody reads stderr
                print("fljax: saving after these rounds; Ctrl-C again stops at once", file=sys.stderr, flush=True)


@contextlib.contextmanager
def put_off(wanted: bool) -> Iterator[Termination | None]:
    """Only notes SIGTERM in the block (`Termination.held`); the loop over rounds does the same with Ctrl-C.

    Yields None and changes nothing if it is not ``wanted``, and outside the main thread, in which alone Python handles
    signals.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield None
        return
    termination = Termination()
    with termination.held(signal.SIGTERM):
        yield termination
