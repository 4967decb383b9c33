"""The results of one method in its folder, as arrays, frames and models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.choices import there_are
from fljax.files import read_arrays
from fljax.metrics.headline import measures_of
from fljax.report.frames import as_frame, columns_of_rounds
from fljax.rounds.round_metrics import OF_CLIENT
from fljax.run.models_on_disk import FILE, OF_NEW, client_model, read_models
from fljax.types import ModelTable, Params

NEW_TESTS = "new_clients.npz"


class Result(NamedTuple):
    """The results of one method in its folder."""

    name: str
    folder: Path
    metrics: dict[str, np.ndarray]  # of all rounds, as from `fljax.simulate`
    clients: tuple[str, ...] = ()  # names of the clients, if they have names
    config: Mapping[str, Any] = {}  # the run's config.toml; {} if there is none
    new_clients: tuple[str, ...] = ()  # names of the clients that ``--new-clients`` held out, if they have names

    @property
    def has_models(self) -> bool:
        """Whether the folder has the models with which clients were last tested."""
        return (self.folder / FILE).is_file()

    @property
    def models(self) -> ModelTable:
        """The models with which clients were last tested.

        Raises:
            ValueError: the folder has none, or the run was resumed and interrupted since.
        """
        return read_models(self.folder / FILE, self._n_rounds)

    @property
    def _n_rounds(self) -> int | None:
        return len(self.metrics["loss"]) if "loss" in self.metrics else None

    @property
    def new_models(self) -> ModelTable:
        """The models of the clients that ``--new-clients`` held out.

        Raises:
            ValueError: as `models`.
        """
        if not (path := self.folder / OF_NEW).exists():
            held_out = self.config.get("new_clients")
            again = "run fljax run --folder FOLDER again" if held_out else "run with --new-clients 0.2, for example"
            raise ValueError(f"there is no file {path}; fljax run writes it if it holds clients out; {again}")
        return read_models(path, self._n_rounds)

    def client_model(self, client: int | str) -> Params:
        """The parameters of a client's model at the end, by its number or its name, also for a new client's name.

        Raises:
            ValueError: there is no such client, or the folder has no models.
        """
        if client in self.new_clients:
            return client_model(self.new_models, self.new_clients.index(client))
        if isinstance(client, str):
            if client not in self.clients:
                names = self.clients + self.new_clients
                allowed = there_are("clients", names, client) if names else "clients have no names; give a number"
                raise ValueError(f"there is no client {client!r}; {allowed}")
            client = self.clients.index(client)
        return client_model(self.models, client)

    def rounds(self) -> dict[str, np.ndarray]:
        """Columns (rounds,), as `fljax.report.frames.columns_of_rounds`."""
        return columns_of_rounds(self.metrics)

    def tests(self) -> dict[str, np.ndarray]:
        """Columns (clients,): the client, and each metric of its last test."""
        measures = {name: value for name, value in self.metrics.items() if name.startswith(OF_CLIENT)}
        last = {name: value[last_test(value, self.config)] for name, value in measures.items()}
        n_clients = len(next(iter(last.values())))
        return {"client": np.array(self.clients) if self.clients else np.arange(n_clients)} | last

    def new_tests(self) -> dict[str, np.ndarray]:
        """Columns (new clients,): the client that ``--new-clients`` held out, and each metric of its test.

        Raises:
            ValueError: the folder has none, or the run was resumed and interrupted since.
        """
        if not (arrays := read_new_tests(self.folder, self._n_rounds)):
            path = self.folder / NEW_TESTS
            raise ValueError(f"there is no file {path}; fljax run writes it with --new-clients 0.2, for example")
        measures = {name: value for name, value in arrays.items() if name.startswith(OF_CLIENT)}
        n_clients = len(next(iter(measures.values())))
        return {"client": np.array(self.new_clients) if self.new_clients else np.arange(n_clients)} | measures

    def frame(self, of: str = "rounds") -> Any:
        """`rounds`, `tests` or `new_tests` as a pandas frame, or a polars frame if pandas is not installed.

        Raises:
            ValueError: neither is installed, or ``of`` is another word.
        """
        return frame_of(self, of)

    def __repr__(self) -> str:
        headline = measures_of(self.metrics).headline
        values = self.metrics[headline]
        return f"<{self.name}: {len(values)} rounds, {headline} {values[last_test(values, self.config)]:.4f}>"


def read_new_tests(folder: Path, n_rounds: int | None = None) -> dict[str, np.ndarray]:
    """The tests of new clients, as from `fljax.metrics.evaluate`; {} if a method has none.

    Args:
        folder: the method's folder.
        n_rounds: the run's number of rounds so far, compared with that of the new clients' models, which are written
            after their tests; None: not checked.

    Raises:
        ValueError: a file is damaged, or the run was resumed and interrupted since.
    """
    path, models = folder / NEW_TESTS, folder / OF_NEW
    if n_rounds is not None and path.exists() and models.exists():
        read_models(models, n_rounds)
    return read_arrays(path, "fljax run with its folder writes it again")[0] if path.exists() else {}


_FRAMES = ("rounds", "tests", "new_tests")


def frame_of(loaded: Any, of: str) -> Any:
    """The result of the method ``of`` of ``loaded`` as a frame; ValueError for another word than those of `_FRAMES`
    that it has (a comparison has no tests of new clients)."""
    if of not in (allowed := [name for name in _FRAMES if hasattr(loaded, name)]):
        raise ValueError(f"of={of!r} is unknown; choose {', '.join(map(repr, allowed))}")
    return as_frame(getattr(loaded, of)())


def last_test(values: np.ndarray, config: Mapping[str, Any]) -> int:
    """The index of the last round with a test in ``values`` (rounds, ...); -1, the last round, if there is none.

    A round that was due for a test counts even if its values are NaN, so that a diverged run has no score.

    Args:
        values: NaN in rounds without a test.
        config: the run's settings, which have its test rounds; {} if they are not known.
    """
    numbers = np.arange(1, len(values) + 1)
    tested = np.isfinite(values).reshape(len(values), -1).any(axis=1)
    if config:
        tested |= numbers % config.get("evaluate_every", 1) == 0
        tested |= numbers == config.get("rounds", len(values))
    return int(np.flatnonzero(tested)[-1]) if tested.any() else -1
