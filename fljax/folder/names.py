"""The names of clients, classes, inputs and words: a folder's names.json."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.sealed import checksum_of


def names_as_json(
    clients: Sequence[str],
    classes: Sequence[str],
    scales: Mapping[str, Any] | None = None,
    new_clients: Sequence[str] = (),
    inputs: Sequence[str] = (),
    words: Sequence[str] = (),
) -> str:
    """The text of names.json: names of clients and classes, `LoadedRun.scales`, `inputs`, `words`, and a checksum."""
    content: dict[str, Any] = {"clients": clients, "classes": classes, "scales": scales or {}}
    content |= {name: entry for name, entry in zip(_MAY_HAVE, (new_clients, inputs, words), strict=True) if entry}
    return json.dumps(content | {"checksum": checksum_of([*content.values()])}) + "\n"


_MAY_HAVE = ("new_clients", "inputs", "words")
"""Entries that a names.json has only if they are not empty."""


class Names(NamedTuple):
    """The content of a names.json."""

    clients: tuple[str, ...]
    scales: dict[str, dict[str, np.ndarray]]
    inputs: tuple[str, ...]
    classes: tuple[str, ...]
    words: tuple[str, ...]
    new_clients: tuple[str, ...] = ()


def names_of(content: Any) -> Names:
    """The names and scales in the content of a names.json.

    Raises:
        ValueError: it has changed since it was written.
        KeyError: an entry is missing.
        TypeError: it has another structure.
    """
    clients, classes, scales = (content[name] for name in ("clients", "classes", "scales"))
    optional = [content[name] for name in _MAY_HAVE if name in content]
    if content.get("checksum") != checksum_of([clients, classes, scales, *optional]):
        raise ValueError("the checksum is wrong")
    numbers = {
        what: {name: np.asarray(value, np.float32) for name, value in scale.items()} for what, scale in scales.items()
    }
    new_clients, inputs, words = (tuple(content.get(name, ())) for name in _MAY_HAVE)
    return Names(tuple(clients), numbers, inputs, tuple(classes), words, new_clients)


def read_names(folder: Path) -> Names:
    """The names in a results folder; empty if it has no such file.

    Raises:
        ValueError: the file has changed since it was written.
    """
    path = folder / "names.json"
    if not path.exists():
        return Names((), {}, (), (), ())
    try:
        return names_of(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} has changed since it was written; run again into another folder") from None
