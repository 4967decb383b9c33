"""What `fljax sweep` varies: the numbers that make its points, and the static settings of its outer loop."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jax

from fljax.algorithms import method_named
from fljax.cli.axis import MOST_RUNS, axis, is_range
from fljax.cli.job import Job, RunSettings, job_of, read_layers
from fljax.cli.outer import NO_NEW_CLIENTS, NOT_OUTER, NOT_SWEPT, OUTER, labels, outer_values
from fljax.cli.parameters import Parameter, Section, parameters
from fljax.cli.ranges import check_numbers, check_whole
from fljax.cli.settings import Values, Words, typed, written
from fljax.run.sweep.points import Draw, draw, grid

SWEEP: Section = {
    "seeds": Parameter(int, 1, "seeds of each point"),
    "halving": Parameter(int | None, None, "keep one point in so many at each stage; None: the full sweep"),
    "draws": Parameter(int | None, None, "random points to draw from the ranges without a count"),
    "metric": Parameter(
        Literal["accuracy_macro", "accuracy_micro", "accuracy_p10", "f1_macro", "f1_micro", "test_loss"],
        "accuracy_macro",
        "what the best point has most of (test_loss: least)",
    ),
    "judge": Parameter(Literal["test", "val"], "test", "the split that tests are made on"),
    "runs_at_once": Parameter(int | None, None, "runs side by side on a device; None: as many as are best"),
    "resume": Parameter(bool, False, "go on with the sweep in --folder"),
}
"""What a sweep has beyond a job's settings."""


class SweepJob(NamedTuple):
    """A job of one method, with what is varied."""

    job: Job
    own: dict[str, Any]  # the values of SWEEP
    axes: Words  # field of the Hyper -> its words
    outer: dict[str, list[Any]]  # label -> values
    full: dict[str, str]  # label, the short name where that is one setting's alone -> full name of the setting

    @property
    def name(self) -> str:
        """The method."""
        return self.job.settings[""]["algorithm"][0]

    def settings_with(self, setting: dict[str, Any]) -> Values:
        """The job's settings under one static setting of the outer loop."""
        settings = {section: dict(values) for section, values in self.job.settings.items()}
        for label, value in setting.items():
            section, _, name = self.full[label].rpartition(".")
            settings[section][name] = value
        return settings

    def hypers(self, settings: Values) -> Any:
        """The points: drawn ones first, each with the whole grid of the others."""
        kind = method_named(self.name).hyper
        hyper = kind(**{name: value for name, value in settings[self.name].items() if name in kind._fields})
        drawn, values = self.parsed()
        if drawn:
            hyper = draw(jax.random.key(settings[""]["seed"]), hyper, self.own["draws"], **drawn)
        return grid(hyper, **values)

    def parsed(self) -> tuple[dict[str, Draw], dict[str, Any]]:
        """(distributions, values) of the fields that are varied."""
        section = self.job.schema[self.name]
        axes = {name: axis(name, words, self.own["draws"], section[name].help) for name, words in self.axes.items()}
        drawn = {name: value for name, value in axes.items() if callable(value)}
        return drawn, {name: value for name, value in axes.items() if name not in drawn}


def read_sweep(arguments: Sequence[str], check: bool = True) -> SweepJob:
    """The sweep of a command line: as `fljax.cli.job.read_job`, with several values where `HELP` says so.

    ``check`` False lets a sweep of nothing pass, for its help.

    Raises:
        ValueError: in one line, for names that do not exist, values of the wrong type, empty grids and static settings
            that are given several values outside the outer loop.
    """
    layers, folder = read_layers(arguments)
    own = {name: parameter.default for name, parameter in SWEEP.items()}
    outer: list[Words] = []
    for layer in layers:
        own |= {name: typed(name, layer.pop(name), SWEEP[name].kind) for name in SWEEP if name in layer}
        outer.append({name: layer.pop(name) for name in list(layer) if name.startswith(OUTER)})
    if not any("algorithm" in layer for layer in layers[1:]):
        layers[0]["algorithm"] = ["fedavg"]
    if len(names := [layer["algorithm"] for layer in layers if "algorithm" in layer][-1]) != 1:
        raise ValueError(f"--algorithm {' '.join(names)}: a sweep is of one method")
    _check_run_settings(layers)
    axes: Words = {}
    job = job_of(layers, folder, lambda words, schema: _take_axes(words, schema, names[0], axes))
    values: dict[str, list[Any]] = {}
    for words in outer:
        values |= outer_values(words, job)
    full = dict(zip(labels(list(values), axes), values, strict=True))
    sweep_job = SweepJob(job, own, axes, {label: values[name] for label, name in full.items()}, full)
    if check:
        _check(sweep_job)
    return sweep_job


def _take_axes(words: Words, schema: dict[str, Section], method: str, axes: Words) -> Words:
    """The words that are left for the job: those of several values are moved to ``axes``.

    Raises:
        ValueError: a static setting has several values.
    """
    left: Words = {}
    for name, given in words.items():
        section, _, field = name.rpartition(".")
        several = is_range(given) or len(given) > 1
        if section == method and field in method_named(method).hyper._fields and (several or not given):
            axes[field] = given
        elif several and not _takes_several(schema[section][field].kind):
            raise _static(name, given)
        else:
            left[name] = given
    return left


def _check_run_settings(layers: Sequence[Words]) -> None:
    """Raises ValueError where one of the run's own settings has several values, or is not a sweep's."""
    for name in NOT_SWEPT:
        if layers[-1].get(name, ["None"]) != ["None"]:
            raise ValueError(f"--{written(name)} {' '.join(layers[-1][name])}: {NO_NEW_CLIENTS}")
    for name, parameter in parameters(RunSettings).items():
        given = next((layer[name] for layer in layers[::-1] if name in layer), [])
        if len(given) > 1 and not _takes_several(parameter.kind):
            if name in NOT_OUTER:
                raise ValueError(f"--{written(name)} {' '.join(given)}: another {name} is a sweep of its own")
            raise _static(name, given)


def _static(name: str, given: Sequence[str]) -> ValueError:
    field = name.rpartition(".")[2]
    return ValueError(
        f"--{written(name)} {' '.join(given)}: {field} is static, each value is a program of its own; give them to "
        f"the outer loop: --outer.{written(field)} {' '.join(given)}"
    )


def _takes_several(kind: Any) -> bool:
    """Whether one value of this type is written in several words."""
    return get_origin(kind) is tuple or any(get_origin(part) is tuple for part in get_args(kind))


def _check(job: SweepJob) -> None:
    """Raises ValueError where there is nothing to sweep, no such folder, or a number is out of its range."""
    own, run = job.own, job.job.settings[""]
    if own["resume"] and job.job.folder is None:
        raise ValueError("--resume: say which sweep, with --folder")
    check_whole({"": own})
    for name in ("seeds", "draws"):
        if own[name] is not None and own[name] < 1:
            raise ValueError(f"{name}={own[name]} is not positive; choose {name} >= 1")
    if run["new_clients"] is not None:
        raise ValueError(f"--new-clients {run['new_clients']}: {NO_NEW_CLIENTS}")
    if not job.axes and not job.outer and own["seeds"] == 1:
        raise ValueError(f"nothing to sweep: give a number of {job.name} several values, such as --lr 0.01 0.1")
    _check_points(job)
    for label, values in job.outer.items():
        section, _, field = job.full[label].rpartition(".")
        if section == job.name and field in job.axes:
            raise ValueError(f"--outer.{written(field)}: --{written(field)} is varied already; give it all its values")
        for value in values:
            check_numbers(job.settings_with({label: value}), job.job.schema)


def _check_points(job: SweepJob) -> None:
    """Raises ValueError where the points are none, too many or out of range."""
    drawn, values = job.parsed()
    draws, n_seeds = job.own["draws"], job.own["seeds"]
    if draws is not None and not drawn:
        raise ValueError(f"--draws {draws}: nothing to draw from; give a number a range, such as --lr log:0.001:1")
    n_points = math.prod(map(len, values.values())) * (draws or 1)
    if n_points * n_seeds > MOST_RUNS:
        raise ValueError(
            f"{n_points} points x --seeds {n_seeds} are {n_points * n_seeds} runs; choose at most {MOST_RUNS}"
        )
    job.hypers(job.job.settings)
