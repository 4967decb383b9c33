"""Data of a user's own on the command line: `--data mine.csv --client-column hospital --label-column sick`."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fljax.catalogue.words import shown
from fljax.data.datasets import NAMES
from fljax.data.files import array_names, n_bytes_unpacked, read_own
from fljax.data.label_columns import TaskChoice
from fljax.data.labels import are_classes
from fljax.data.own import SPLIT, OwnData
from fljax.data.partition.check import split_of
from fljax.data.tables import Columns
from fljax.data.words import Words
from fljax.files import write_atomically
from fljax.jobs.job import Job
from fljax.models import multi_label, normalized, regression
from fljax.models.scaled import Normalize
from fljax.run.memory import check_fits
from fljax.run.names import names_as_json
from fljax.sealed import naming
from fljax.types import Examples, Federation, Model


def read_data(job: Job) -> OwnData:
    """The data of a job that has some of its own.

    Raises:
        ValueError: it cannot be read.
        MemoryError: it is larger than the memory, unpacked.
    """
    run, words = job.run, Words(job.run.text_words, job.run.text_length)
    path = Path(own := str(run.data))
    if path.name in NAMES and not path.exists():
        raise ValueError(f"there is no {path}; the data set of that name is --dataset {path.name}")
    return _read(own, columns_of(job), run.task, words, path.stat().st_mtime_ns if path.exists() else 0)


def columns_of(job: Job) -> Columns:
    """What the columns of the job's table are, or the arrays of its ``.npz``."""
    names = ("label", "client", "split", "feature", "category", "text", "ignored")
    return Columns(*(getattr(job.run, f"{name}_column") for name in names), fill=job.run.fill)


@cache
def _read(path: str, columns: Columns, task: TaskChoice, words: Words, changed: int) -> OwnData:
    check_fits(f"the content of {path} needs at least", n_bytes_unpacked(Path(path)))
    return read_own(path, columns, task, words)


def own_federation(job: Job) -> Federation | None:
    """The federation of the clients that the data names; None where a partition deals the data out.

    Raises:
        ValueError: the data names no clients and no partition is chosen, or as `OwnData.federation`.
    """
    if job.run.partition != "natural":
        return None
    data, settings = read_data(job), job.settings["partition"]
    if data.client is None:
        path = Path(str(job.run.data))
        there = f", one of its arrays {', '.join(array_names(path))}" if path.suffix == ".npz" else ""
        raise ValueError(
            f"--data {path} does not say whose its examples are; give --client-column NAME{there}, or "
            "--partition iid --partition.n-clients 10"
        )
    split = split_of(settings["val_fraction"], settings["test_fraction"])
    if data.part is not None:
        for name, usual in zip(("val_fraction", "test_fraction"), SPLIT[1:], strict=True):
            if settings[name] != usual:
                said = shown(f"partition.{name}", [str(settings[name])])
                raise ValueError(f"{said}: the data says of each example what it is for; leave it out")
        split = SPLIT
    federation = data.federation(split, seed=job.run.seed, min_size=settings["min_size"])
    if not (n_clients := settings["n_clients"]):
        return federation
    from fljax.data.holdout import some_clients

    return data.filled(some_clients(federation, n_clients, job.run.seed))  # by what these have alone


def halves(job: Job) -> tuple[Examples, Examples]:
    """Training and test examples of the data, for a partition.

    Raises:
        ValueError: the data says of its examples what a partition decides, or as `read_data`.
    """
    data, column = read_data(job), job.run.split_column
    said = f"--split-column {column}" if column else f"--data {job.run.data}"
    with naming(f"{said} with --partition {job.run.partition}"):
        return data.halves(seed=job.run.seed)


class ClientNames(NamedTuple):
    """Names of clients, in the order of their numbers; () where they have none."""

    training: tuple[str, ...] = ()
    new: tuple[str, ...] = ()  # of ``--new-clients``: those that meet the trained server


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
    """What a network is given and told besides its layers: how inputs are scaled, and what its outputs are."""

    inputs: Normalize
    task: str  # "classification", "labels" or "regression"
    targets: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean and deviation, of a regression


def save_names(job: Job, folder: Path, scaling: Scaling) -> None:
    """Writes names.json, where there is something to write: what numbers of clients, classes and words stand for,
    names of features, and scales.

    Who takes a trained model elsewhere needs the scales: its inputs are ``(x - mean) / deviation``, its outputs of a
    regression ``output * deviation + mean``.
    """
    clients = client_names(job)
    classes, inputs, words = of_data(job)
    numbers = {"inputs": scaling.inputs, "targets": scaling.targets}
    pairs = {what: own for what, own in numbers.items() if isinstance(own, tuple)}
    scales = {what: {"mean": mean, "deviation": deviation} for what, (mean, deviation) in pairs.items()}
    if clients.training or classes or scales or words:
        content = names_as_json(clients.training, classes, scales, clients.new, inputs, words)
        write_atomically(folder / "names.json", content.encode())


def of_data(job: Job) -> tuple[tuple[str, ...], ...]:
    """Names of classes, of features, and of tokens that are words; () of what has none."""
    data = None if job.run.data is None else read_data(job)
    return ((), (), ()) if data is None else (data.classes, data.inputs, data.words)


def scaling(federation: Federation, task: str, normalize: str) -> Scaling:
    """What is asked for, with the numbers that follow from the training examples."""
    pool, rows = federation.train.pool, used_rows(federation)
    inputs = moments(np.asarray(pool.x)[rows]) if normalize == "standard" else normalize
    if are_classes(pool.y):
        return Scaling(inputs, "classification")
    targets = np.asarray(pool.y)[rows].reshape(len(rows), -1)
    if task == "labels" or (task == "auto" and pool.y.ndim == 2 and np.isin(targets, (0, 1)).all()):
        return Scaling(inputs, "labels")
    return Scaling(inputs, "regression", moments(targets))


def scaled(model: Model, scaling: Scaling) -> Model:
    """The model with inputs scaled so, and with the loss that its outputs want."""
    model = normalized(model, scaling.inputs)
    if scaling.targets is not None:
        return regression(model, mean=scaling.targets[0], deviation=scaling.targets[1])
    return multi_label(model) if scaling.task == "labels" else model


def used_rows(federation: Federation) -> np.ndarray:
    """The rows of the pool that some client trains on."""
    index, size = np.asarray(federation.train.index), np.asarray(federation.train.size)
    return np.unique(index[np.arange(index.shape[1]) < size[:, None]])


_ROUNDING = 1e-6
"""Deviation of a column, over its largest value, that float32 numbers of one value may have."""


def moments(values: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each entry of the last axis; a deviation of 0, up to rounding, counts as 1."""
    scale = 255.0 if values.dtype == np.uint8 else 1.0  # a batch has pixels / 255
    flat = values.reshape(-1, values.shape[-1]).astype(np.float64)
    deviation, magnitude = flat.std(axis=0), np.abs(flat).max(axis=0)
    varies = deviation > _ROUNDING * magnitude
    return _plain(flat.mean(axis=0) / scale), _plain(np.where(varies, deviation / scale, 1.0))


def _plain(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(np.float32(value)) for value in values)


__all__: Sequence[str] = ("client_names", "halves", "own_federation", "read_data", "scaled", "scaling")
