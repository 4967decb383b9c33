"""The clients' optimiser by name: one of fljax, any of optax, or a function of a user's file."""

import inspect
from typing import Any

from fljax.catalogue.file_words import is_file
from fljax.catalogue.job import WORK
from fljax.catalogue.own import find


def check_optimizer(word: str | None) -> None:
    """Raises ValueError if a word names no optimiser of fljax and nothing of optax or of a file."""
    names = _library_names()
    if word is not None and word not in names and not is_file(word) and not word.startswith("optax."):
        choices = "or optax.NAME for one of optax, such as optax.lion, or a function of yours, ./mine.py:name"
        raise ValueError(f"optimizer={word!r} is unknown; choose one of {', '.join(map(repr, names))}, {choices}")


def optimizer_of(word: str) -> Any:
    """The value of `Work.optimizer` for a word: one of fljax, ``optax.NAME``, or a function of a user's file.

    Raises:
        ValueError: there is no such optimiser, or its file cannot be read or run.
    """
    check_optimizer(word)
    if word in _library_names():
        return word
    if is_file(word):
        return find("optimizer", word)
    import optax

    optimizer = getattr(optax, name := word.removeprefix("optax."), None)
    if not inspect.isfunction(optimizer):
        raise ValueError(f"--optimizer {word}: optax has no optimiser {name!r}; choose one such as optax.lion")
    return optimizer


def _library_names() -> list[str]:
    """The optimisers of fljax."""
    return [part[1] for part in WORK["optimizer"].kind if part[0] == "option"]
