"""The result of a comparison of runs: tables, their rows as numbers, and the lines under them."""

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
        from fljax.results.comparison_files import save_comparison

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
