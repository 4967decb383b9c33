"""All names and their settings as plain data, cached on disk, because listing them must not start JAX.

Everything is read from the library itself at the first request, and again whenever a source file has changed.
"""

import contextlib
import inspect
import json
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import fljax
from fljax.catalogue import own
from fljax.catalogue.file_words import is_file, parts_of
from fljax.catalogue.parameters import Parameter, Section, numbers, parameters
from fljax.catalogue.words import nearest
from fljax.ranges import Number
from fljax.sealed import read_sealed, write_sealed

LEFT_OUT = {
    "algorithm": ("model", "work", "combine"),
    "partition": ("train", "test", "seed"),
    "model": ("input_shape", "n_classes", "rngs", "parent", "name"),
    "sampling": ("participation",),
    "score": ("outputs", "y", "is_there"),
    "attack": (),
    "drift": (),
    "clock": (),
}
"""Parameters that are not settings: they follow from the job, or bricks fill them."""
_STAMP, _NEW = "stamp", "new"


class Entry(NamedTuple):
    """What is known about one name of a job."""

    title: str
    summary: str
    section: Section
    paper: str = ""
    link: str = ""
    group: str = ""  # of a method its kind (which models its clients get), of a brick its slot
    slots: tuple[str, ...] = ()
    heterogeneous: bool = False  # of a method: whether clients can have different networks


@cache
def names(kind: str) -> tuple[str, ...]:
    """The library's names of a kind."""
    return tuple(_cached(f"{kind}s", lambda: list(own.table(kind))))


def by_kind() -> tuple[str, ...]:
    """The library's methods, baselines first."""

    def ordered() -> list[str]:
        from fljax.algorithms import by_kind

        return list(by_kind())

    return tuple(_cached("algorithms by kind", ordered))


def entry(kind: str, word: str) -> Entry:
    """The entry of a word, which may name an object of a user's file; see `fljax.catalogue.own`.

    Raises:
        ValueError: there is none (the message suggests the nearest), or it is of another kind.
    """
    base, *bricks = parts_of(word) if kind == "algorithm" else [word]
    if base not in names(kind) and not is_file(base) and own.entry_point(kind, base) is None:
        if kind == "algorithm" and base in names("brick"):
            raise ValueError(f"{base} is a brick; name a method first, such as fedavg+{base}")
        nearest(base, [*names(kind), *own.installed(kind)], kind)
    if base not in names(kind) or not set(bricks) <= set(names("brick")):
        return describe(kind, own.find(kind, word))
    return _of_fljax(kind, word)


@cache
def _of_fljax(kind: str, word: str) -> Entry:
    """The entry of a word of the library, from the catalogue."""
    cached = _cached(f"{kind} {word}", lambda: _with_lists(describe(kind, own.find(kind, word))))
    title, summary, raw_section, *rest = _with_tuples(cached)
    section = {
        name: Parameter(_with_tuples(word_kind), _with_tuples(default), help, number and Number(*number))
        for name, (word_kind, default, help, number) in raw_section.items()
    }
    return Entry(title, summary, section, *rest)


def is_of_fljax(word: str) -> bool:
    """Whether a word names one of the library's methods, with or without bricks of the library."""
    method, *bricks = parts_of(word)
    return method in names("algorithm") and set(bricks) <= set(names("brick"))


def describe(kind: str, thing: Any) -> Entry:
    """The entry of an object, from its own docstring and signature."""
    if kind == "algorithm":
        section = parameters(thing.factory, LEFT_OUT[kind]) | numbers(thing.Hyper)
        about = (thing.paper, thing.link, thing.kind, tuple(thing.slots), thing.heterogeneous)
        return Entry(thing.title, thing.summary, section, *about)
    if kind == "brick":
        return Entry(thing.name, thing.summary, numbers(thing.Hyper), thing.paper, thing.link, thing.slot)
    summary = (thing.__doc__ or "").strip().partition("\n")[0].replace("`", "")
    name = getattr(thing, "__name__", kind)
    is_function = callable(thing) and (inspect.isfunction(inspect.unwrap(thing)) or inspect.isclass(thing))
    if kind == "model":
        from fljax.models.own import maker

        thing = maker(thing)
    return Entry(name, summary, parameters(thing, LEFT_OUT[kind]) if is_function else {})


def fitting(word: str) -> tuple[str, ...]:
    """The bricks that can be put into a method: those of its slots, except those that it rejects when it is made."""

    def fitting_names() -> list[str]:
        from fljax.algorithms import compose
        from fljax.models import mlp
        from fljax.rounds.bricks import BRICKS
        from fljax.types import Work

        method, model = own.find("algorithm", word), mlp(input_shape=(2, 2, 1), hidden=(2, 2), n_classes=2)

        def is_made(*bricks: str) -> bool:
            try:
                compose(method, *bricks)(model, Work(1, 1))
            except (TypeError, ValueError):
                return False
            return True

        # A method that needs another network, or has a choice without a default, cannot be tried.
        is_testable = is_made()
        return [
            name for name, brick in BRICKS.items() if brick.slot in method.slots and (is_made(name) or not is_testable)
        ]

    return tuple(_cached(f"fitting {word}", fitting_names) if is_of_fljax(word) else fitting_names())


def methods_table() -> str:
    """The methods as a Markdown table, which `docs/methods.md` shows."""
    lines = ["| `--algorithm` | method | paper |", "| --- | --- | --- |"]
    for name in by_kind():
        method = entry("algorithm", name)
        paper = f"[{method.paper}]({method.link})" if method.link else method.paper
        lines.append(f"| `{name}` | {method.title}: {method.summary} | {paper} |")
    return "\n".join(lines)


def _cached(name: str, make: Callable[[], Any]) -> Any:
    """A value of the catalogue on disk, made if it is not there."""
    catalogue = _catalogue(_file())
    if name not in catalogue:
        catalogue |= {name: make(), _NEW: True}
    return catalogue[name]


def save() -> None:
    """Writes the catalogue if it has new values; if it cannot be written, the next command reads the library again."""
    path, catalogue = _file(), _catalogue(_file())
    if not catalogue.pop(_NEW, False):
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_sealed(path, json.dumps(catalogue).encode())


@cache
def _catalogue(path: Path) -> dict[str, Any]:
    """The file's content if it is undamaged and belongs to the present sources, else an empty catalogue."""
    stamp = _stamp()
    try:
        catalogue = json.loads(read_sealed(path))
    except (OSError, ValueError):
        catalogue = {}
    return catalogue if catalogue.get(_STAMP) == stamp else {_STAMP: stamp}


def _stamp() -> str:
    """A checksum of the package's source files (times and sizes) and of the Python version."""
    files = sorted(Path(fljax.__path__[0]).rglob("*.py"))
    stats = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in files]
    return f"{zlib.crc32(repr((sys.version, stats)).encode()):08x}"


def _file() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("fljax") / f"catalogue-{zlib.crc32(fljax.__path__[0].encode()):08x}.json"


def _with_lists(value: Any) -> Any:
    """A value as JSON returns it, with lists in place of tuples."""
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, list | tuple) else value


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value
