"""The two leaderboards as tables, from the lines that `experiments/pfllib.py` and `experiments/leaderboard.py` keep.

Every method that the scripts know has a row; one that no line speaks of says that it is not run.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import authors_steps  # noqa: E402
import leaderboard  # noqa: E402
import pfllib  # noqa: E402
import pfllib_cases  # noqa: E402
from causes import cause  # noqa: E402
from outcomes import RESULTS, file_of, is_of_cpu, read  # noqa: E402

NOT_RUN = "not run"
NEAR, FIRST = 1.0, 5
"""Points between a run's last accuracy and the published one that count as near, and how many methods are in a list of
the best."""
Line = dict[str, str]


class Column(NamedTuple):
    """A column of the clustered table: its heading, the metric of the lines, and its decimals."""

    heading: str
    metric: str
    decimals: int


METHODS = tuple(pfllib.PUBLISHED)

COLUMNS = (
    Column("accuracy", "accuracy", 2),
    Column("its p10", "p10", 2),
    Column("ARI", "ARI", 3),
    Column("best ARI", "best ARI", 3),
    Column("rounds to 95 %", "rounds to 95 %", 1),
    Column("MB", "megabytes", 1),
    Column("seconds", "seconds", 1),
)


def pfllib_page(results: Path = RESULTS) -> str:
    """PFLlib's table: published accuracy beside ours, best and last, how far ours has run, and why it is off."""
    lines = read(file_of(results, "PFLlib", "table", "FMNIST", small=False))
    parts = [_counted(lines, len(pfllib.METHODS) * len(pfllib.SETTINGS), f"{pfllib.ROUNDS} iterations")]
    if lines:
        parts.append(_nearness(lines))
    head = ("method", "published", "best", "last", "off", "iterations", "seeds", "least CPU seconds a round", "command")
    for k, setting in enumerate(pfllib.SETTINGS):
        rows = []
        for method, published in pfllib.PUBLISHED.items():
            own = [line for line in lines if line["method"] == method and line["setting"] == setting]
            command = f"`python experiments/pfllib.py --only {method} --settings '{setting}'`"
            rows.append([method, f"{published[k]:.2f}", *_pfllib_cells(own, published[k]), command])
        parts.append(f"### {setting}\n\n{table(head, rows)}")
    few_images = read(file_of(results, "PFLlib", "table", "FMNIST", small=True))
    authors = read(file_of(results, "PFLlib", "authors", "FMNIST", small=False))
    authors = [line | {"method": f"{line['method']}, its authors' code"} for line in authors]
    others = read(file_of(results, "PFLlib", "settings", "FMNIST", small=False))  # numbers or lengths of their own
    return "\n\n".join([*parts, *_growth([*lines, *others, *few_images, *authors]), *_why_off(lines)]) + "\n"


def steps_page(results: Path = RESULTS) -> str:
    """How far apart outputs of PFLlib's own code and ours are after the same steps, method by method."""
    lines, rows = read(file_of(results, "PFLlib", "steps", "synthetic", small=False)), []
    plain, *others = (setting.name for setting in pfllib_cases.SETTINGS)
    for method, case in pfllib_cases.CASES.items():
        of = {name: [line for line in lines if line["setting"] == name] for name in (plain, *others)}
        rows.append([method, *_steps(of[plain], method), *(_most(of[name], method) for name in others), case.but])
    return (table(("method", *STEPS, *others, "set alike"), rows) if lines else NOT_RUN) + "\n"


def authors_page(results: Path = RESULTS) -> str:
    """As `steps_page`, of the code of methods' authors."""
    lines, rows = read(file_of(results, "authors", "steps", "synthetic", small=False)), []
    for method, case in authors_steps.CASES.items():
        code = f"[{case.repository}]({case.address}), {case.file}"
        rows.append([method, code, *_steps(lines, method), case.but])
    return (table(("method", "code", *STEPS, "set alike"), rows) if lines else NOT_RUN) + "\n"


STEPS = ("rounds", "difference after 1", "after all", "largest output")


def _steps(lines: Sequence[Line], method: str) -> list[str]:
    of = {line["metric"]: line for line in lines if line["method"] == method}
    if not of:
        return [NOT_RUN, *[""] * (len(STEPS) - 1)]
    n_rounds = of["largest output"]["round"]
    first, last = (float(of[f"difference after {n}"]["value"]) for n in (1, n_rounds))
    return [n_rounds, f"{first:.1e}", f"{last:.1e}", f"{float(of['largest output']['value']):.1f}"]


def _most(lines: Sequence[Line], method: str) -> str:
    found = _values([line for line in lines if line["method"] == method], "largest difference")
    return f"{found[0]:.1e}" if found else NOT_RUN


def _pfllib_cells(own: Sequence[Line], published: float) -> list[str]:
    def of(metric: str) -> str:
        return f"{np.mean(_values(own, metric)):.2f}"

    def seconds() -> str:  # the least, for other work was beside some of the seeds
        found = _values([line for line in own if is_of_cpu(line["versions"])], "seconds per round")
        return f"{min(found):.2f}" if found else ""

    if not own:
        return [NOT_RUN, *[""] * 5]
    iterations = min(int(line["round"]) for line in own)
    done = f"{iterations}" if iterations >= pfllib.ROUNDS else f"{iterations} of {pfllib.ROUNDS}"
    seeds = len({line["seed"] for line in own})
    off = f"{np.mean(_values(own, 'last accuracy')) - published:+.2f}"
    return [of("best accuracy"), of("last accuracy"), off, done, str(seeds), seconds()]


def _last(lines: Iterable[Line], setting: str) -> dict[str, float]:
    """Method -> its last accuracy in a setting, the mean over seeds; methods that have run."""
    own = [line for line in lines if line["setting"] == setting]
    found = {method: _values([one for one in own if one["method"] == method], "last accuracy") for method in METHODS}
    return {method: float(np.mean(values)) for method, values in found.items() if values}


def _nearness(lines: Sequence[Line]) -> str:
    """How many methods end near the published accuracy, in each setting and in all, and which are first."""
    last = [_last(lines, setting) for setting in pfllib.SETTINGS]
    near = [
        {method for method, accuracy in of.items() if abs(accuracy - pfllib.PUBLISHED[method][k]) <= NEAR}
        for k, of in enumerate(last)
    ]
    n_run, n_near = len(set(last[0]).intersection(*last)), len(near[0].intersection(*near))
    said = [
        f"Of {n_run} methods that have run in both settings {n_near} stopped within {NEAR} points of the published "
        "accuracy in both."
    ]
    for k, setting in enumerate(pfllib.SETTINGS):
        published = {method: pfllib.PUBLISHED[method][k] for method in METHODS}
        ours, theirs = (", ".join(sorted(of, key=lambda one: -of[one])[:FIRST]) for of in (last[k], published))
        said.append(f"In {setting} {len(near[k])} of {len(last[k])} do. First: {ours} here, {theirs} as published.")
    return "\n".join(said)


def _growth(lines: Sequence[Line]) -> list[str]:
    """Accuracy after some numbers of iterations, as a part of the page; none where no run is so long."""
    marks = [n for n in pfllib.AFTER if any(line["metric"] == f"accuracy after {n}" for line in lines)]
    cells = dict.fromkeys((line["method"], line["setting"]) for line in lines)
    rows = []
    for method, setting in cells:
        own = [line for line in lines if (line["method"], line["setting"]) == (method, setting)]
        after = [_values(own, f"accuracy after {n}") for n in marks]
        if sum(map(bool, after)) > 1:
            rows.append([method, setting, *(f"{np.mean(values):.2f}" if values else "" for values in after)])
    head = ("method", "setting", *(f"after {n}" for n in marks))
    return [f"### How accuracy grows\n\n{table(head, rows)}"] if rows else []


def _why_off(lines: Sequence[Line]) -> list[str]:
    """The causes of the rows that end further off, as a part of the page; none where all are near."""
    rows = []
    for k, setting in enumerate(pfllib.SETTINGS):
        for method, accuracy in _last(lines, setting).items():
            off = accuracy - pfllib.PUBLISHED[method][k]
            if abs(off) > NEAR:
                why = cause("row", ("PFLlib", "table", "FMNIST", setting, method, "last accuracy"))
                rows.append([method, setting, f"{off:+.2f}", why or "not looked into"])
    head = ("method", "setting", "off", "cause, and what shows it")
    return [f"### Why some rows are off\n\n{table(head, rows)}"] if rows else []


def clustered_page(results: Path = RESULTS) -> str:
    """The clustered leaderboard: a table for each kind of hidden groups, the most accurate methods first.

    Above each table stands who found the groups in every seed, below the tables how much each method's number matters.
    """
    lines = read(file_of(results, "leaderboard", "table", "MNIST", small=False))
    entries, tuning = leaderboard.ENTRIES, str(leaderboard.TUNING_SEED)
    parts = [_counted(lines, len(entries) * len(leaderboard.SETTINGS), "every round")]
    head = ("method", *(column.heading for column in COLUMNS), "seeds", "command")
    for setting in leaderboard.SETTINGS:
        here = [line for line in lines if line["setting"] == setting]
        runs = {
            method: [line for line in here if line["method"] == method and line["seed"] != tuning] for method in entries
        }
        accuracy = {method: float(np.mean(_values(own, "accuracy") or [-1])) for method, own in runs.items()}
        found = [method for method, own in runs.items() if set(_values(own, "ARI")) == {1.0}]
        rows = []
        for method in sorted(entries, key=lambda method: -accuracy[method]):
            own = runs[method]
            cells = [_with_interval(_values(own, column.metric), column.decimals, bool(own)) for column in COLUMNS]
            command = f"`python experiments/leaderboard.py --only '{method}' --settings '{setting}'`"
            rows.append([method, *cells, str(len({line["seed"] for line in own})), command])
        finders = [f"In the end these have found the groups with every seed (ARI 1): {', '.join(found)}."] * bool(found)
        parts += [f"### {setting}", *finders, table(head, rows)]
    parts.append(f"### Sensitivity to one hyperparameter\n\n{_sensitivity(lines, tuning)}")
    return "\n\n".join(parts) + "\n"


def _sensitivity(lines: Sequence[Line], tuning: str) -> str:
    """Validation accuracy at each candidate, for the settings that were run."""
    rows = []
    for method, entry in leaderboard.ENTRIES.items():
        for setting in leaderboard.SETTINGS:
            cells = []
            for value in entry.candidates:
                metric = f"validation at {entry.tuned}={value:g}"
                own = [
                    one for one in lines if (one["method"], one["setting"], one["seed"]) == (method, setting, tuning)
                ]
                cells += [f"{value:g}: {found:.2f}" for found in _values(own, metric)]
            if cells:
                rows.append([method, setting, f"`{entry.tuned}`", ", ".join(cells)])
    head = ("method", "groups", "hyperparameter", "its value: validation accuracy on a seed that is in no table")
    return table(head, rows) if rows else f"No number is chosen yet: {NOT_RUN}."


def _counted(lines: Iterable[Line], n_cells: int, to: str) -> str:
    """How much of a table there is."""
    tuning = str(leaderboard.TUNING_SEED)
    done = {(line["method"], line["setting"]) for line in lines if line["seed"] != tuning}
    return f"**{len(done)} of {n_cells} cells have a run**; the others say `{NOT_RUN}`. A full run is {to}, all seeds."


def _values(lines: Sequence[Line], metric: str) -> list[float]:
    return [float(line["value"]) for line in lines if line["metric"] == metric]


def _with_interval(values: Sequence[float], decimals: int, is_run: bool) -> str:
    """The mean and half of its 95 % interval over seeds (Student's t); the mean alone of one seed."""
    if not values:
        return "none" if is_run else NOT_RUN
    written: Callable[[float], str] = lambda value: f"{value:.{decimals}f}"  # noqa: E731
    if len(values) == 1:
        return written(values[0])
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return f"{written(float(np.mean(values)))} ± {written(float(half))}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; on the site a click sorts it, see static/sort.js."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))
