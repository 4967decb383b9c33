"""Finds methods, bricks, partitions, networks and so on by name: in the library, in a user's file, or in a package.

``./mine.py:mymethod`` is the object ``mymethod`` of a file. A name that the library does not have is looked up among
the entry points of installed packages, in the groups ``fljax.algorithms``, ``fljax.bricks``, ``fljax.partitions``,
``fljax.models``, ``fljax.samplings``, ``fljax.scores``. A method with bricks is found part by part.
"""

import importlib.util
import inspect
import os.path
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module, metadata
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from fljax.catalogue.file_words import is_file, parts_of, split_word
from fljax.choices import unknown

TABLES = {
    "algorithm": ("fljax.algorithms", "ALGORITHMS"),
    "partition": ("fljax.data.partition", "PARTITIONS"),
    "model": ("fljax.models", "MODELS"),
    "sampling": ("fljax.rounds.named_samplings", "SAMPLINGS"),
    "score": ("fljax.scores", "SCORES"),
    "brick": ("fljax.rounds.bricks", "BRICKS"),
    "attack": ("fljax.attacks.named", "ATTACKS"),
    "drift": ("fljax.drift.named", "DRIFTS"),
    "clock": ("fljax.rounds.clock.named", "CLOCKS"),
    "dataset": ("fljax.data.datasets", "NAMES"),
}
"""Kind -> module and name of the library's own table."""
READY = {"model": "apply", "sampling": "draw"}
"""Kinds of which a file may also hold a finished object -> the attribute that distinguishes it from its factory."""
OPEN = ("algorithm", "brick", "partition", "model", "sampling", "score", "optimizer")
"""Kinds that users can extend; also the settings that name them."""


def table(kind: str) -> Any:
    """The library's own table of a kind, by name."""
    module, name = TABLES[kind]
    return getattr(import_module(module), name)


def entry_point(kind: str, name: str) -> metadata.EntryPoint | None:
    """The entry point of an installed package with this name, or None."""
    return next(iter(metadata.entry_points(group=f"fljax.{kind}s", name=name)), None)


def is_installed(kind: str, name: str) -> bool:
    """Whether an installed package has this name, and the library does not."""
    return name not in table(kind) and entry_point(kind, name) is not None


def installed(kind: str) -> dict[str, str]:
    """Name -> package, of the entry points of installed packages; a name that fljax has too is fljax's."""
    points = () if kind not in OPEN else metadata.entry_points(group=f"fljax.{kind}s")
    return {point.name: point.dist.name if point.dist else "" for point in points}


def find(kind: str, word: str) -> Any:
    """The method (with its bricks), the brick, or the function of a partition, a network, a sampling or a score.

    Raises:
        ValueError: in one line: there is none, its file cannot be read or run, it is of another kind, or a brick does
            not fit.
    """
    if kind != "algorithm" or len(parts := parts_of(word)) == 1:
        return _find_one(kind, word)
    from fljax.algorithms import compose

    # `compose` knows the library's bricks, and which of them fit in the place of one that nobody has.
    bricks = [_find_one("brick", part) if is_file(part) or is_installed("brick", part) else part for part in parts[1:]]
    return compose(_find_one(kind, parts[0]), *bricks)


def _find_one(kind: str, word: str) -> Any:
    path, name = split_word(word)
    if path and not name:
        names = " ".join(_defined_names(_module_of(Path(path))))
        raise ValueError(f"{path} is a file; write {path}:name with one of its names: {names}")
    if path:
        if not Path(path).exists():
            example = f"--algorithm METHOD+PATH:{name}" if kind == "brick" else f"--{kind} PATH:{name}"
            raise ValueError(f"cannot read {path}: No such file; if it has moved, give its new place: {example}")
        thing = _object_in_file(Path(path), name)
    elif name in table(kind):
        thing = table(kind)[name]
    elif (point := entry_point(kind, name)) is not None:
        thing = _guarded(f"{kind} {name} of the package {point.dist and point.dist.name}", point.load)
    else:
        raise ValueError(f"{unknown(kind, name, [*table(kind), *installed(kind)])}; fljax list has the names")
    _check_kind(kind, word, thing)
    return thing


def kind_of_file(word: str) -> str:
    """The kind of an object of a file: a method, a brick, or the kind that a function's parameters suggest."""
    from fljax.rounds.slots import Brick

    path, name = split_word(word)
    if len(parts_of(word)) > 1 or not name.isidentifier():
        return "algorithm"
    thing = _object_in_file(Path(path), name)
    if isinstance(thing, Brick):
        return "brick"
    if hasattr(thing, "Hyper"):
        return "algorithm"
    if hasattr(thing, "init") and hasattr(thing, "apply"):  # a Model, or a network of linen or its class
        return "model"
    if hasattr(thing, READY["sampling"]):
        return "sampling"
    _check_kind("model", word, thing)
    from fljax.models.own import maker

    parameters = inspect.signature(maker(thing)).parameters
    if {"train", "test"} <= parameters.keys():
        return "partition"
    if {"input_shape", "n_classes", "rngs"} & parameters.keys():
        return "model"
    is_score = [parameter.default for parameter in parameters.values()].count(inspect.Parameter.empty) in (2, 3)
    return "score" if is_score else "sampling"


def _check_kind(kind: str, word: str, thing: Any) -> None:
    if kind in ("algorithm", "brick"):
        from fljax.rounds.method import Brick, Method

        if kind == "algorithm" and isinstance(thing, Brick):
            raise ValueError(
                f"--algorithm {word}: this is a brick, not a method; add it to one, as --algorithm fedavg+{word}"
            )
        if kind == "algorithm" and not isinstance(thing, Method):
            raise ValueError(
                f"--algorithm {word}: this is a {type(thing).__name__}, not a method; a method is a function "
                "(model, work, ...) -> Algorithm under @fljax.rounds.method"
            )
        if kind == "brick" and not isinstance(thing, Brick):
            raise ValueError(
                f"--algorithm METHOD+{word}: this is a {type(thing).__name__}, not a brick; a brick is a "
                "fljax.rounds.Brick(name, slot, value, summary)"
            )
    elif kind in OPEN and not _is_function(kind, thing) and not hasattr(thing, READY.get(kind, "")):
        text = f"--{kind} {word}: this is a {type(thing).__name__}, not a function"
        raise ValueError(f"{text}; name a function of the file")


def _is_function(kind: str, thing: Any) -> bool:
    """Whether ``thing`` is a function of this kind; a method is callable too, but it is no score."""
    return callable(thing) and not (kind == "score" and hasattr(thing, "Hyper"))


def _object_in_file(path: Path, name: str) -> Any:
    module = _module_of(path)
    if not hasattr(module, name):
        raise ValueError(f"{path} has no {name!r}; it has {', '.join(_defined_names(module)) or 'nothing'}")
    return getattr(module, name)


def _defined_names(module: ModuleType) -> list[str]:
    """The names that a file defines itself; its bricks and compositions have the modules of the library's parts."""
    from fljax.rounds.method import Brick, Method

    def is_own(value: Any) -> bool:
        is_composed = isinstance(value, Method) and bool(value.bricks)
        return is_composed or isinstance(value, Brick) or getattr(value, "__module__", None) == module.__name__

    return [name for name, value in vars(module).items() if name[0] != "_" and is_own(value)]


def _module_of(path: Path) -> ModuleType:
    try:
        return _module(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


class _FromSource(SourceFileLoader):
    """Compiles the file as it is: Python's bytecode on disk counts for any file of the same size and second."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


@cache
def _module(path: Path, changed: int) -> ModuleType:
    """The file as a module, run once; it can import files of its own folder, after all installed packages."""
    name = f"{path.parent / path.stem}".replace(".", "_")  # without dots, which would make it part of a package
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path.absolute())))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _find_neighbours_in(str(path.parent))
    _modules.append(module)
    _guarded(str(path), lambda: spec.loader.exec_module(module))
    return module


_folders: list[str] = []
"""Folders of users' files, in their order at the end of sys.path."""


def _find_neighbours_in(folder: str) -> None:
    """Lets a file import its own folder's files, even if another user's folder has files of the same name."""
    other_folders = [other_folder for other_folder in _folders if other_folder != folder]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and os.path.dirname(file) in other_folders and Path(folder, os.path.basename(file)).exists():
            del sys.modules[name]  # modules that have imported it keep it
    if folder not in sys.path or folder in _folders:
        _folders[:] = [folder, *other_folders]
        sys.path[:] = [entry for entry in sys.path if entry not in _folders] + _folders


def _guarded(what: str, run: Any) -> Any:
    """Runs a user's code; turns its errors into one line with the place.

    Raises:
        ValueError: it raised an error.
    """
    try:
        return run()
    except (Exception, SystemExit) as error:  # a script's sys.exit or argparse among them
        frames = traceback.extract_tb(error.__traceback__)
        frames = [frame for frame in frames if frame.filename == str(Path(what).absolute())] or frames
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno
        where = what if line is None else f"{what}, line {line}"
        remedy = "; import files of the same folder by name alone" if "relative import" in str(error) else ""
        raise ValueError(f"{where}: {type(error).__name__}: {error}{remedy}") from error


def place_of(error: BaseException) -> str:
    """The line of a user's file in which an error was raised, "./mine.py, line 7"; "" for an error elsewhere."""
    return "".join(_places(traceback.extract_tb(error.__traceback__)[-1:]))


def fault_in_user_file(error: Exception) -> str | None:
    """The message of an error in a user's file, or in JAX or flax called wrongly from it; None for other errors."""
    import jax

    frames = traceback.extract_tb(error.__traceback__)
    places = _places(frames) or _file_of_function(error)
    is_raised_there = bool(_places(frames[-1:]))
    is_of_a_call = isinstance(error, TypeError) or type(error).__module__.startswith("flax")
    if not places or not (is_raised_there or is_of_a_call):
        return None
    text = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError):
        text = (
            "Python code such as if, int or float needs the value of a hyperparameter or array, unknown at compilation"
        )
        text = f"{text}; use jnp.where or jax.lax.cond, or make it an argument of the method"
    return f"{places[-1]}: {text}"


def _file_of_function(error: Exception) -> list[str]:
    """The user's file with the function that a message names, "own() takes 2 positional arguments but 3 were given"."""
    name = re.match(r"(\w+)[\w.<>]*\(\) ", str(error))
    modules = [module for module in _modules if name is not None and name[1] in _defined_names(module)]
    return [str(module.__file__) for module in modules]


def _places(frames: Sequence[traceback.FrameSummary]) -> list[str]:
    """The frames that are in users' files, as "file, line"."""
    files = {getattr(module, "__file__", None) for module in _modules}
    return [f"{frame.filename}, line {frame.lineno}" for frame in frames if frame.filename in files]


_modules: list[ModuleType] = []
"""Users' files that have been run."""
