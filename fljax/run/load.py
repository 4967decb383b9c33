"""Results in hand: a results folder as arrays, frames and models."""

import csv
import json
import tomllib
import zlib
from collections.abc import Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.rounds.round_metrics import OF_CLIENT
from fljax.run.headline import measures_of
from fljax.run.models_on_disk import FILE, client_model, read_models
from fljax.run.rounds import METRICS, ROUNDS, means_of_participants, read_rounds
from fljax.sealed import check_listed, check_text
from fljax.types import ModelTable, Params


class Result(NamedTuple):
    """What one method left in its folder."""

    name: str
    folder: Path
    metrics: dict[str, np.ndarray]  # of all rounds, as `fljax.simulate`'s
    clients: tuple[str, ...] = ()  # names of the clients, where they have some
    config: Mapping[str, Any] = {}  # the run's config.toml; {} where there is none

    @property
    def has_models(self) -> bool:
        """Whether the folder has the models that clients were last tested with."""
        return (self.folder / FILE).is_file()

    @property
    def models(self) -> ModelTable:
        """The models that clients were last tested with.

        Raises:
            ValueError: the folder has none.
        """
        return read_models(self.folder / FILE)

    def client_model(self, client: int | str) -> Params:
        """The parameters that a client holds at the end, by its number or its name.

        Raises:
            ValueError: there is no such client, or the folder has no models.
        """
        if isinstance(client, str):
            if client not in self.clients:
                raise ValueError(f"there is no client {client!r}; there are {', '.join(self.clients) or 'no names'}")
            client = self.clients.index(client)
        return client_model(self.models, client)

    def rounds(self) -> dict[str, np.ndarray]:
        """Columns (rounds,): the round, from 1, each number that a round has, and its participants' means.

        Those are ``loss``, ``uplink`` and ``downlink`` (floats of 32 bits that one sends and receives), and
        ``n_not_finite``, as in metrics.jsonl.
        """
        scalars = {name: value for name, value in self.metrics.items() if value.ndim == 1}
        numbers = np.arange(1, len(self.metrics["ids"]) + 1)
        return {"round": numbers} | scalars | means_of_participants(self.metrics)

    def tests(self) -> dict[str, np.ndarray]:
        """Columns (clients,): the client, and each measure of its last test."""
        measures = {name: value for name, value in self.metrics.items() if name.startswith(OF_CLIENT)}
        last = {name: value[last_test(value, self.config)] for name, value in measures.items()}
        n_clients = len(next(iter(last.values())))
        return {"client": np.array(self.clients) if self.clients else np.arange(n_clients)} | last

    def frame(self, of: str = "rounds") -> Any:
        """`rounds` or `tests` as a pandas frame, or a polars one where pandas is not installed.

        Raises:
            ValueError: neither is installed, or another word than "rounds" and "tests".
        """
        if of not in ("rounds", "tests"):
            raise ValueError(f"of={of!r} is unknown; choose 'rounds' or 'tests'")
        return as_frame(self.rounds() if of == "rounds" else self.tests())

    def __repr__(self) -> str:
        headline = measures_of(self.metrics).scores[0]
        values = self.metrics[headline]
        return f"<{self.name}: {len(values)} rounds, {headline} {values[last_test(values, self.config)]:.4f}>"


@dataclass(frozen=True, repr=False)
class LoadedRun:
    """A results folder: ``run["fedavg"].metrics``."""

    folder: Path
    config: dict[str, Any]  # config.toml; {} where there is none
    results: dict[str, Result]  # by method, in the order in which they were run
    summary: list[dict[str, str]]  # summary.csv; [] where there is none
    scales: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    """Of a table's ``"inputs"``, of a regression's ``"targets"``: ``"mean"`` and ``"deviation"`` in training."""
    inputs: tuple[str, ...] = ()
    """Names of a table's features, in the order in which the network sees them; a category is ``column=word``."""
    classes: tuple[str, ...] = ()
    """Names of the classes, in the order of the outputs, where the labels had names."""
    words: tuple[str, ...] = ()
    """Words by their tokens, where the examples are texts in words."""

    def __getitem__(self, name: str) -> Result:
        """A method's results.

        Raises:
            ValueError: it was not run.
        """
        if name not in self.results:
            raise ValueError(f"{self.folder} has no {name!r}; it has {', '.join(self.results)}")
        return self.results[name]

    def __iter__(self) -> Iterator[str]:
        """The methods' names."""
        return iter(self.results)

    def __len__(self) -> int:
        """How many methods there are."""
        return len(self.results)

    def __contains__(self, name: object) -> bool:
        """Whether a method was run."""
        return name in self.results

    def clients(self) -> list[dict[str, str]]:
        """Lines of clients.csv: a client, its true group, its sizes, its cluster and tests; [] where there is none."""
        return _rows(self.folder / "clients.csv")

    def keys(self) -> KeysView[str]:
        """The methods' names."""
        return self.results.keys()

    def __repr__(self) -> str:
        return f"<run {self.folder}: {', '.join(map(repr, self.results.values()))}>"


def load_run(folder: str | Path) -> LoadedRun:
    """Reads a results folder of ``fljax run``, or of one `fljax.train`.

    Raises:
        ValueError: it is not there, holds no run, or a file of it is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    config = _toml(folder / "config.toml")
    own = [folder] if _is_run(folder) else []
    order = [word for word in _list(config.get("algorithm")) if isinstance(word, str)]
    found = (path for path in folder.iterdir() if _is_run(path))
    below = sorted(found, key=lambda path: (_place(path.name, order), path))
    if not own and not below:
        raise ValueError(f"{folder} holds no results: {_what_it_is(folder)}")
    names = _names(folder)
    results = {
        path.resolve().name: Result(path.resolve().name, path, read_rounds(path), names.clients, config)
        for path in own or below
    }
    return LoadedRun(folder, config, results, _rows(folder / "summary.csv"), *names[1:])


def last_test(values: np.ndarray, config: Mapping[str, Any]) -> int:
    """The place of the last round that has ``values`` (rounds, ...), a run's test; the last of all where none has.

    A round that was to be tested counts where its values are no numbers too: a run that came to nothing stays so.

    Args:
        values: NaN in rounds without a test.
        config: of the run, which says when it tests; {} where that is not known.
    """
    numbers = np.arange(1, len(values) + 1)
    tested = np.isfinite(values).reshape(len(values), -1).any(axis=1)
    if config:
        tested |= numbers % config.get("evaluate_every", 1) == 0
        tested |= numbers == config.get("rounds", len(values))
    return int(np.flatnonzero(tested)[-1]) if tested.any() else -1


def _what_it_is(folder: Path) -> str:
    """Why a folder is no run's."""
    if seeds := sorted(path.name for path in folder.glob("seed_*") if path.is_dir()):
        return f"it is a comparison; read one of its runs, {', '.join(seeds)}, or comparison.csv"
    if (folder / "table.csv").is_file():
        return "it is a sweep; read table.csv, a row a point and seed"
    return f"no {METRICS} in it or in a folder of it"


def as_frame(columns: Mapping[str, np.ndarray]) -> Any:
    """Columns as a pandas frame, or a polars one where pandas is not installed.

    Raises:
        ValueError: neither is installed.
    """
    for package in ("pandas", "polars"):
        try:
            module = __import__(package)
        except ImportError:
            continue
        return module.DataFrame(dict(columns))
    raise ValueError("a frame needs pandas or polars: pip install pandas")


def _is_run(folder: Path) -> bool:
    return folder.joinpath(METRICS).exists() and folder.joinpath(ROUNDS).is_dir()


def names_as_json(
    clients: Sequence[str],
    classes: Sequence[str],
    scales: Mapping[str, Any] | None = None,
    new_clients: Sequence[str] = (),
    inputs: Sequence[str] = (),
    words: Sequence[str] = (),
) -> str:
    """names.json: what the numbers of clients and classes stand for, `LoadedRun.scales`, `inputs`, `words`, and a
    checksum."""
    found: dict[str, Any] = {"clients": clients, "classes": classes, "scales": scales or {}}
    found |= {name: own for name, own in zip(_MAY_HAVE, (new_clients, inputs, words), strict=True) if own}
    return json.dumps(found | {"checksum": _crc(*found.values())}) + "\n"


_MAY_HAVE = ("new_clients", "inputs", "words")
"""What a names.json has where there is such."""


class Names(NamedTuple):
    """What a names.json holds."""

    clients: tuple[str, ...]
    scales: dict[str, dict[str, np.ndarray]]
    inputs: tuple[str, ...]
    classes: tuple[str, ...]
    words: tuple[str, ...]


def names_of(content: Any) -> Names:
    """The names and scales in the content of a names.json.

    Raises:
        ValueError: it is not as it was written.
        KeyError: something is missing.
        TypeError: it is of another structure.
    """
    clients, classes, scales = (content[name] for name in ("clients", "classes", "scales"))
    more = [content[name] for name in _MAY_HAVE if name in content]
    if content.get("checksum") != _crc(clients, classes, scales, *more):
        raise ValueError("another checksum")
    numbers = {
        what: {name: np.asarray(value, np.float32) for name, value in own.items()} for what, own in scales.items()
    }
    inputs, words = (tuple(content.get(name, ())) for name in ("inputs", "words"))
    return Names(tuple(clients), numbers, inputs, tuple(classes), words)


def _crc(*content: Any) -> int:
    return zlib.crc32(json.dumps(content).encode())


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _place(name: str, order: list[str]) -> int:
    short = [word.rpartition(":")[2] for word in order]
    return short.index(name) if name in short else len(short)


def _toml(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    check_text(path, "put it back from a copy, or delete it")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply; put it back from a copy") from None


def _names(folder: Path) -> Names:
    path = folder / "names.json"
    if not path.exists():
        return Names((), {}, (), (), ())
    try:
        return names_of(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} is not as it was written; run again into another folder") from None


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    check_listed(path, f"put it back from a copy, or delete .{path.name}.crc to take it as it is")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV text: {error}") from None
