"""What a sweep varies: the hyperparameters of its points, and the static settings of its outer loop."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.catalogue.job import RUN, SWEEP, SweepSettings
from fljax.catalogue.words import shown, words_of, written
from fljax.jobs.job import Job, job_of
from fljax.jobs.layers import naming_file, read_layers
from fljax.jobs.settings import OUTER, Layer, full_names, last
from fljax.jobs.sweep_values import MOST_RUNS, Axis, check_different, check_outer, how_to_draw, value_or_axis
from fljax.sealed import naming

NOT_SWEPT = {
    "new_clients": "a sweep tests no new clients; fljax run does",
    "new_client_rounds": "a sweep tests no new clients; fljax run does",
    "patience": "all runs of a sweep end together; --halving stops bad points early",
    "validate": "a sweep is judged on one split; --judge val chooses the validation split",
}
"""Settings that a sweep does not have -> the reason."""


CONDITIONS = (
    *("dataset", "data", "client_column", "label_column", "split_column", "task"),
    *("common_test", "partition", "attack", "drift", "clock", "dropout", "stragglers", "least_effort"),
)
"""Settings, with those of a partition, an attack, a drift and a clock, of what a method faces: nobody chooses these."""


def is_condition(full: str) -> bool:
    """Whether a setting, by full name, is one of `CONDITIONS`, so that each value has a best point of its own."""
    return full.partition(".")[0] in CONDITIONS


class SweepJob(NamedTuple):
    """A job of one method, with the values that are varied."""

    job: Job
    axes: dict[str, Axis]  # field of the Hyper -> its values
    outer: dict[str, list[Any]]  # full name of a static setting -> its values

    @property
    def name(self) -> str:
        """The method's section."""
        return next(iter(self.job.methods))

    @property
    def own(self) -> SweepSettings:
        """The settings of a sweep, besides those of a job."""
        return SweepSettings(**{name: self.job.own[name] for name in SWEEP})

    @property
    def metric(self) -> str | None:
        """The metric by which the best point is chosen, without the prefix ``val_`` of the judging split; None: the
        default."""
        from fljax.run.sweep.table import unnamed

        return None if self.own.metric is None else unnamed(self.own.metric, self.own.judge)

    def settings(self) -> dict[str, list[Any]]:
        """The values of each static setting of the outer loop, by label."""
        return {label: self.outer[full] for label, full in self.labels.items()}

    @property
    def labels(self) -> dict[str, str]:
        """The table's column for each setting of the outer loop -> full name; the column has the short name if that is
        unique."""
        from fljax.run.sweep.table import is_of_a_run

        short_names = [full.rpartition(".")[2] for full in self.outer]
        is_unique = [
            short_names.count(label) == 1 and label not in self.axes and not is_of_a_run(label) for label in short_names
        ]
        return {
            label if is_short else full: full
            for label, is_short, full in zip(short_names, is_unique, self.outer, strict=True)
        }

    @property
    def conditions(self) -> list[str]:
        """The labels of the conditions among the settings of the outer loop."""
        return [label for label, full in self.labels.items() if is_condition(full)]

    def job_with(self, setting: dict[str, Any]) -> Job:
        """The job under one static setting of the outer loop, by label."""
        job = self.job
        for label, value in setting.items():
            job = job.with_setting(self.labels[label], value)
        return job

    def hypers(self, job: Job) -> Any:
        """The points: drawn ones first, each with the whole grid of the others."""
        import jax

        from fljax.jobs.assemble import split_section
        from fljax.run.sweep.points import draw, grid

        hyper = split_section(self.name, job)[1]
        drawn: dict[str, Any] = {name: axis.values for name, axis in self.axes.items() if callable(axis.values)}
        if drawn:
            hyper = draw(jax.random.key(job.run.seed), hyper, self.own.draws or 1, **drawn)
        return grid(hyper, **{name: axis.values for name, axis in self.axes.items() if name not in drawn})

    def at_first_point(self, job: Job) -> Job:
        """The job with the numbers of the first point in place of the defaults, with which it may be impossible."""
        from fljax.run.sweep.points import point

        first = point(self.hypers(job), 0)
        for name in self.axes:
            job = job.with_setting(f"{self.name}.{name}", getattr(first, name))
        return job


def folder_of(setting: dict[str, Any]) -> str:
    """The name of the folder of one static setting's runs, inside the sweep's folder; the setting is by label."""
    texts = (f"{name}={value}".replace(" ", "_").replace("/", "_") for name, value in setting.items())
    return "-".join(texts) or "runs"


def read_sweep(arguments: Sequence[str], check: bool = True) -> SweepJob:
    """The sweep of a command line: as `fljax.jobs.job.read_job`, but hyperparameters may have several values.

    ``check`` False allows a sweep that varies nothing, for the help.

    Raises:
        ValueError: in one line: a name does not exist, a value is of the wrong type, a grid is empty, or a static
            setting has several values outside the outer loop.
    """
    layers = read_layers(arguments, "sweep", methods=("fedavg",))  # the main job has several
    if len(names := last(layers, "algorithm") or ()) != 1:
        raise ValueError(f"--algorithm {' '.join(names)}: a sweep has one method; fljax compare runs several")
    for name, words in layers[-1]:
        if name in NOT_SWEPT and words not in (["None"], ["False"]):
            raise ValueError(f"{shown(name, words)}: {NOT_SWEPT[name]}")
    job_layers = [[setting for setting in layer if not setting[0].startswith(f"{OUTER}.")] for layer in layers]
    job = job_of(job_layers, RUN | SWEEP, value_or_axis)
    (section,) = job.methods
    axes = {name: value for name, value in job.settings[section].items() if isinstance(value, Axis)}
    for name in axes:
        job = job.with_setting(f"{section}.{name}", job.schema[section][name].default)
    outer: dict[str, list[Any]] = {}
    for i, layer in enumerate(layers):
        with naming_file(layers, i):
            outer |= outer_values([setting for setting in layer if setting[0].startswith(f"{OUTER}.")], job)
    sweep = SweepJob(job, axes, outer)
    if check:
        _check(sweep)
    return sweep


def outer_values(layer: Layer, job: Job) -> dict[str, list[Any]]:
    """The values of each setting, by full name, in one layer's outer loop: one word per value, quoted if a value has
    several.

    Raises:
        ValueError: in one line: the outer loop does not take a setting, a setting or a value is given twice, or a value
            is of the wrong type.
    """
    names: dict[str, str] = {}
    values = {}
    for name, words in layer:
        with naming(shown(name, words)):
            (full,) = full_names(name.partition(".")[2], job.schema)
        check_outer(full, name, job.run.algorithm[0])
        if full in NOT_SWEPT:
            raise ValueError(f"--{written(name)}: {NOT_SWEPT[full]}")
        if names.setdefault(full, name) != name:
            raise ValueError(f"--{written(names[full])} and --{written(name)} are both --{written(full)}; give one")
        if not words:
            raise ValueError(f"--{written(name)}: an empty grid; give at least one value")
        try:
            split_words = [shlex.split(word) for word in words]
        except ValueError:
            raise ValueError(f"{shown(name, words)}: a quotation mark is not closed; close it") from None
        section, _, field = full.rpartition(".")
        values[full] = [job.schema[section][field].read(name, parts) for parts in split_words]
        check_different(shown(name, words), values[full])
    return values


def _check(sweep: SweepJob) -> None:
    """Raises ValueError if nothing is varied, there are too many points, or a hyperparameter is varied twice."""
    settings, run = sweep.own, sweep.job.run
    if settings.resume and run.folder is None:
        raise ValueError("--resume: name the sweep with --folder")
    for name in ("new_clients", "patience", "validate"):
        if value := getattr(run, name):
            raise ValueError(f"{shown(name, words_of(value))}: {NOT_SWEPT[name]}")
    if not sweep.axes and not sweep.outer and settings.seeds == 1:
        if settings.resume and not Path(str(run.folder), "config.toml").exists():
            problem = "has no config.toml" if Path(str(run.folder)).is_dir() else "does not exist"
            raise ValueError(f"--folder {run.folder} {problem}: there is no sweep to resume")
        raise ValueError(f"nothing to sweep: give a setting of {sweep.name} several values, such as --lr 0.01 0.1")
    drawn = {name: axis.words for name, axis in sweep.axes.items() if callable(axis.values)}
    if settings.draws is not None and not drawn:
        raise ValueError(f"--draws {settings.draws}: nothing to draw from; give a range, such as --lr log:0.001:1")
    for name, words in drawn.items() if settings.draws is None else ():
        raise ValueError(f"{shown(name, words)}: {how_to_draw(words[0].partition(':')[0])}")
    n_values = [len(axis.values) for name, axis in sweep.axes.items() if name not in drawn]
    n_points = math.prod(n_values) * (settings.draws or 1)
    if (n_runs := n_points * settings.seeds) > MOST_RUNS:
        raise ValueError(f"{n_points} points x --seeds {settings.seeds} are {n_runs} runs; choose at most {MOST_RUNS}")
    for full in sweep.outer:
        section, _, field = full.rpartition(".")
        if section == sweep.name and field in sweep.axes:
            raise ValueError(f"--outer.{written(field)}: --{written(field)} is varied already; give it all its values")
