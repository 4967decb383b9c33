"""What a file of this folder says of a method: how it is run there, and here."""

import contextlib
import importlib
import io
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from same_steps import Outputs

from fljax.models import Model
from fljax.types import Algorithm, Federation, State


class Case(NamedTuple):
    """A method there and here."""

    repository: str  # owner/name@commit on GitHub; its clone has that name
    file: str  # of the clone, whose code runs
    make: Callable[[Model], Algorithm]  # ours
    hyper: Any  # ours
    theirs: Callable[
        [Path, State, Federation], list[Outputs]
    ]  # clone, our first state -> outputs after 1, 2 ... rounds
    clients: Callable[[], Federation]
    n_rounds: int = 3
    but: str = ""  # what was set alike, or left out
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext  # of both sides
    outputs: Mapping[str, Any] = {}  # `same_steps.ours`' choice of what is compared
    needs: tuple[str, ...] = ()  # modules beside PyTorch

    @property
    def address(self) -> str:
        """Address of the repository."""
        return f"https://github.com/{self.repository.partition('@')[0]}"

    @property
    def clone(self) -> str:
        """Name of the clone's folder."""
        return self.address.rpartition("/")[2]


@contextlib.contextmanager
def modules_of(folder: Path, *stubs: str) -> Iterator[Callable[[str], ModuleType]]:
    """Inside it, modules of the folder can be imported, by the function given; nothing is printed or warned of.

    Args:
        folder: goes first on the path, and all that was imported from it is forgotten afterwards: other clones have
            modules of the same names.
        stubs: modules that the code imports for pictures, files or data that it does not come to need here.
    """
    loaded_before, path = set(sys.modules), list(sys.path)
    for name in stubs:
        if name not in sys.modules:
            sys.modules[name] = _Stub(name)
            sys.modules[name].__spec__ = ModuleSpec(name, None)  # PyTorch asks some modules for it
    sys.path.insert(0, str(folder))
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            yield importlib.import_module
    finally:
        sys.path[:] = path
        imported_names = [
            name for name in set(sys.modules) - loaded_before if name in stubs or _is_in(folder, sys.modules[name])
        ]
        for name in imported_names:
            del sys.modules[name]


def _is_in(folder: Path, module: ModuleType) -> bool:
    """Whether its file is, or the folder of a package without one."""
    file = getattr(module, "__file__", None)
    return any(path.startswith(str(folder)) for path in ([file] if file else getattr(module, "__path__", ())))


def altered(code: str, changes: Mapping[str, str]) -> str:
    """Code in which each of the patterns, which it has to have once, gives way to a text."""
    for pattern, text in changes.items():
        code, n = re.subn(pattern, text, code)
        if n != 1:
            raise ValueError(f"the code has {pattern!r} {n} times; it should be there once")
    return code


class _Stub(ModuleType):
    """A module with everything in it, which does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


class _Nothing:
    """What a stub has: it can be called, and has itself as every attribute."""

    def __call__(self, *_: Any, **__: Any) -> None:
        """Does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self
