"""What one method left in its folder, as arrays, frames and models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.choices import there_are
from fljax.files import read_arrays
from fljax.rounds.round_metrics import OF_CLIENT
from fljax.run.frames import as_frame, columns_of_rounds
from fljax.run.headline import measures_of
from fljax.run.models_on_disk import FILE, OF_NEW, client_model, read_models
from fljax.types import ModelTable, Params

NEW_TESTS = "new_clients.npz"


class Result(NamedTuple):
    """What one method left in its folder."""

    name: str
    folder: Path
    metrics: dict[str, np.ndarray]  # of all rounds, as `fljax.simulate`'s
    clients: tuple[str, ...] = ()  # names of the clients, where they have some
    config: Mapping[str, Any] = {}  # the run's config.toml; {} where there is none
    new_clients: tuple[str, ...] = ()  # names of those that ``--new-clients`` held out, where they have some

    @property
    def has_models(self) -> bool:
        """Whether the folder has the models that clients were last tested with."""
        return (self.folder / FILE).is_file()

    @property
    def models(self) -> ModelTable:
        """The models that clients were last tested with.

        Raises:
            ValueError: the folder has none, or the run was gone on with and stopped since.
        """
        return read_models(self.folder / FILE, self._n_rounds)

    @property
    def _n_rounds(self) -> int | None:
        return len(self.metrics["loss"]) if "loss" in self.metrics else None

    @property
    def new_models(self) -> ModelTable:
        """The models of the clients that ``--new-clients`` held out, as they met the trained server.

        Raises:
            ValueError: as `models`.
        """
        if not (path := self.folder / OF_NEW).exists():
            again = "run it again, fljax run --folder FOLDER" if self.config.get("new_clients") else "--new-clients 0.2"
            raise ValueError(f"there is no {path}: fljax run writes it where it holds clients out; {again}")
        return read_models(path, self._n_rounds)

    def client_model(self, client: int | str) -> Params:
        """The parameters that a client holds at the end, by its number or its name, also that of a new client.

        Raises:
            ValueError: there is no such client, or the folder has no models.
        """
        if client in self.new_clients:
            return client_model(self.new_models, self.new_clients.index(client))
        if isinstance(client, str):
            if client not in self.clients:
                known = self.clients + self.new_clients
                among = there_are("clients", known, client) if known else "there are no names"
                raise ValueError(f"there is no client {client!r}; {among}")
            client = self.clients.index(client)
        return client_model(self.models, client)

    def rounds(self) -> dict[str, np.ndarray]:
        """Columns (rounds,), as `fljax.run.frames.columns_of_rounds`."""
        return columns_of_rounds(self.metrics)

    def tests(self) -> dict[str, np.ndarray]:
        """Columns (clients,): the client, and each measure of its last test."""
        measures = {name: value for name, value in self.metrics.items() if name.startswith(OF_CLIENT)}
        last = {name: value[last_test(value, self.config)] for name, value in measures.items()}
        n_clients = len(next(iter(last.values())))
        return {"client": np.array(self.clients) if self.clients else np.arange(n_clients)} | last

    def new_tests(self) -> dict[str, np.ndarray]:
        """Columns (new clients,): the client that ``--new-clients`` held out, and each measure of its test.

        Raises:
            ValueError: the folder has none, or the run was gone on with and stopped since.
        """
        if not (arrays := read_new_tests(self.folder, self._n_rounds)):
            path = self.folder / NEW_TESTS
            raise ValueError(f"there is no {path}: fljax run writes it where it holds clients out; --new-clients 0.2")
        measures = {name: value for name, value in arrays.items() if name.startswith(OF_CLIENT)}
        n_clients = len(next(iter(measures.values())))
        return {"client": np.array(self.new_clients) if self.new_clients else np.arange(n_clients)} | measures

    def frame(self, of: str = "rounds") -> Any:
        """`rounds`, `tests` or `new_tests` as a pandas frame, or a polars one where pandas is not installed.

        Raises:
            ValueError: neither is installed, or another word than these.
        """
        return frame_of(self, of)

    def __repr__(self) -> str:
        headline = measures_of(self.metrics).headline
        values = self.metrics[headline]
        return f"<{self.name}: {len(values)} rounds, {headline} {values[last_test(values, self.config)]:.4f}>"


def read_new_tests(folder: Path, n_rounds: int | None = None) -> dict[str, np.ndarray]:
    """The tests of clients that never took part, as `fljax.run.evaluate` has them; {} where a method has none.

    Args:
        folder: the method's.
        n_rounds: that the run has made, which the models of these clients, written after their tests, are to be of;
            None: it does not matter.

    Raises:
        ValueError: a file is damaged, or the run was gone on with and stopped since.
    """
    path, models = folder / NEW_TESTS, folder / OF_NEW
    if n_rounds is not None and path.exists() and models.exists():
        read_models(models, n_rounds)
    return read_arrays(path, "fljax run with its folder makes it anew")[0] if path.exists() else {}


_FRAMES = ("rounds", "tests", "new_tests")


def frame_of(loaded: Any, of: str) -> Any:
    """What ``loaded`` has by its method ``of``, a word of `_FRAMES`, as a frame; ValueError for another word."""
    if of not in _FRAMES:
        raise ValueError(f"of={of!r} is unknown; choose {', '.join(map(repr, _FRAMES))}")
    return as_frame(getattr(loaded, of)())


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
