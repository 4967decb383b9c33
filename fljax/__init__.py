"""fljax: functional simulation of federated learning with massively vectorised clients.

Verbs (`simulate`, `train`, `sweep`, ...), nouns (`Federation`, `Model`, `Work`, ...), subpackages (`fljax.server`,
`fljax.client`, `fljax.rounds`, ...) and every method under its name: ``fljax.ifca(model, work, n_clusters=4)``,
``fljax.ifca.Hyper(lr=0.1)``, ``fljax.compose("fedavg+krum")``. Names are imported when they are first used: importing
fljax itself starts nothing.
"""

from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import lazy_loader

# The names are listed once, in __init__.pyi, for type checkers and for this module.
_find, _, _names = lazy_loader.attach_stub(__name__, __file__)


@cache
def _methods() -> frozenset[str]:
    """The names of the methods, from the names of their files, without importing them.

    The stub lists them for type checkers alone: a file in the folder is a method without a line there.
    """
    return frozenset(module.name for module in iter_modules([str(Path(__file__).parent / "algorithms")]))


def _is_of_sweeps(name: str) -> bool:
    """Whether `fljax.run.sweep`, whose other names belong to `fljax.sweep`, has the name; without importing it."""
    return f" import {name} as {name}\n" in Path(__file__).with_name("run").joinpath("sweep/__init__.py").read_text()


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fljax")
    if name.startswith("__"):  # tools ask for them, often: nobody has mistyped a name
        raise AttributeError(f"module 'fljax' has no attribute {name!r}")
    if name in _methods():
        from fljax.algorithms import ALGORITHMS

        return ALGORITHMS[name]
    if name not in _names:
        from fljax.choices import unknown

        if _is_of_sweeps(name):
            raise AttributeError(f"fljax has no attribute {name!r}; it is in fljax.run.sweep")
        raise AttributeError(f"fljax has {unknown('attribute', name, __dir__())}")
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*_names, *_methods()})
