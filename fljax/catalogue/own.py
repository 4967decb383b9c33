"""Finds methods, partitions, networks and so on by name: in the library, in a user's file, or in another package.

``./mine.py:mymethod`` is the object ``mymethod`` of a file. A name that the library does not have is looked up among
the entry points of installed packages, in the groups ``fljax.algorithms``, ``fljax.partitions``, ``fljax.models``,
``fljax.samplings``, ``fljax.scores``.
"""

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from fljax.choices import unknown

TABLES = {
    "algorithm": ("fljax.algorithms", "ALGORITHMS"),
    "partition": ("fljax.data.partition", "PARTITIONS"),
    "model": ("fljax.models", "MODELS"),
    "sampling": ("fljax.rounds.sampling", "SAMPLINGS"),
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
OPEN = ("algorithm", "partition", "model", "sampling", "score", "optimizer")
"""Kinds that users can extend; also the settings that name them."""


def table(kind: str) -> Any:
    """The library's own table of a kind, by name."""
    module, name = TABLES[kind]
    return getattr(import_module(module), name)


def is_file(word: str) -> bool:
    """Whether ``word`` names an object of a user's file, or the file alone, which `find` rejects."""
    return ".py:" in word or word.endswith(".py")


def short_name(word: str) -> str:
    """The name in settings and results folders: the object's name for a word of a file, else the word itself."""
    return word.rpartition(":")[2] if is_file(word) else word


def absolute(word: str, folder: Path) -> str:
    """``word`` with the absolute path of its file; relative paths start at ``folder``."""
    path, _, name = word.rpartition(":") if ".py:" in word else (word, "", "")
    return f"{folder.joinpath(Path(path).expanduser()).resolve()}:{name}" if is_file(word) else word


def entry_point(kind: str, name: str) -> metadata.EntryPoint | None:
    """The entry point of an installed package with this name, or None."""
    return next(iter(metadata.entry_points(group=f"fljax.{kind}s", name=name)), None)


def installed(kind: str) -> dict[str, str]:
    """Name -> package, of the entry points of installed packages; a name that fljax has too is fljax's."""
    points = () if kind not in OPEN else metadata.entry_points(group=f"fljax.{kind}s")
    return {point.name: point.dist.name if point.dist else "" for point in points}


def find(kind: str, word: str) -> Any:
    """The method (with its bricks), or the function of a partition, a network, a sampling or a score.

    Raises:
        ValueError: in one line: there is none, its file cannot be read or run, or it is of another kind.
    """
    if word.endswith((".py", ".py:")):
        names = " ".join(_defined_names(_module_of(Path(word.rstrip(":")))))
        raise ValueError(f"{word.rstrip(':')} is a file; write {word.rstrip(':')}:name with one of its names: {names}")
    path, (name, *bricks) = word.rpartition(":")[0] if is_file(word) else "", short_name(word).split("+")
    if kind != "algorithm":
        name, bricks = short_name(word), []
    if path:
        if not Path(path).exists():
            *_, brick = path.rpartition("+")  # of fedavg+./mine.py:name
            if kind == "algorithm" and brick != path and Path(brick).is_file():
                raise ValueError(_brick_of_file(word, brick, name))
            example = f"--{kind} PATH:{name}"
            raise ValueError(f"cannot read {path}: No such file; if it has moved, give its new place: {example}")
        thing = _object_in_file(Path(path), name)
    elif name in table(kind):
        thing = table(kind)[name]
    elif (point := entry_point(kind, name)) is not None:
        thing = _guarded(f"{kind} {name} of the package {point.dist and point.dist.name}", point.load)
    else:
        raise ValueError(f"{unknown(kind, name, [*table(kind), *installed(kind)])}; fljax list has the names")
    _check_kind(kind, word, thing)
    if not bricks:
        return thing
    from fljax.algorithms import compose

    return compose(thing, *bricks)


def kind_of_file(word: str) -> str:
    """The kind of an object of a file: a method, or the kind that a function's parameters suggest."""
    if "+" in short_name(word) or not short_name(word).isidentifier():
        return "algorithm"
    thing = _object_in_file(Path(word.rpartition(":")[0]), short_name(word))
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
    if kind == "algorithm":
        from fljax.rounds.method import Brick, Method

        if isinstance(thing, Brick):
            raise ValueError(_brick_of_file(word, *word.rpartition(":")[::2]))
        if not isinstance(thing, Method):
            raise ValueError(
                f"--algorithm {word}: this is a {type(thing).__name__}, not a method; a method is a function "
                "(model, work, ...) -> Algorithm under @fljax.rounds.method"
            )
    elif kind in OPEN and not _is_function(kind, thing) and not hasattr(thing, READY.get(kind, "")):
        text = f"--{kind} {word}: this is a {type(thing).__name__}, not a function"
        raise ValueError(f"{text}; name a function of the file")


def _brick_of_file(word: str, path: str, name: str) -> str:
    """The message for a brick of a user's file in the place of a method, or of a brick's name."""
    remedy = f"write NAME = fljax.fedavg + {name} in {Path(path).name}, and give --algorithm {path}:NAME"
    return f"--algorithm {word}: a brick of your own is put into a method in a file; {remedy}"


def _is_function(kind: str, thing: Any) -> bool:
    """Whether ``thing`` is a function of this kind; a method is callable too, but it is no score."""
    return callable(thing) and not (kind == "score" and hasattr(thing, "Hyper"))


def _object_in_file(path: Path, name: str) -> Any:
    module = _module_of(path)
    if not hasattr(module, name):
        raise ValueError(f"{path} has no {name!r}; it has {', '.join(_defined_names(module)) or 'nothing'}")
    return getattr(module, name)


def _defined_names(module: ModuleType) -> list[str]:
    """The names that a file defines itself."""
    defined = {name: getattr(value, "__module__", None) for name, value in vars(module).items() if name[0] != "_"}
    return [name for name, module_name in defined.items() if module_name == module.__name__]


def _module_of(path: Path) -> ModuleType:
    try:
        return _module(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None


@cache
def _module(path: Path, changed: int) -> ModuleType:
    """The file as a module, run once; it can import files of its own folder, after all installed packages."""
    # The module's name has no dots, which would make it part of a package.
    spec = importlib.util.spec_from_file_location(f"{path.parent / path.stem}".replace(".", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _find_neighbours_in(str(path.parent))
    _modules.append(module)
    _guarded(str(path), lambda: spec.loader.exec_module(module))  # pyright: ignore[reportOptionalMemberAccess]
    return module


_folders: list[str] = []
"""Folders of users' files, in their order at the end of sys.path."""


def _find_neighbours_in(folder: str) -> None:
    """Lets a file import its own folder's files, even if another user's folder has files of the same name."""
    other_folders = [other_folder for other_folder in _folders if other_folder != folder]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and str(Path(file).parent) in other_folders and Path(folder, Path(file).name).exists():
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
