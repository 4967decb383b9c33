"""Sends a run's metrics to a logger: TensorBoard, Weights & Biases, MLflow, or an object of your own.

None of them is a dependency: you pass the object that you have made.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fljax.metrics.participants import means_of_participants
from fljax.run.progress import Progress, checked_progress


class Logger(Protocol):
    """An object that records a run's metrics."""

    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Records the metrics of a round, counted from 1; metrics that were not measured in it are left out."""
        ...


class LogProgress:
    """Logs every round: ``fljax.train(..., progress=LogProgress([to_wandb(wandb.run)]))``.

    Args:
        loggers: called for each round, in order.
        beside: another progress that is shown as well, such as a bar.
        prefix: put before each name, such as ``"fedavg/"``.

    Raises:
        ValueError: a logger has no function ``log``, or ``beside`` is no progress.
    """

    def __init__(self, loggers: Sequence[Logger], beside: Progress | None = None, prefix: str = "") -> None:
        if unfit := [logger for logger in loggers if not callable(getattr(logger, "log", None))]:
            text = f"loggers: one is of type {type(unfit[0]).__name__}, without log(round, values)"
            raise ValueError(f"{text}; give to_wandb(...), to_mlflow(...), to_tensorboard(...), or an object with log")
        self.loggers, self.beside, self.prefix = loggers, checked_progress(beside), prefix

    def prepare(self) -> None:
        """Compiling begins."""
        self.beside.prepare()

    def start(self, done: int, n_rounds: int) -> None:
        """Begins."""
        self.beside.start(done, n_rounds)

    def chunk(self, done: int, metrics: dict[str, np.ndarray], rounds_per_second: float) -> None:
        """Logs each round of a chunk that ends with round ``done``."""
        first = done - len(metrics["ids"])
        for i in range(len(metrics["ids"])):
            values = {self.prefix + name: value for name, value in scalars(metrics, i).items()}
            for logger in self.loggers:
                logger.log(first + i + 1, values)
        self.beside.chunk(done, metrics, rounds_per_second)

    def stop(self) -> None:
        """Ends."""
        self.beside.stop()


def scalars(metrics: Mapping[str, np.ndarray], i: int) -> dict[str, float]:
    """The finite metrics of round ``i`` of a chunk: its scalars, and its participants' means."""
    row = {name: value[i : i + 1] for name, value in metrics.items()}
    numbers = {name: value[0] for name, value in row.items() if value.ndim == 1}
    means = means_of_participants(row) if np.asarray(row["active"]).any() else {}
    numbers |= {name: means[name][0] for name in ("loss", "uplink", "downlink") if name in means}
    return {name: float(value) for name, value in numbers.items() if np.isfinite(value)}


class _FunctionLogger:
    """A logger that calls a function ``(round, values)``."""

    def __init__(self, call: Any) -> None:
        self.log = call


def to_tensorboard(writer: Any) -> Logger:
    """A ``SummaryWriter`` of tensorboardX or PyTorch: ``writer.add_scalar(name, value, round)``."""

    def log(round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, round)

    return _FunctionLogger(log)


def to_wandb(run: Any) -> Logger:
    """A run of Weights & Biases: ``run.log(values, step=round)``."""
    return _FunctionLogger(lambda round, values: run.log(dict(values), step=round))


def to_mlflow(mlflow: Any) -> Logger:
    """The module ``mlflow``, or a client bound to a run: ``mlflow.log_metrics(values, step=round)``."""
    return _FunctionLogger(lambda round, values: mlflow.log_metrics(dict(values), step=round))
