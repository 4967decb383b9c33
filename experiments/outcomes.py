"""Results as files: a line for each run and number, beside the published one, with all that it was run by.

``results/<paper>/<table>-<dataset>.csv`` holds runs of the paper's size, ``...-smoke.csv`` small ones. A line is
replaced by a later one of the same method, setting, seed and metric, but a whole run's not by one of a part of the
rounds. `reproduction.py` reads them.
"""

import csv
import io
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fljax.files import write_atomically

COLUMNS = (
    "method",
    "setting",
    "seed",
    "metric",
    "value",
    "published",
    "round",
    "seconds",
    "commit",
    "versions",
    "settings",
)
KEY = ("method", "setting", "seed", "metric")

HERE = Path(__file__).parent
RESULTS = HERE / "results"

BY_CONSTRUCTION = "by construction"
"""In ``settings`` of a line whose number was put in, not found: it equals the published one whatever is run."""


class Outcome(NamedTuple):
    """One number of one run."""

    method: str
    setting: str  # as the paper's table calls it
    seed: int
    metric: str
    value: float  # in the unit of the published number
    published: float | None
    round: int  # rounds done
    seconds: float  # that the run has taken, interruptions left out
    settings: str  # `described`


def described(paper_scale: bool, done: int, planned: int, **details: Any) -> str:
    """How something was run: ``scale=paper; rounds=250 of 250; lr=0.05``. Rounds below the plan are a partial run."""
    fields = {"scale": "paper" if paper_scale else "smoke", "rounds": f"{done} of {planned}"} | details
    return "; ".join(f"{name}={value}" for name, value in fields.items())


def is_whole(settings: str) -> bool:
    """Whether `described` says: no fewer rounds than planned, at either scale."""
    done, _, planned = _fields(settings).get("rounds", "").partition(" of ")
    return done.isdigit() and planned.isdigit() and int(done) >= int(planned)


def is_complete(settings: str) -> bool:
    """Whether `described` says: the paper's size, and no fewer rounds than planned."""
    return _fields(settings).get("scale") == "paper" and is_whole(settings)


def _fields(settings: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in settings.split("; ") if "=" in part)


def outcomes(
    results: Iterable[Any],
    columns: Mapping[str, Callable[[Any], float]],
    stated: Mapping[tuple[str, str, str], float],
    settings: Callable[[Any], str],
) -> list[Outcome]:
    """Lines for every run and column.

    Args:
        results: `reporting.Result` s.
        columns: metric -> its number in the published unit.
        stated: published numbers by (setting, method, metric).
        settings: of a result, see `described`.
    """
    return [
        Outcome(
            result.method,
            result.setting,
            result.seed,
            metric,
            float(column(result)),
            stated.get((result.setting, result.method, metric)),
            len(result.metrics["ids"]),
            result.seconds,
            settings(result),
        )
        for result in results
        for metric, column in columns.items()
    ]


def keep(folder: Path, paper: str, table: str, dataset: str, lines: Sequence[Outcome]) -> list[Path]:
    """Merges the lines into the table's files; the files written.

    A line of a whole run stays where the new one is of a part of the rounds.

    Args:
        folder: `RESULTS`, or another one.
        paper: as in published.csv.
        table: as in published.csv.
        dataset: as in published.csv.
        lines: of one or both scales.
    """
    made_by, files = {"commit": _BEGUN_WITH, "versions": versions()}, []
    for small in (False, True):
        new_lines = [line for line in lines if ("scale=smoke" in line.settings) == small]
        if not new_lines:
            continue
        file = file_of(folder, paper, table, dataset, small)
        merged = {tuple(str(row[name]) for name in KEY): row for row in read(file)}
        for line in new_lines:
            row = {name: _written(value) for name, value in line._asdict().items()} | made_by
            key = tuple(row[name] for name in KEY)
            if is_whole(line.settings) or not is_whole(merged.get(key, row)["settings"]):
                merged[key] = row
        file.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        writer: csv.DictWriter[str] = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(merged.values())
        write_atomically(file, text.getvalue().encode())
        files.append(file)
    return files


def file_of(folder: Path, paper: str, table: str, dataset: str, small: bool, ending: str = "csv") -> Path:
    """Where a table's lines, or a figure, are: names are those of published.csv, with "/" written as "_"."""
    name = f"{table}-{dataset}".replace("/", "_") + ("-smoke" if small else "")
    return folder / paper.lower() / f"{name}.{ending}"


def read(file: Path) -> list[dict[str, str]]:
    """The lines of a file, none where there is no file.

    Raises:
        ValueError: it has other columns.
    """
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        reader = csv.DictReader(lines)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise ValueError(f"{file} has the columns {reader.fieldnames}; a results file has {', '.join(COLUMNS)}")
        return list(reader)


def commit() -> str:
    """The version of the code, with a + where tracked code has been changed since; "unknown" outside of git."""
    try:
        name = _git("rev-parse", "--short", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()


def versions() -> str:
    """``jax 0.10.2, ...``, and the accelerator where there is one: what numbers may depend on."""
    texts = []
    for name in ("jax", "flax", "optax", "numpy"):
        try:
            texts.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            texts.append(f"{name} unknown")
    device = jax.devices()[0]
    return ", ".join(texts if device.platform == "cpu" else [*texts, device.device_kind])


def is_of_cpu(text: str) -> bool:
    """Whether a text of `versions` is of a CPU: an accelerator is named last."""
    return text.rpartition(", ")[2].startswith("numpy ")


_BEGUN_WITH = commit()
"""Read when a script begins: the folder may be at another commit before its runs end."""


def _written(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
