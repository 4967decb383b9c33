"""Ctrl-C and SIGTERM: one that Python ignored comes again, and one that ends a command says how to go on."""

import _thread
import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
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


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came, which ends a command as Ctrl-C does."""


@contextlib.contextmanager
def saying_how_to_go_on(command: str, folder: Path, rest: str = "") -> Iterator[None]:
    """Where Ctrl-C or SIGTERM ends what is inside it, says how to go on, in a line that can be copied."""

    def terminated(*_: Any) -> None:
        raise TerminatedError

    usual = signal.getsignal(signal.SIGTERM)
    is_ours = usual is signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if is_ours:
        signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    except KeyboardInterrupt as asked:
        print(f"stopped; fljax {command} --folder {shlex.quote(str(folder))}{rest} goes on", flush=True)
        if isinstance(asked, TerminatedError):
            signal.signal(signal.SIGTERM, usual)
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, usual)
