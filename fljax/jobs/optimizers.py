"""The clients' optimiser by its word: ours, any of optax's, or a function of a user's file."""

import inspect
from typing import Any

from fljax.catalogue.job import WORK
from fljax.catalogue.own import find, is_file


def check_optimizer(word: str | None) -> None:
    """Raises ValueError where a word names no optimiser: none of ours, and nothing of optax or of a file."""
    known = _named()
    if word is not None and word not in known and not is_file(word) and not word.startswith("optax."):
        others = "or of optax optax.NAME, such as optax.lion, or a function of yours, ./mine.py:name"
        raise ValueError(f"optimizer={word!r} is unknown; choose one of {', '.join(map(repr, known))}, {others}")


def optimizer_of(word: str) -> Any:
    """What `Work.optimizer` is by its word: one of ours, ``optax.NAME``, or a function of a user's file.

    Raises:
        ValueError: there is none, or its file cannot be read or run.
    """
    check_optimizer(word)
    if word in _named():
        return word
    if is_file(word):
        return find("optimizer", word)
    import optax

    found = getattr(optax, name := word.removeprefix("optax."), None)
    if not inspect.isfunction(found):
        raise ValueError(f"--optimizer {word}: optax has no optimiser {name!r}; choose one such as optax.lion")
    return found


def _named() -> list[str]:
    """Those that have names."""
    return [part[1] for part in WORK["optimizer"].kind if part[0] == "option"]
