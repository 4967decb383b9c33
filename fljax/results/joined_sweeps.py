"""Joins sweeps of several folders into one table, with a column for each setting that varies or differs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.catalogue.file_words import short_name
from fljax.catalogue.job import SWEEP
from fljax.jobs.settings import NOT_KEPT, OUTER, of_toml
from fljax.jobs.sweep import is_condition
from fljax.metrics.headline import direction
from fljax.report.frames import number_or_text
from fljax.report.summary import Row, save_formats
from fljax.results.load_sweep import LoadedSweep, load_sweep
from fljax.run.sweep.shown import as_table
from fljax.run.sweep.table import AGREEMENT, PARTITION, by_point, is_of_a_run, is_of_a_score, of_split, unnamed

_UNSAID = (*SWEEP, *NOT_KEPT, "compile", "data_folder", "evaluate_every", "score", "new_client_rounds")
"""Settings that the table shows already, or that do not affect the final results."""


class Joined(NamedTuple):
    """The runs of several sweeps."""

    sweeps: list[LoadedSweep]
    rows: list[Row]  # one row per run, tests without the prefix of the split
    of: list[int]  # the sweep of each row
    differ: list[str]  # settings in which the sweeps differ
    settings: list[dict[str, list[str]]]  # of each sweep, as words
    metric: str
    split: str  # the split of the tests

    @property
    def conditions(self) -> list[str]:
        """The columns of conditions, which are not a choice; see `fljax.jobs.sweep.CONDITIONS`."""
        outer = [name.removeprefix(f"{OUTER}.") for words in self.settings for name in words]
        names = {name for name in (*self.differ, *outer) if is_condition(name)}
        columns = {name if name in self.point else name.rpartition(".")[2] for name in names}
        return [name for name in self.point if name in columns]

    @property
    def point(self) -> list[str]:
        """The columns that make a point."""
        return [name for name in self.rows[0] if not is_of_a_run(name)]


def join_sweeps(folders: Sequence[Path], measure: str | None = None) -> Joined:
    """The runs of the ``folders`` in one table; a run that several of them have is listed once.

    ``measure`` None: the metric by which the sweeps were judged.

    Raises:
        ValueError: a folder holds no sweep, the sweeps were judged by different splits or metrics, or lack the metric.
    """
    sweeps = [load_sweep(folder) for folder in folders]
    splits = {folder: loaded.found[0].split for folder, loaded in zip(folders, sweeps, strict=True)}
    if len({*splits.values()}) > 1:
        text = ", ".join(f"{folder} by {split}" for folder, split in splits.items())
        raise ValueError(f"sweeps are judged by different splits ({text}); show them separately")
    split = next(iter(splits.values()))
    settings = [dict(of_toml(path)) if (path := folder / "config.toml").exists() else {} for folder in folders]
    tables = [
        [{unnamed(name, split): value for name, value in row.items()} for row in loaded.rows()] for loaded in sweeps
    ]
    metric = _metric(measure, settings, split, tables)
    rows: dict[str, tuple[int, Row]] = {}
    columns = [_own_settings(words, table) for words, table in zip(settings, tables, strict=True)]
    columns_by_setting = _differing(columns)
    for i, table in enumerate(tables):
        differing_values = {
            columns_by_setting[name]: value
            for name, value in columns[i].items()
            if name in columns_by_setting and value is not None
        }
        for row in table:
            point = {name: number_or_text(str(value)) for name, value in row.items() if not is_of_a_run(name)}
            full_row = {**dict.fromkeys(columns_by_setting.values()), **differing_values, **row, **point}
            rows.setdefault(repr(sorted(full_row.items())), (i, full_row))
    names = dict.fromkeys(name for _, row in rows.values() for name in row)
    ordered = sorted(names, key=is_of_a_run)
    return Joined(
        sweeps,
        [{name: row.get(name) for name in ordered} for _, row in rows.values()],
        [i for i, _ in rows.values()],
        list(columns_by_setting),
        settings,
        metric,
        split,
    )


def _metric(measure: str | None, settings: Sequence[dict[str, Any]], split: str, tables: Sequence[list[Row]]) -> str:
    # Those that have a best value.
    metrics = [name for name in tables[0][0] if direction(name) or is_of_a_score(name)]
    recorded = {(words.get("metric") or ["None"])[0] for words in settings}
    if measure is None and len(recorded) > 1:
        raise ValueError(f"sweeps are judged by {' and '.join(sorted(recorded))}; choose a measure")
    if measure is None and recorded != {"None"}:
        measure = recorded.pop()
    measure = unnamed(measure or ("r2_micro" if "r2_micro" in metrics else "accuracy_macro"), split)
    metrics = [name for name in metrics if all(name in table[0] for table in tables)]
    if measure not in metrics:
        raise ValueError(
            f"measure={measure!r} is not a metric by which all runs can be judged; choose one of {', '.join(metrics)}"
        )
    return measure


def _own_settings(words: dict[str, list[str]], table: Sequence[Row]) -> dict[str, Any]:
    """The settings of a sweep by name, without the method's name; None for a setting that varies in it."""
    method = short_name(words["algorithm"][0]) if "algorithm" in words else ""
    outer = {name.removeprefix(f"{OUTER}.") for name in words if name.startswith(f"{OUTER}.")}
    varied = {name for name in table[0] if not is_of_a_run(name)}
    settings: dict[str, Any] = {}
    for name, setting_words in words.items():
        short = name.removeprefix(f"{method}.")
        if name.partition(".")[0] != OUTER and name not in _UNSAID:
            settings[short] = None if name in outer or short in varied else number_or_text(" ".join(setting_words))
    return settings


def _differing(columns: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The settings in which sweeps differ -> the names of their columns."""
    names = dict.fromkeys(name for settings in columns for name in settings)
    values = {name: {settings[name] for settings in columns if name in settings} for name in names}
    differing = [name for name, distinct in values.items() if len(distinct) > 1]
    short = [name.rpartition(".")[2] for name in differing]
    needs_full_name = [short.count(short_name) > 1 or is_of_a_run(short_name) for short_name in short]
    return {
        name: PARTITION if name == "seed" else f"sweep.{name}" if is_of_a_run(name) else name if is_full else short_name
        for name, short_name, is_full in zip(differing, short, needs_full_name, strict=True)
    }


def save_joined(joined: Joined, folder: Path) -> None:
    """Writes table.csv with one row per run, table.md and table.tex with all points, the best first, and plots/."""
    from fljax.report.plots import save
    from fljax.run.sweep.figures import curves_of, save_responses

    table = as_table(by_point(joined.rows, joined.metric), joined.metric, joined.split, most=None)
    rows = [of_split(row, joined.split) for row in joined.rows]
    save_formats(folder, "table", rows, table.markdown, table.latex)
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    numbers = [name for name in joined.point if _is_varied_number([row[name] for row in joined.rows])]
    save_responses(joined.rows, numbers, joined.metric, plots, split=joined.split, pdf=True)
    searches = [search for sweep in joined.sweeps for search in sweep.found]
    for i, search in enumerate(searches):
        metrics = {unnamed(name, joined.split): value for name, value in search.metrics.items()}
        if (
            joined.metric == AGREEMENT and AGREEMENT not in metrics
        ):  # needs the true groups, which the saved runs do not have
            continue
        ending = f"_{i}" if len(searches) > 1 else ""
        save(curves_of(search.points, metrics, joined.metric, joined.split), plots / f"curves{ending}.png", pdf=True)


def _is_varied_number(values: Sequence[Any]) -> bool:
    return len(set(values)) > 1 and all(isinstance(value, float | int) for value in values)
