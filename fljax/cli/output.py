"""Standard output as commands write to it: closed, on a full disk or without some letters, it stops no run."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class Output:
    """What `sys.stdout` was: the first time that it cannot be written is kept, and all that comes then is dropped."""

    def __init__(self, file: Any) -> None:
        self.file, self.error = file, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        """Writes ``text``, without letters that the encoding does not have."""
        encoding = self.file.encoding or "utf-8"
        try:
            text.encode(encoding, self.file.errors or "strict")
        except UnicodeEncodeError:
            text = text.replace("±", "+-").encode(encoding, "replace").decode(encoding)
        self._try(lambda: self.file.write(text))
        return len(text)

    def flush(self) -> None:
        """Sees that all is written."""
        self._try(self.file.flush)

    def _try(self, write: Any) -> None:
        try:
            write()
        except BrokenPipeError:  # whoever read it has enough
            raise
        except OSError as error:
            self.error = error
            self.drop()

    def drop(self) -> None:
        """Drops what is in the buffer, which the interpreter would write at its end, and all that comes."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


@contextlib.contextmanager
def steady() -> Iterator[Output]:
    """Inside it `sys.stdout` is an `Output`, also where it is closed."""
    with contextlib.ExitStack() as stack:
        output = Output(sys.stdout or stack.enter_context(open(os.devnull, "w")))
        stack.enter_context(contextlib.redirect_stdout(output))
        yield output
