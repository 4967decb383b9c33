"""`fljax show` of sweeps: the best points of one or of several, on the screen and as files."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from fljax.cli.search import as_words
from fljax.jobs.joined_sweeps import Joined, join_sweeps
from fljax.jobs.kinds import is_sweep
from fljax.jobs.sweep import read_sweep
from fljax.run.report import Row, save_table
from fljax.run.sweep.shown import SHOWN, as_table, verdict
from fljax.run.sweep.table import best, by_point, of_split, unnamed
from fljax.sealed import naming


def show_sweeps(folders: Sequence[Path], given: Mapping[str, str]) -> None:
    """Shows the sweeps in the ``folders``; ``given`` are the words of the command line.

    Raises:
        ValueError: a folder holds no sweep, the sweeps do not go together, or another word than of a sweep is given.
    """
    if others := [folder for folder in folders if not is_sweep(folder)]:
        raise ValueError(f"{others[0]} holds no sweep; show runs and sweeps apart")
    if others := [name for name in given if name not in ("measure", "out")]:
        raise ValueError(f"--{others[0]} {given[others[0]]}: of sweeps fljax show takes --measure and --out")
    joined = join_sweeps(folders, given.get("measure"))
    points = by_point(joined.rows, joined.metric)
    print(as_table(points, joined.metric, joined.split).text)
    if len(points) > SHOWN:
        print(f"the best {SHOWN} of {len(points)} points")
    if "out" in given:
        _save(joined, Path(given["out"]))
        print(f"written to {given['out']}")
    print(verdict(joined.rows, joined.metric, joined.split))
    if words := _words_of_best(joined, folders):
        print(f"its settings: {shlex.join(words)}")


def _words_of_best(joined: Joined, folders: Sequence[Path]) -> list[str]:
    """The best point's settings as commands take them; [] where its sweep says nothing of them."""
    point = best(joined.rows, joined.metric).point
    number = next(i for i, row in zip(joined.of, joined.rows, strict=True) if point.items() <= row.items())
    try:
        sweep = read_sweep(["--folder", str(folders[number]), "--resume"])
    except ValueError:  # made in Python, or with a method whose file is elsewhere
        return []
    own: Row = {name: value for name, value in point.items() if name in (*sweep.axes, *sweep.labels)}
    return as_words(sweep, own, joined.point)


def _save(joined: Joined, folder: Path) -> None:
    """Writes table.csv, a row a run, table.md and table.tex, all points with the best first, and plots/."""
    from fljax.run.plots import save
    from fljax.run.sweep.figures import curves_of, save_responses

    folder.mkdir(parents=True, exist_ok=True)
    save_table(folder / "table.csv", [of_split(row, joined.split) for row in joined.rows], read_again=True)
    table = as_table(by_point(joined.rows, joined.metric), joined.metric, joined.split, most=None)
    for path, text in ((folder / "table.md", table.markdown), (folder / "table.tex", table.latex)):
        with naming(path):
            path.write_text(text, encoding="utf-8")
    plots = folder / "plots"
    plots.mkdir(exist_ok=True)
    numbers = [
        name for name in joined.point if len({row[name] for row in joined.rows}) > 1 and _is_number(joined, name)
    ]
    save_responses(joined.rows, numbers, joined.metric, plots, split=joined.split, pdf=True)
    searches = [one for sweep in joined.sweeps for one in sweep.found]
    for i, one in enumerate(searches):
        metrics = {unnamed(name, joined.split): value for name, value in one.metrics.items()}
        end = f"_{i}" if len(searches) > 1 else ""
        save(curves_of(one.points, metrics, joined.metric, joined.split), plots / f"curves{end}.png", pdf=True)


def _is_number(joined: Joined, name: str) -> bool:
    return all(isinstance(row[name], float | int) for row in joined.rows)
