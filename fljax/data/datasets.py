"""Names of data sets and who reads them."""

import difflib
from collections.abc import Callable
from pathlib import Path

from fljax.data import digits
from fljax.types import Examples

READERS: dict[str, Callable[[Path | None], tuple[Examples, Examples]]] = {"digits": lambda folder: digits.read()}


def load(name: str, folder: str | Path | None = None) -> tuple[Examples, Examples]:
    """The train and test examples of a data set by name."""
    if name not in READERS:
        near = difflib.get_close_matches(name, READERS, n=1, cutoff=0)
        raise ValueError(f"no data set {name!r}; the nearest name is {near[0]!r}")
    return READERS[name](None if folder is None else Path(folder))
