"""Clients of a file that did not participate in a run, and the models that the run's methods give them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax import tree
from fljax.choices import there_are
from fljax.data.federation import as_arrays, n_classes, on_host
from fljax.data.own.columns import text_of
from fljax.data.own.new_examples import Known, read_new
from fljax.data.shown import short
from fljax.data.split import client_data
from fljax.folder.checkpoint import newest
from fljax.rounds.memory import remembering, without_memory
from fljax.run.newcomers import new_client_models
from fljax.run.one_round import as_traced, shapes_of_state
from fljax.sealed import naming
from fljax.types import Federation, ModelTable, State


class Joining(NamedTuple):
    """Clients that join a finished run."""

    names: tuple[str, ...]
    federation: Federation  # of these clients; all their examples are for training


class Held(NamedTuple):
    """Clients and their models."""

    names: tuple[str, ...]  # (clients,)
    models: ModelTable


def read_joining(path: str | Path, known: Known, federation: Federation, classes: Sequence[str]) -> Joining:
    """The clients of a file of labelled examples; if it names none, it is one client with the file's name.

    Args:
        path: a table, ``.npz`` or folder of images, see `fljax.data.own.new_examples.read_new`.
        known: columns, shape and type of the run's examples.
        federation: the run's federation.
        classes: the names of its classes, if they have names.

    Raises:
        ValueError: in one line, with the file: as `read_new`, or a label is not one of the run's.
    """
    examples = read_new(path, known, labelled=True)
    with naming(Path(path)):
        y = _labels(examples.label, examples.names, federation, classes)
    clients = np.full(len(y), Path(path).stem) if examples.client is None else examples.client
    names, client_index = np.unique(clients, return_inverse=True)
    data = client_data(
        as_arrays(on_host(examples.x, y)), [np.flatnonzero(client_index == i) for i in range(len(names))]
    )
    absent: dict[str, Any] = dict.fromkeys(("val", "triggered", "group", "there", "stages"))
    return Joining(tuple(names.tolist()), federation._replace(train=data, test=data, **absent))


def _labels(
    columns: Sequence[np.ndarray], names: np.ndarray, federation: Federation, classes: Sequence[str]
) -> np.ndarray:
    """Labels in the form of the run's, from columns (examples,) of text."""
    y = federation.train.pool.y
    if np.issubdtype(y.dtype, np.floating):
        expected, labels = "a number", [[_number(text) for text in column] for column in columns]
    else:
        class_names = classes or [str(number) for number in range(n_classes(federation))]
        class_index = {name: float(i) for i, name in enumerate(class_names)}
        expected = f"one of the run's; {there_are('the classes', class_names)}"
        labels = [
            [class_index.get(text, class_index.get(_as_whole_number(text), np.nan)) for text in column]
            for column in columns
        ]
    if len(columns) != np.prod(y.shape[1:], dtype=int):
        n_labels = y.shape[1] if y.ndim > 1 else 1
        raise ValueError(f"examples have {len(columns)} labels each; give {n_labels}, as in the run")
    values = np.array(labels).T
    if (is_wrong := ~np.isfinite(values)).any():
        i, j = np.argwhere(is_wrong)[0]
        raise ValueError(f"example {names[i]} has the label {short(str(columns[j][i]))}; give {expected}")
    return values.reshape(len(values), *y.shape[1:]).astype(y.dtype)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _as_whole_number(text: str) -> str:
    """10.0 as 10, as in the run's table."""
    return str(text_of(np.array([_number(text)]))[0])


def models_of_joining(run: dict[str, Any], folder: Path, joining: Joining, n_rounds: int) -> ModelTable:
    """The models that a method gives clients who join its finished run.

    Args:
        run: the arguments of `fljax.train`.
        folder: the method's folder.
        joining: the clients.
        n_rounds: rounds of work, for methods that keep something per client.

    Raises:
        ValueError: the folder has no checkpoint, or as `fljax.new_client_models`.
    """
    state, method = _last_state(run, folder), (run["algorithm"], run["hyper"])
    return new_client_models(*method, state, joining.federation, run["key"], n_rounds=n_rounds)


def _last_state(run: dict[str, Any], folder: Path) -> State:
    sampling = run["sampling"]
    algorithm = remembering(run["algorithm"], None if sampling is None else sampling.memory)
    shapes = shapes_of_state(algorithm.init, run["key"], as_traced(run["hyper"]), run["federation"].train)
    if (checkpoint := newest(folder, shapes, lambda stored: None)) is None:
        raise ValueError(f"{folder} has no checkpoint, which joining clients need; run again into another folder")
    return without_memory(jax.tree.map(jnp.asarray, checkpoint[0].state))


def models_for(names: Sequence[str], holders: Sequence[Held]) -> ModelTable:
    """One table of the models of clients; of two clients with the same name, the last one counts.

    Args:
        names: names of clients, all of them known.
        holders: the clients with their models.
    """
    place_of = {name: (part, i) for part, held in enumerate(holders) for i, name in enumerate(held.names)}
    used_parts, rows, first_row = sorted({place_of[name][0] for name in names}), {}, 0
    for part in used_parts:
        n_rows, row = tree.n_rows(holders[part].models.params), np.asarray(holders[part].models.row)
        row = np.zeros_like(row) if n_rows == 1 else row  # a single model is shared by all, whatever the row numbers
        rows[part] = np.where((row >= 0) & (row < n_rows), row + first_row, -1)
        first_row += n_rows
    parts = [holders[part].models.params for part in used_parts]
    params = parts[0] if len(parts) == 1 else jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
    return ModelTable(params, jnp.asarray([rows[part][i] for part, i in map(place_of.__getitem__, names)], jnp.int32))
