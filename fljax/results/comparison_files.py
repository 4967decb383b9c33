"""A comparison as files: its table in three formats, figures, and a report in one HTML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fljax.results.comparison import Comparison, Part


def save_figures_of(folder: Path, figures: Path) -> None:
    """Draws the figures of `fljax run` for a finished run, as PNG and PDF; none for methods without saved models."""
    from fljax.report.figures import save_figures
    from fljax.report.summary import Outcome
    from fljax.results.load import load_run
    from fljax.results.result import read_new_tests

    run = load_run(folder)
    outcomes = {
        name: Outcome(result.metrics, result.models, float("nan"))
        for name, result in run.results.items()
        if result.has_models
    }
    if outcomes:
        n_clients = len(next(iter(outcomes.values())).deployed.row)
        n_new = max(len(read_new_tests(result.folder).get("group", ())) for result in run.results.values())
        group = groups_of(folder / "clients.csv", run.client_rows(), n_clients, n_clients + n_new)
        save_figures(outcomes, group, figures, pdf=True)


def groups_of(file: Path, rows: Sequence[dict[str, Any]], n_clients: int, n_all: int) -> Any:
    """The clients' true groups, (clients,) int, from the rows of clients.csv; None if it has none.

    They are numbered over ``n_all`` clients: the ``n_clients`` that train, and those that were held out.

    Raises:
        ValueError: they are not as a run writes them.
    """
    import numpy as np

    groups = [row.get("group") for row in rows]
    known_groups = [group for group in groups if group is not None]
    if not groups or len(known_groups) < len(groups):
        return None
    if len(groups) != n_clients:
        raise ValueError(f"{file} has {len(groups)} clients, the models {n_clients}; restore the file")
    for client, group in enumerate(known_groups):
        if not isinstance(group, int) or not 0 <= group < n_all:
            raise ValueError(
                f"{file}: client {client} has group {group!r}; groups are 0 to {n_all - 1}; restore the file"
            )
    return np.array(known_groups, int)


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

    from fljax.report import plots

    # Rounds in which all seeds were tested: a seed that stopped keeps its last value in every later round.
    tested = {method: np.isfinite(curves).all(axis=0) for method, curves in part.curves.items()}
    lines = {m: (np.flatnonzero(tested[m]) + 1, curves[:, tested[m]].mean(axis=0)) for m, curves in part.curves.items()}
    ranges = {
        m: (curves[:, tested[m]].min(axis=0), curves[:, tested[m]].max(axis=0)) for m, curves in part.curves.items()
    }
    bands = ranges if len(lines) <= 5 else None  # more bands hide each other
    figure = plots.learning_curves(lines, measure.replace("_", " "), spread=bands)
    plots.save(figure, folder / f"learning_curves{ending}.png", pdf=True)
    figure = plots.over_clients(part.clients, f"client's test {part.of_clients}")
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
