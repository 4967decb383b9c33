"""What `fljax sweep` varies: the numbers that make its points, and the static settings of its outer loop."""

import shlex
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

import jax

from fljax.algorithms import method_named
from fljax.cli.job import Job, RunSettings, job_of, read_layers
from fljax.cli.parameters import Parameter, Section, parameters
from fljax.cli.settings import Values, Words, resolve, typed, written
from fljax.run.sweep.points import Draw, draw, grid, log_spaced, log_uniform, spaced, uniform

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

OUTER = "outer."
NOT_OUTER = ("algorithm", "dataset", "data_folder", "partition", "model", "rounds", "seed")
"""Settings that make another sweep, with a table of its own."""


class SweepJob(NamedTuple):
    """A job of one method, with what is varied."""

    job: Job
    own: dict[str, Any]  # the values of SWEEP
    axes: Words  # field of the Hyper -> its words
    outer: dict[str, list[Any]]  # label -> values
    full: dict[str, str]  # label -> full name of the setting

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
        parsed = {name: axis(name, words, self.own["draws"]) for name, words in self.axes.items()}
        drawn = {name: value for name, value in parsed.items() if callable(value)}
        if drawn:
            hyper = draw(jax.random.key(settings[""]["seed"]), hyper, self.own["draws"], **drawn)
        return grid(hyper, **{name: value for name, value in parsed.items() if not callable(value)})


def read_sweep(arguments: Sequence[str], check: bool = True) -> SweepJob:
    """The sweep of a command line: as `fljax.cli.job.read_job`, with several values where `HELP` says so.

    ``check`` False lets a sweep of nothing pass, for its help.

    Raises:
        ValueError: in one line, for names that do not exist, values of the wrong type, empty grids and static settings
            that are given several values outside the outer loop.
    """
    layers, folder = read_layers(arguments)
    own = {name: parameter.default for name, parameter in SWEEP.items()}
    outer: Words = {}
    for layer in layers:
        own |= {name: typed(name, layer.pop(name), SWEEP[name].kind) for name in SWEEP if name in layer}
        outer |= {name: layer.pop(name) for name in list(layer) if name.startswith(OUTER)}
    if not any("algorithm" in layer for layer in layers[1:]):
        layers[0]["algorithm"] = ["fedavg"]
    if len(names := [layer["algorithm"] for layer in layers if "algorithm" in layer][-1]) != 1:
        raise ValueError(f"--algorithm {' '.join(names)}: a sweep is of one method")
    _check_run_settings(layers)
    axes: Words = {}
    job = job_of(layers, folder, lambda words, schema: _take_axes(words, schema, names[0], axes))
    full = {_label(name): _full(name, job) for name in outer}
    values = {_label(name): _values(name, words, full[_label(name)], job) for name, words in outer.items()}
    sweep_job = SweepJob(job, own, axes, values, full)
    if check:
        _check(sweep_job)
    return sweep_job


def axis(name: str, words: Sequence[str], draws: int | None) -> list[float] | tuple[float, ...] | Draw:
    """The values of a field, or the distribution that they are drawn from.

    ``lin:LOW:HIGH:N`` and ``log:LOW:HIGH:N`` are ranges, ``lin:LOW:HIGH`` and ``log:LOW:HIGH`` distributions.

    Raises:
        ValueError: no values, words that are no numbers or ranges, or a distribution without ``--draws``.
    """
    if not words:
        raise ValueError(f"--{written(name)}: an empty grid; give at least one value")
    if not _is_range(words):
        return [typed(name, [word], float | None) for word in words]
    kind, *parts = words[0].split(":")
    try:
        low, high, *count = (float(part) for part in parts)
    except ValueError:
        raise ValueError(f"--{written(name)} {words[0]}: give {kind}:LOW:HIGH:N, or {kind}:LOW:HIGH to draw") from None
    if len(count) == 1 and len(words) == 1:
        return (spaced if kind == "lin" else log_spaced)(low, high, int(count[0]))
    if draws is None or count or len(words) > 1:
        raise ValueError(f"--{written(name)} {' '.join(words)}: give {kind}:LOW:HIGH:N, or --draws N to draw from it")
    return (uniform if kind == "lin" else log_uniform)(low, high)


def _take_axes(words: Words, schema: dict[str, Section], method: str, axes: Words) -> Words:
    """The words that are left for the job: those of several values are moved to ``axes``.

    Raises:
        ValueError: a static setting has several values.
    """
    left: Words = {}
    for name, given in words.items():
        section, _, field = name.rpartition(".")
        several = _is_range(given) or len(given) > 1
        if section == method and field in method_named(method).hyper._fields and (several or not given):
            axes[field] = given
        elif several and not _takes_several(schema[section][field].kind):
            raise _static(name, given)
        else:
            left[name] = given
    return left


def _check_run_settings(layers: Sequence[Words]) -> None:
    """Raises ValueError where one of the run's own settings has several values."""
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


def _is_range(words: Sequence[str]) -> bool:
    return bool(words) and words[0].split(":")[0] in ("lin", "log") and ":" in words[0]


def _takes_several(kind: Any) -> bool:
    """Whether one value of this type is written in several words."""
    return get_origin(kind) is tuple or any(get_origin(part) is tuple for part in get_args(kind))


def _label(name: str) -> str:
    return name.rpartition(".")[2]


def _full(name: str, job: Job) -> str:
    """The setting that an outer name means."""
    (found,) = resolve({name.removeprefix(OUTER): []}, job.schema)
    if found in NOT_OUTER:
        raise ValueError(f"--{written(name)}: another {found} is a sweep of its own; run one for each")
    return found


def _values(name: str, words: Sequence[str], full: str, job: Job) -> list[Any]:
    """The values of an outer setting: a word each, quoted where a value has several."""
    if not words:
        raise ValueError(f"--{written(name)}: an empty grid; give at least one value")
    section, _, field = full.rpartition(".")
    return [typed(name, shlex.split(word), job.schema[section][field].kind) for word in words]


def _check(job: SweepJob) -> None:
    """Raises ValueError where there is nothing to sweep, no such folder, or a number is out of its range."""
    if job.own["resume"] and job.job.folder is None:
        raise ValueError("--resume: say which sweep, with --folder")
    if job.own["seeds"] < 1:
        raise ValueError(f"seeds={job.own['seeds']} is not positive; choose seeds >= 1")
    if not job.axes and not job.outer and job.own["seeds"] == 1:
        raise ValueError(f"nothing to sweep: give a number of {job.name} several values, such as --lr 0.01 0.1")
    job.hypers(job.job.settings)
