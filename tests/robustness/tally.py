"""What became of attempts to break something: refused in one line, gone on as if nothing had been, or a fault."""

import os
from collections.abc import Callable
from typing import Any


class Tally:
    """Counts of one kind of attempt; `line` says them."""

    def __init__(self, name: str) -> None:
        self.name, self.tried, self.refused, self.clean, self.faults = name, 0, 0, 0, []

    def attempt(
        self, name: str, call: Callable[[], Any], is_right: Callable[[Any], bool], in_error: object = ""
    ) -> None:
        """One attempt: a ValueError or OSError in one line with ``in_error``, or a result that passes ``is_right``."""
        self.tried += 1
        try:
            result = call()
        except (ValueError, OSError) as error:
            text = str(error)
            if "\n" in text or str(in_error) not in text or len(text) > 1000:
                self.faults.append(f"{name}: {type(error).__name__}: {text[:500]}")
            else:
                self.refused += 1
        except Exception as error:
            self.faults.append(f"{name}: {type(error).__name__}: {str(error)[:500]}")
        else:
            if is_right(result):
                self.clean += 1
            else:
                self.faults.append(f"{name}: went unnoticed")

    def line(self) -> str:
        """tried / one-line error / clean / fault."""
        counts = (
            f"tried {self.tried:5}  one-line error {self.refused:5}  clean {self.clean:5}  fault {len(self.faults)}"
        )
        return f"{self.name:28} {counts}"

    def close(self, capsys: Any) -> None:
        """Prints the line, whatever pytest does with output, and fails where there was a fault."""
        with capsys.disabled():
            print(f"\n{self.line()}", flush=True)
        assert not self.faults, "\n".join(self.faults[:20])


def cases(n_slow: int) -> int:
    """How many cases of a kind: the environment variable FLJAX_CASES, or ``slow``."""
    return int(os.environ.get("FLJAX_CASES") or n_slow)
