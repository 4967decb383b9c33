"""Ctrl-C and SIGTERM: one that Python ignored is raised again, and one that ends a command prints how to resume."""

import _thread
import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

SECONDS = 0.05
"""Delay before it is raised again: by then the code that ignored it has ended."""


def interrupt(number: signal.Signals) -> None:
    """Sends the signal to the main thread, which wakes it where it waits, for a file or a process for example.

    Windows has no signals between threads: there the main thread sees it when it runs Python again.
    """
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(cast(int, threading.main_thread().ident), number)
    else:
        _thread.interrupt_main(number)


@contextlib.contextmanager
def come_again() -> Iterator[None]:
    """Raises a Ctrl-C or SIGTERM again, a moment later, if Python ignored its KeyboardInterrupt ("Exception ignored
    in" on stderr).

    Python ignores exceptions in callbacks of its garbage collector, of which JAX has one, and in finalisers; the job
    would continue though the user has stopped it.
    """

    def ignored(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            number = signal.SIGINT if unraisable.exc_type is KeyboardInterrupt else signal.SIGTERM
            timer = threading.Timer(SECONDS, interrupt, (number,))
            timer.daemon = True
            timer.start()
        else:
            usual_hook(unraisable)

    usual_hook, sys.unraisablehook = sys.unraisablehook, ignored
    try:
        yield
    finally:
        sys.unraisablehook = usual_hook


class TerminatedError(KeyboardInterrupt):
    """A SIGTERM arrived, which ends a command as Ctrl-C does."""


@contextlib.contextmanager
def saying_how_to_go_on(command: str, folder: Path, rest: str = "") -> Iterator[None]:
    """If Ctrl-C or SIGTERM ends the block, prints the command that resumes it, in one line to copy."""

    def terminated(*_: Any) -> None:
        raise TerminatedError

    usual_handler = signal.getsignal(signal.SIGTERM)
    is_ours = usual_handler is signal.SIG_DFL and threading.current_thread() is threading.main_thread()
    if is_ours:
        signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    except KeyboardInterrupt as interrupt:
        print(f"stopped; resume with: fljax {command} --folder {shlex.quote(str(folder))}{rest}", flush=True)
        if isinstance(interrupt, TerminatedError):
            signal.signal(signal.SIGTERM, usual_handler)
            signal.raise_signal(signal.SIGTERM)
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, usual_handler)
