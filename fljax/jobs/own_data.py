"""Data of a user's own on the command line: `--data mine.csv --client-column hospital --label-column sick`."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax.catalogue.words import shown
from fljax.data.datasets import NAMES
from fljax.data.labels import are_classes
from fljax.data.own.arrays import SPLIT, OwnData
from fljax.data.own.file_kinds import kind_of
from fljax.data.own.files import array_names, n_bytes_unpacked, read_own
from fljax.data.own.label_columns import TaskChoice
from fljax.data.own.tables import Columns
from fljax.data.own.words import Words
from fljax.data.partition.check import split_of
from fljax.devices.memory import check_fits
from fljax.files import write_atomically
from fljax.folder.names import names_as_json
from fljax.jobs.job import Job
from fljax.models import multi_label, normalized, regression
from fljax.models.scaled import Normalize
from fljax.sealed import naming
from fljax.types import Examples, Federation, Model


def read_data(job: Job) -> OwnData:
    """The user's own data of a job.

    Raises:
        ValueError: it cannot be read.
        MemoryError: unpacked, it is larger than the memory.
    """
    run, words = job.run, Words(job.run.text_words, job.run.text_length)
    path = Path(source := str(run.data))
    if path.name in NAMES and not path.exists():
        raise ValueError(f"there is no file {path}; for the data set of that name write --dataset {path.name}")
    return _read(source, columns_of(job), run.task, words, path.stat().st_mtime_ns if path.exists() else 0)


def columns_of(job: Job) -> Columns:
    """The roles of the columns of the job's table, or of the arrays of its ``.npz``."""
    names = ("label", "client", "split", "feature", "category", "text", "ignored")
    return Columns(*(getattr(job.run, f"{name}_column") for name in names), fill=job.run.fill)


@cache
def _read(path: str, columns: Columns, task: TaskChoice, words: Words, changed: int) -> OwnData:
    check_fits(f"the content of {path} needs at least", n_bytes_unpacked(Path(path)))
    return read_own(path, columns, task, words)


def own_federation(job: Job) -> Federation | None:
    """The federation of the clients that the data names; None if a partition splits the data.

    Raises:
        ValueError: the data names no clients and no partition is chosen, or as `OwnData.federation`.
    """
    if job.run.partition != "natural":
        return None
    data, settings = read_data(job), job.settings["partition"]
    if data.client is None:
        path = Path(str(job.run.data))
        choice = f", one of its arrays {', '.join(array_names(path))}" if kind_of(path) == ".npz" else ""
        raise ValueError(
            f"--data {path} does not name the clients of its examples; give --client-column NAME{choice}, or "
            "--partition iid --partition.n-clients 10"
        )
    split = split_of(settings["val_fraction"], settings["test_fraction"])
    if data.part is not None:
        for name, default in zip(("val_fraction", "test_fraction"), SPLIT[1:], strict=True):
            if settings[name] != default:
                option = shown(f"partition.{name}", [str(settings[name])])
                raise ValueError(f"{option}: the data assigns each example to a split already; leave it out")
        split = SPLIT
    federation = data.federation(split, seed=job.run.seed, min_size=settings["min_size"])
    if not (n_clients := settings["n_clients"]):
        return federation
    from fljax.data.holdout import some_clients

    return data.filled(some_clients(federation, n_clients, job.run.seed))  # with values of these clients only


def halves(job: Job) -> tuple[Examples, Examples]:
    """Training and test examples of the data, for a partition.

    Raises:
        ValueError: the data already decides what the partition would, or as `read_data`.
    """
    data, column = read_data(job), job.run.split_column
    option = f"--split-column {column}" if column else f"--data {job.run.data}"
    with naming(f"{option} with --partition {job.run.partition}"):
        return data.halves(seed=job.run.seed)


class ClientNames(NamedTuple):
    """Names of clients, in the order of their numbers; () if they have none."""

    training: tuple[str, ...] = ()
    new: tuple[str, ...] = ()  # the new clients of ``--new-clients``


def client_names(job: Job) -> ClientNames:
    """Names of a job's clients."""
    run, settings = job.run, job.settings["partition"]
    if run.data is None or run.partition != "natural":
        return ClientNames()
    from fljax.data.holdout import old_and_new, some_of

    names = read_data(job).kept(settings["min_size"])
    if settings["n_clients"]:
        names = tuple(names[i] for i in some_of(len(names), settings["n_clients"], run.seed))
    if run.new_clients is None:
        return ClientNames(names)
    parts = old_and_new(len(names), run.new_clients, run.seed)
    return ClientNames(*(tuple(names[i] for i in part) for part in parts))


class Scaling(NamedTuple):
    """The scaling of a network's inputs and outputs, and its task."""

    inputs: Normalize
    task: str  # "classification", "labels" or "regression"
    targets: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # for regression: mean and standard deviation


def save_names(job: Job, folder: Path, scaling: Scaling) -> None:
    """Writes names.json, if there is something to write: names of clients, classes, words and features, and scales.

    The scales are needed to use a trained model elsewhere: its inputs are ``(x - mean) / deviation``, and its outputs
    in regression ``output * deviation + mean``.
    """
    clients = client_names(job)
    classes, inputs, words = of_data(job)
    numbers = {"inputs": scaling.inputs, "targets": scaling.targets}
    moments_by_name = {name: scale for name, scale in numbers.items() if isinstance(scale, tuple)}
    scales = {name: {"mean": mean, "deviation": deviation} for name, (mean, deviation) in moments_by_name.items()}
    if clients.training or classes or scales or words:
        content = names_as_json(clients.training, classes, scales, clients.new, inputs, words)
        write_atomically(folder / "names.json", content.encode())


def of_data(job: Job) -> tuple[tuple[str, ...], ...]:
    """Names of classes, of features, and of tokens that are words; () for those without names."""
    data = None if job.run.data is None else read_data(job)
    return ((), (), ()) if data is None else (data.classes, data.inputs, data.words)


def scaling(federation: Federation, task: str, normalize: str) -> Scaling:
    """The scaling that the settings ask for, with means and deviations of the training examples."""
    pool, rows = federation.train.pool, used_rows(federation)
    inputs = moments(np.asarray(pool.x)[rows]) if normalize == "standard" else normalize
    if are_classes(pool.y):
        return Scaling(inputs, "classification")
    targets = np.asarray(pool.y)[rows].reshape(len(rows), -1)
    if task == "labels" or (task == "auto" and pool.y.ndim == 2 and np.isin(targets, (0, 1)).all()):
        return Scaling(inputs, "labels")
    return Scaling(inputs, "regression", moments(targets))


def scaled(model: Model, scaling: Scaling) -> Model:
    """The model with scaled inputs, and with the loss of its task."""
    model = normalized(model, scaling.inputs)
    if scaling.targets is not None:
        return regression(model, mean=scaling.targets[0], deviation=scaling.targets[1])
    return multi_label(model) if scaling.task == "labels" else model


def used_rows(federation: Federation) -> np.ndarray:
    """The row numbers of the pool that some client trains on."""
    index, size = np.asarray(federation.train.index), np.asarray(federation.train.size)
    return np.unique(index[np.arange(index.shape[1]) < size[:, None]])


_ROUNDING = 1e-6
"""Standard deviation, relative to its largest value, that a constant column may have because of float32 rounding."""


def moments(values: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each entry of the last axis; a deviation of 0, up to rounding, becomes 1."""
    scale = 255.0 if values.dtype == np.uint8 else 1.0  # pixels of a batch are divided by 255
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    deviation, magnitude = flat.std(axis=0), np.abs(flat).max(axis=0)
    varies = deviation > _ROUNDING * magnitude
    return _plain(flat.mean(axis=0) / scale), _plain(np.where(varies, deviation / scale, 1.0))


def _plain(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)


__all__: Sequence[str] = ("client_names", "halves", "own_federation", "read_data", "scaled", "scaling")
