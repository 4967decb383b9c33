"""The result of a comparison of runs: tables, the lines under them, figures; as an object and as files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Part(NamedTuple):
    """The methods on one data setting."""

    compared: list[Any]  # `fljax.report.significance.Compared`, in the order of the folders
    table: Any  # `fljax.report.formats.Table`
    curves: dict[str, Any]  # method -> (seeds, rounds) of the metric
    clients: dict[str, Any]  # method -> (clients,) last test, over all seeds
    of_clients: str  # what `clients` holds: "accuracy", "R2" or "loss"
    notes: list[str]  # lines under the table


@dataclass(frozen=True, repr=False)
class Comparison:
    """A comparison of finished runs; ``print(comparison)`` shows the tables."""

    measure: str  # the metric that is compared
    title: str  # the metric and the round in which it is taken
    parts: dict[str, Part]  # by data setting
    over_settings: Any  # `Table` of methods by data settings, with mean ranks; None for a single data setting
    notes: list[str]  # lines under that table
    settings: str  # the config.toml of the first run

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Plain numbers, one row per method, and per data setting if there are several."""
        from fljax.report.formats import as_rows

        rows_by_data = {data: as_rows(part.compared, self.measure) for data, part in self.parts.items()}
        if len(rows_by_data) == 1:
            return next(iter(rows_by_data.values()))
        return [{"data": data, **row} for data, rows in rows_by_data.items() for row in rows]

    @property
    def tables(self) -> dict[str, tuple[Any, list[str]]]:
        """Title -> a table and the lines under it: the table over data settings, then one table for each of them."""
        tables_by_data = {data: (part.table, part.notes) for data, part in self.parts.items()}
        if self.over_settings is None:
            return {self.title: next(iter(tables_by_data.values()))}
        return {self.title: (self.over_settings, self.notes)} | tables_by_data

    @property
    def text(self) -> str:
        """The tables for a terminal."""
        return self._joined_tables("{title}\n", lambda table, notes: "\n".join([table.text, *notes]))

    @property
    def markdown(self) -> str:
        """The tables in Markdown."""

        def in_markdown(table: Any, notes: list[str]) -> str:
            return "\n".join([table.markdown, *(f"{note}\n" for note in notes)])

        return self._joined_tables("## {title}\n\n", in_markdown) + "\n"

    @property
    def latex(self) -> str:
        """The tables in LaTeX, for the package booktabs."""
        return self._joined_tables("% {title}\n", lambda table, _: table.latex) + "\n"

    def _joined_tables(self, head: str, format_table: Callable[[Any, list[str]], str]) -> str:
        """All tables, each under its title if there are several."""
        heads = {title: head.format(title=title) if len(self.tables) > 1 else "" for title in self.tables}
        parts = [
            heads[title] + format_table(table, notes).rstrip("\n") for title, (table, notes) in self.tables.items()
        ]
        return "\n\n".join(parts)

    def save(self, folder: str | Path, title: str = "") -> None:
        """Writes comparison.csv, comparison.md, comparison.tex, report.html, and figures into plots/."""
        save_comparison(self, Path(folder), title or self.title)

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        """The tables as a notebook shows them."""
        return self.markdown

    def __repr__(self) -> str:
        methods = dict.fromkeys(one.algorithm for part in self.parts.values() for one in part.compared)
        several = f"; {', '.join(self.parts)}" if len(self.parts) > 1 else ""
        return f"<comparison of {', '.join(methods)} by {self.title}{several}>"


def save_comparison(compared: Comparison, folder: Path, title: str, drawn: Path | None = None) -> None:
    """Writes comparison.csv, comparison.md, comparison.tex, plots/ and report.html.

    ``drawn`` is a folder of further figures for plots/ and the report. Figures of other runs that lie in plots/ already
    do not go into the report.
    """
    from shutil import copy
    from tempfile import TemporaryDirectory

    from fljax.report.summary import save_formats

    save_formats(folder, "comparison", compared.rows, compared.markdown, compared.latex)
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    with TemporaryDirectory() as spare:
        drawn = drawn or Path(spare)
        save_plots(compared, drawn)
        for path in drawn.iterdir():
            copy(path, plots)
        save_report(compared, folder / "report.html", title, drawn)


def save_plots(compared: Comparison, folder: Path) -> None:
    """Draws, for each data setting, mean learning curves with the range of the seeds, and the spread over clients."""
    folder.mkdir(parents=True, exist_ok=True)
    for data, part in compared.parts.items():
        letters = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in data)
        _save_plots(part, compared.measure, folder, f"_{letters}" if len(compared.parts) > 1 else "")


def _save_plots(part: Part, measure: str, folder: Path, ending: str) -> None:
    import numpy as np

    from fljax.report import figures, plots
    from fljax.results.notes import ON_ONE_SET

    # Rounds in which all seeds were tested: a seed that stopped keeps its last value in every later round.
    tested = {method: np.isfinite(curves).all(axis=0) for method, curves in part.curves.items()}
    lines = {m: (np.flatnonzero(tested[m]) + 1, curves[:, tested[m]].mean(axis=0)) for m, curves in part.curves.items()}
    ranges = {
        m: (curves[:, tested[m]].min(axis=0), curves[:, tested[m]].max(axis=0)) for m, curves in part.curves.items()
    }
    bands = ranges if len(lines) <= 5 else None  # more bands hide each other
    kind, tests = ("", figures.ON_ONE_SET) if ON_ONE_SET in part.notes else ("test ", "")
    figure = plots.learning_curves(lines, f"{measure.replace('_', ' ')}{tests}", spread=bands)
    plots.save(figure, folder / f"learning_curves{ending}.png", pdf=True)
    figure = plots.over_clients(part.clients, f"client's {kind}{part.of_clients}{tests}")
    plots.save(figure, folder / f"clients{ending}.png", pdf=True)


def save_report(compared: Comparison, path: Path, title: str, figures: Path | None = None) -> None:
    """Writes the report in one HTML file; draws the figures unless a folder has them."""
    from tempfile import TemporaryDirectory

    from fljax.report.page import figures_of, page, save_page

    with TemporaryDirectory() as spare:
        if figures is None:
            save_plots(compared, figures := Path(spare))
        tables = {name: (table.flat_header, table.cells, notes) for name, (table, notes) in compared.tables.items()}
        save_page(path, page(title, tables, figures_of(figures), compared.settings))
