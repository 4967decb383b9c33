"""Reads a results folder as arrays, frames and models."""

import tomllib
from collections.abc import Iterator, KeysView
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fljax.files import as_path
from fljax.folder.names import read_names
from fljax.folder.rounds import METRICS, ROUNDS, read_rounds
from fljax.report.frames import read_table, stacked
from fljax.results.result import Result, frame_of
from fljax.sealed import check_text


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A results folder: ``run["fedavg"].metrics``."""

    folder: Path
    config: dict[str, Any]  # config.toml; {} if there is none
    results: dict[str, Result]  # by method, in the order in which they were run
    summary: list[dict[str, Any]]
    """Rows of summary.csv, None for an empty cell; [] if there is no file. It is the final table of the last call that
    finished: if the run was resumed and interrupted since, a row's ``rounds`` are fewer than those of the results."""
    scales: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """``"inputs"`` of a table, ``"targets"`` of a regression: their ``"mean"`` and ``"deviation"`` in training."""
    inputs: tuple[str, ...] = ()
    """Names of a table's features, in the order in which the network sees them; a category is ``column=word``."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of the outputs, if the labels had names."""
    words: tuple[str, ...] = ()
    """Words by their tokens, if the examples are texts in words."""

    def __getitem__(self, name: str) -> Result:
        """A method's results.

        Raises:
            ValueError: the folder does not have the method.
        """
        if name not in self.results:
            raise ValueError(f"{self.folder} has no {name!r}; it has {', '.join(self.results)}")
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        """The methods' names."""
        return iter(self.results)

    def __len__(self) -> int:
        """The number of methods."""
        return len(self.results)

    def __contains__(self, name: object) -> bool:
        """Whether a method was run."""
        return name in self.results

    def client_rows(self) -> list[dict[str, Any]]:
        """Rows of clients.csv: a client that trains, its true group, its sizes, its cluster and tests; [] if there is
        no file. It is as old as `summary`; `new_tests` has the clients that ``--new-clients`` held out."""
        have_names = any(result.clients for result in self.results.values())  # a name may be a number: 007
        return read_table(self.folder / "clients.csv", ("client",) if have_names else ())

    def rounds(self) -> dict[str, np.ndarray]:
        """`Result.rounds` of all methods below each other, with ``algorithm``; NaN in columns that a method lacks."""
        return stacked([({"algorithm": name}, result.rounds()) for name, result in self.results.items()])

    def tests(self) -> dict[str, np.ndarray]:
        """`Result.tests` of all methods below each other, with ``algorithm``."""
        return stacked([({"algorithm": name}, result.tests()) for name, result in self.results.items()])

    def new_tests(self) -> dict[str, np.ndarray]:
        """`Result.new_tests` of all methods below each other, with ``algorithm``."""
        return stacked([({"algorithm": name}, result.new_tests()) for name, result in self.results.items()])

    def frame(self, of: str = "rounds") -> Any:
        """`rounds`, `tests` or `new_tests` as a pandas frame, or a polars frame if pandas is not installed.

        Raises:
            ValueError: neither is installed, or ``of`` is another word.
        """
        return frame_of(self, of)

    def keys(self) -> KeysView[str]:
        """The methods' names."""
        return self.results.keys()

    def __repr__(self) -> str:
        return f"<run {self.folder}: {', '.join(map(repr, self.results.values()))}>"


def load_run(folder: str | Path) -> LoadedRun:
    """Reads a results folder of ``fljax run``, or of one call of `fljax.train`.

    Raises:
        ValueError: the folder does not exist, holds no run, or has a damaged file.
    """
    folder = existing(folder)
    config = _toml(folder / "config.toml")
    own_folder = [folder] if holds_run(folder) else []
    methods = config.get("algorithm")
    method_order = [method for method in methods if isinstance(method, str)] if isinstance(methods, list) else []
    run_folders = (path for path in folder.iterdir() if holds_run(path))
    method_folders = sorted(run_folders, key=lambda path: (_position(path.name, method_order), path))
    if not own_folder and not method_folders:
        raise ValueError(f"{folder} holds no results: {_why_no_run(folder)}")
    names = read_names(folder)
    results = {
        path.resolve().name: Result(
            path.resolve().name, path, read_rounds(path), names.clients, config, names.new_clients
        )
        for path in own_folder or method_folders
    }
    return LoadedRun(folder, config, results, read_table(folder / "summary.csv"), *names[1:-1])


def existing(folder: str | Path) -> Path:
    """The folder; ValueError if it does not exist."""
    folder = as_path("folder", folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    return folder


def _why_no_run(folder: Path) -> str:
    """The reason why a folder holds no run."""
    if seeds := sorted(path.name for path in folder.glob("seed_*") if path.is_dir()):
        return f"it is a comparison of {', '.join(seeds)}; read it with fljax.load_comparison, or one of them"
    if (folder / "table.csv").is_file():
        return "it is a sweep; read it with fljax.load_sweep"
    return f"there is no {METRICS} in it or in its folders"


def holds_run(folder: Path) -> bool:
    """Whether ``folder`` has the rounds of one method."""
    return folder.joinpath(METRICS).exists() and folder.joinpath(ROUNDS).is_dir()


def _position(name: str, method_order: list[str]) -> int:
    names = [method.rpartition(":")[2] for method in method_order]
    return names.index(name) if name in names else len(names)


def _toml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    check_text(path, "restore it from a copy, or delete it")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply; restore it from a copy") from None
