"""The figures of a finished run, drawn from its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
        save_figures(outcomes, group, figures, pdf=True, common_test=bool(run.config.get("common_test")))


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
