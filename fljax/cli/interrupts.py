"""Ctrl-C that comes where Python ignores exceptions comes again."""

import _thread
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

SECONDS = 0.05
"""After which it comes again: what ignored it is over by then."""


@contextlib.contextmanager
def come_again() -> Iterator[None]:
    """Inside it a Ctrl-C or SIGTERM whose KeyboardInterrupt was ignored, with "Exception ignored in" on stderr, is
    raised once more a moment later.

    Python ignores what is raised in callbacks of its garbage collector, of which JAX has one, and in finalisers: a job
    that was to end would go on.
    """

    def ignored(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            number = signal.SIGINT if what.exc_type is KeyboardInterrupt else signal.SIGTERM
            again = threading.Timer(SECONDS, _thread.interrupt_main, (number,))
            again.daemon = True
            again.start()
        else:
            usual(what)

    usual, sys.unraisablehook = sys.unraisablehook, ignored
    try:
        yield
    finally:
        sys.unraisablehook = usual
