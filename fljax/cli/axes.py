"""What `fljax sweep` varies: the numbers that make its points, and the static settings of its outer loop."""

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fljax.choices import Positive
from fljax.cli.job import RUN, Job, job_of, read_layers
from fljax.cli.schema import Parameter, parameters
from fljax.cli.settings import OUTER, Layer, full_names, last
from fljax.cli.words import shown, takes_several, written
from fljax.ranges import check_number

if TYPE_CHECKING:
    from fljax.run.sweep.points import Draw

MOST_RUNS = 1_000_000
"""Points times seeds: more are a slip of the hand, and their table alone would fill a memory."""
NOT_OUTER = ("algorithm", "dataset", "data_folder", "partition", "model", "sampling", "rounds", "seed")
"""Settings that make another sweep, with a table of its own."""
NOT_SWEPT = ("new_clients", "new_client_rounds")
"""Settings of what a sweep does not do: its runs keep no model that new clients could meet."""
NO_NEW_CLIENTS = "a sweep tests no new clients; fljax run does"


class SweepSettings(NamedTuple):
    """What a sweep has beyond a job's settings.

    seeds: seeds of each point.
    halving: keep one point in so many at each stage; None: the full sweep.
    draws: random points to draw from the ranges without a count.
    metric: what the best point has most of (test_loss: least).
    judge: the split that tests are made on.
    runs_at_once: runs side by side on a device; None: as many as are best.
    resume: go on with the sweep in --folder.
    """

    seeds: Positive = 1
    halving: int | None = None
    draws: Positive | None = None
    metric: Literal["accuracy_macro", "accuracy_micro", "accuracy_p10", "f1_macro", "f1_micro", "test_loss"] = (
        "accuracy_macro"
    )
    judge: Literal["test", "val"] = "test"
    runs_at_once: Positive | None = None
    resume: bool = False


SWEEP = parameters(SweepSettings)


class Range(NamedTuple):
    """``lin:LOW:HIGH:N`` or ``log:LOW:HIGH:N``; without N, the distribution to draw from."""

    kind: str
    low: float
    high: float
    count: int | None


class Axis(NamedTuple):
    """The values of a number that is varied."""

    words: list[str]
    values: "list[float | None] | Range"


class SweepJob(NamedTuple):
    """A job of one method, with what is varied."""

    job: Job
    axes: dict[str, Axis]  # field of the Hyper -> its values
    outer: dict[str, list[Any]]  # full name of a static setting -> its values

    @property
    def name(self) -> str:
        """The method's section."""
        return next(iter(self.job.methods))

    @property
    def own(self) -> SweepSettings:
        """What a sweep has beyond a job's settings."""
        return SweepSettings(**{name: self.job.own[name] for name in SWEEP})

    @property
    def labels(self) -> dict[str, str]:
        """A column of the table for each setting of the outer loop -> full name; short where nothing else has it."""
        short = [full.rpartition(".")[2] for full in self.outer]
        alone = [short.count(label) == 1 and label not in self.axes for label in short]
        return {label if ok else full: full for label, ok, full in zip(short, alone, self.outer, strict=True)}

    def job_with(self, setting: dict[str, Any]) -> Job:
        """The job under one static setting of the outer loop, by label."""
        job = self.job
        for label, value in setting.items():
            job = job.with_setting(self.labels[label], value)
        return job

    def hypers(self, job: Job) -> Any:
        """The points: drawn ones first, each with the whole grid of the others."""
        import jax

        from fljax.cli.assemble import split_section
        from fljax.run.sweep.points import draw, grid

        hyper, drawn, values = split_section(self.name, job)[1], {}, {}
        for name, axis in self.axes.items():
            points = points_of(f"{shown(name, axis.words)}", axis.values)
            (drawn if callable(points) else values)[name] = points
        if drawn:
            hyper = draw(jax.random.key(job.run.seed), hyper, self.own.draws or 1, **drawn)
        return grid(hyper, **values)


def points_of(given: str, values: "list[float | None] | Range") -> "Sequence[float | None] | Draw":
    """The values of a number, or the distribution that they are drawn from.

    Raises:
        ValueError: a range that has none.
    """
    from fljax.run.sweep.points import log_spaced, log_uniform, spaced, uniform

    if not isinstance(values, Range):
        return values
    linear = values.kind == "lin"
    try:
        if values.count is None:
            return (uniform if linear else log_uniform)(values.low, values.high)
        found = (spaced if linear else log_spaced)(values.low, values.high, values.count)
    except ValueError as error:
        raise ValueError(f"{given}: {error}") from None
    check_different(given, found)
    return found


def read_sweep(arguments: Sequence[str], check: bool = True) -> SweepJob:
    """The sweep of a command line: as `fljax.cli.job.read_job`, with several values where ``--help`` says so.

    ``check`` False lets a sweep of nothing pass, for its help.

    Raises:
        ValueError: in one line, for names that do not exist, values of the wrong type, empty grids and static settings
            that are given several values outside the outer loop.
    """
    layers = read_layers(arguments)
    if not any(last([layer], "algorithm") for layer in layers[1:]):
        layers[0] = [(name, words) for name, words in layers[0] if name != "algorithm"]
    if len(names := last(layers, "algorithm") or RUN["algorithm"].default) != 1:
        raise ValueError(f"--algorithm {' '.join(names)}: a sweep is of one method")
    for name, words in layers[-1]:
        if name in NOT_SWEPT and words != ["None"]:
            raise ValueError(f"{shown(name, words)}: {NO_NEW_CLIENTS}")
    outer = [[one for one in layer if one[0].startswith(f"{OUTER}.")] for layer in layers]
    job = job_of([[one for one in layer if one not in outer[i]] for i, layer in enumerate(layers)], RUN | SWEEP, _axis)
    axes = {name: value for name, value in job.settings[next(iter(job.methods))].items() if isinstance(value, Axis)}
    for name in axes:
        (section,) = job.methods
        job = job.with_setting(f"{section}.{name}", job.schema[section][name].default)
    found: dict[str, list[Any]] = {}
    for layer in outer:
        found |= outer_values(layer, job)
    sweep = SweepJob(job, axes, found)
    if check:
        _check(sweep)
    return sweep


def _axis(name: str, parameter: Parameter, words: list[str]) -> Any:
    """A setting's value; of a number with several values, or none, or a range, its axis.

    Raises:
        ValueError: a static setting has several values, or a number one that is not allowed or stands twice.
    """
    short = name.rpartition(".")[2]
    several = len(words) > 1 or is_range(words)
    if parameter.number is not None and "." in name and (several or not words):
        if not words:
            raise ValueError(f"{shown(short, words)}: an empty grid; give at least one value")
        if is_range(words):
            return Axis(words, _range(shown(short, words), short, words, parameter))
        values = [parameter.read(short, [word]) for word in words]
        check_different(shown(short, words), values)
        return Axis(words, values)
    if several and not takes_several(parameter.kind) and name not in SWEEP:
        if name in NOT_OUTER:
            raise ValueError(f"{shown(name, words)}: another {name} is a sweep of its own")
        text = f"{short} is static, each value is a program of its own; give them to the outer loop"
        raise ValueError(f"{shown(name, words)}: {text}: {shown(f'{OUTER}.{short}', words)}")
    return parameter.read(name, words)


def _range(given: str, name: str, words: list[str], parameter: Parameter) -> Range:
    kind, *parts = words[0].split(":")
    try:
        (low, high), count = map(float, parts[:2]), [int(part) for part in parts[2:]]
    except ValueError:
        raise ValueError(f"{given}: give {kind}:LOW:HIGH:N, N whole, or {kind}:LOW:HIGH to draw") from None
    if len(words) > 1 or len(count) > 1:
        raise ValueError(f"{given}: give {kind}:LOW:HIGH:N, or {kind}:LOW:HIGH and --draws N to draw from it")
    if count and count[0] > MOST_RUNS:
        raise ValueError(f"{given}: choose at most {MOST_RUNS} values")
    for end in (low, high):
        assert parameter.number is not None
        check_number(name, end, parameter.number)
    if not count and low == high:
        raise ValueError(f"{given}: every draw is the same; give low < high")
    return Range(kind, low, high, count[0] if count else None)


def is_range(words: Sequence[str]) -> bool:
    """Whether the words stand for a range or a distribution."""
    return bool(words) and words[0].split(":")[0] in ("lin", "log") and ":" in words[0]


def check_different(given: str, values: Sequence[Any]) -> None:
    """Raises ValueError where a value stands twice, as float32 has it: its runs would pass for those of more seeds."""
    import struct

    seen = set()
    for value in values:
        key = struct.pack("f", value) if isinstance(value, float) else value
        if key in seen:
            raise ValueError(f"{given}: {value} stands there twice; give each value once")
        seen.add(key)


def outer_values(layer: Layer, job: Job) -> dict[str, list[Any]]:
    """The values of each setting, by full name, that one layer gives to the outer loop: a word each, quoted where a
    value has several.

    Raises:
        ValueError: in one line, for settings that the outer loop does not take or that stand twice, and values of the
            wrong type or that stand twice.
    """
    names: dict[str, str] = {}
    found = {}
    for name, words in layer:
        (full,) = full_names(name.partition(".")[2], job.schema)
        if full in NOT_OUTER:
            raise ValueError(f"--{written(name)}: another {full} is a sweep of its own; run one for each")
        if full in NOT_SWEPT:
            raise ValueError(f"--{written(name)}: {NO_NEW_CLIENTS}")
        if names.setdefault(full, name) != name:
            raise ValueError(f"--{written(names[full])} and --{written(name)} are both --{written(full)}; give one")
        if not words:
            raise ValueError(f"--{written(name)}: an empty grid; give at least one value")
        try:
            split = [shlex.split(word) for word in words]
        except ValueError:
            raise ValueError(f"{shown(name, words)}: a quotation mark is not closed") from None
        section, _, field = full.rpartition(".")
        found[full] = [job.schema[section][field].read(name, parts) for parts in split]
        check_different(shown(name, words), found[full])
    return found


def _check(sweep: SweepJob) -> None:
    """Raises ValueError where there is nothing to sweep, the points are none or too many, or a number is varied twice."""
    own, run = sweep.own, sweep.job.run
    if own.resume and run.folder is None:
        raise ValueError("--resume: say which sweep, with --folder")
    if run.new_clients is not None:
        raise ValueError(f"--new-clients {run.new_clients}: {NO_NEW_CLIENTS}")
    if not sweep.axes and not sweep.outer and own.seeds == 1:
        raise ValueError(f"nothing to sweep: give a number of {sweep.name} several values, such as --lr 0.01 0.1")
    drawn = [name for name, axis in sweep.axes.items() if isinstance(axis.values, Range) and axis.values.count is None]
    if own.draws is not None and not drawn:
        raise ValueError(f"--draws {own.draws}: nothing to draw from; give a number a range, such as --lr log:0.001:1")
    if drawn and own.draws is None:
        kind, words = sweep.axes[drawn[0]].values[0], sweep.axes[drawn[0]].words
        text = f"give {kind}:LOW:HIGH:N, or {kind}:LOW:HIGH and --draws N to draw from it"
        raise ValueError(f"{shown(drawn[0], words)}: {text}")
    counts = [
        axis.values.count or 1 if isinstance(axis.values, Range) else len(axis.values) for axis in sweep.axes.values()
    ]
    n_points = math.prod(counts) * (own.draws or 1)
    if (n_runs := n_points * own.seeds) > MOST_RUNS:
        raise ValueError(f"{n_points} points x --seeds {own.seeds} are {n_runs} runs; choose at most {MOST_RUNS}")
    for full in sweep.outer:
        section, _, field = full.rpartition(".")
        if section == sweep.name and field in sweep.axes:
            raise ValueError(f"--outer.{written(field)}: --{written(field)} is varied already; give it all its values")
