"""A file changed at random many times, and read each time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.robustness.mutate import WAYS
from tests.robustness.tally import Tally


def campaign(
    name: str, file: Path, call: Callable, is_right: Callable[[Any], bool], count: int, capsys: Any, in_error: object
) -> None:
    """``count`` changes of ``file``: what ``call`` reads passes ``is_right``, or its error has ``in_error``."""
    content, rng, tally = file.read_bytes(), np.random.default_rng(sum(name.encode())), Tally(name)
    for i in range(count):
        way = WAYS[i % len(WAYS)]
        file.write_bytes(way(rng, content))
        tally.attempt(f"{way.__name__} {i}", call, is_right, in_error)
    file.write_bytes(content)
    tally.close(capsys)


def same(first: Any, second: Any) -> bool:
    """Whether two trees are equal bit for bit."""
    a, b = (jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), tree) for tree in (first, second))
    return a == b
