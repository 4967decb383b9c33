"""Standard output of commands: a run does not stop if it is closed, on a full disk, or lacks some characters."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class Output:
    """Wraps `sys.stdout`: keeps the first error of writing to it, and drops all text after that."""

    def __init__(self, file: Any) -> None:
        self.file, self.error = file, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        """Writes ``text``; replaces characters that the encoding does not have."""
        encoding = self.file.encoding or "utf-8"
        try:
            text.encode(encoding, self.file.errors or "strict")
        except UnicodeEncodeError:
            text = text.replace("±", "+-").encode(encoding, "replace").decode(encoding)
        self._try(lambda: self.file.write(text))
        return len(text)

    def flush(self) -> None:
        """Writes what is in the buffer."""
        self._try(self.file.flush)

    def _try(self, write: Any) -> None:
        try:
            write()
        except BrokenPipeError:  # the reader has stopped reading
            raise
        except OSError as error:
            self.error = error  # pyrefly: ignore[bad-assignment] - None before
            self.drop()

    def drop(self) -> None:
        """Drops the buffer, which the interpreter would write at its end, and all later text."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


@contextlib.contextmanager
def steady() -> Iterator[Output]:
    """Makes `sys.stdout` an `Output` inside the block, even if it is closed."""
    with contextlib.ExitStack() as stack:
        output = Output(sys.stdout or stack.enter_context(open(os.devnull, "w")))
        stack.enter_context(contextlib.redirect_stdout(output))
        yield output
