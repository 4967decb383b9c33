"""Ending when asked to: a batch system's SIGTERM is put off until the checkpoint is written."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any] | int | None


class Termination:
    """Whether SIGTERM has come, and how to end as it asks."""

    def __init__(self) -> None:
        self.asked, self._former = False, signal.getsignal(signal.SIGTERM)

    def hold(self) -> None:
        """From here the signal is only noted; a second one does at once what it did before."""
        self.asked = False
        signal.signal(signal.SIGTERM, self._note)

    def end(self) -> None:
        """Does what the signal did before; comes back where that lets the process live."""
        self.release()
        signal.raise_signal(signal.SIGTERM)

    def release(self) -> None:
        """The signal does what it did before."""
        signal.signal(signal.SIGTERM, self._former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.end()
        self.asked = True


@contextlib.contextmanager
def put_off(wanted: bool) -> Iterator[Termination | None]:
    """Inside it SIGTERM is only noted; its handler is restored afterwards, and one that came late is passed on.

    None is yielded, and nothing changed, where it is not ``wanted``, off the main thread (Python handles signals in
    that alone) and where SIGTERM is ignored or handled by something that is not Python.
    """
    main = threading.current_thread() is threading.main_thread()
    if not wanted or not main or signal.getsignal(signal.SIGTERM) in (signal.SIG_IGN, None):
        yield None
        return
    termination = Termination()
    termination.hold()
    try:
        yield termination
    finally:
        termination.release()
        if termination.asked:
            signal.raise_signal(signal.SIGTERM)
