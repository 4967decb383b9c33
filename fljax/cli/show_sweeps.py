"""`fljax show` of sweeps: the best points of one or several, on the screen and as files."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from fljax.catalogue.words import written
from fljax.jobs.kinds import is_sweep
from fljax.jobs.sweep import read_sweep
from fljax.jobs.sweep_settings import as_words
from fljax.report.summary import Row
from fljax.results.joined_sweeps import Joined, join_sweeps, save_joined
from fljax.results.notes import ON_ONE_SET
from fljax.run.sweep.shown import as_table, count_lines, verdict_lines
from fljax.run.sweep.table import by_point


def show_sweeps(folders: Sequence[Path], options: Mapping[str, str]) -> None:
    """Shows the sweeps in the ``folders``; ``options`` are the options of the command line.

    Raises:
        ValueError: a folder holds no sweep, the sweeps cannot be joined, or an option does not apply to sweeps.
    """
    if others := [folder for folder in folders if not is_sweep(folder)]:
        raise ValueError(f"{others[0]} holds no sweep; show runs and sweeps separately")
    if others := [name for name in options if name not in ("measure", "out")]:
        raise ValueError(f"--{others[0]} {options[others[0]]}: for sweeps fljax show takes only --measure and --out")
    joined = join_sweeps(folders, options.get("measure"))
    points = by_point(joined.rows, joined.metric)
    print(as_table(points, joined.metric, joined.split).text)
    for line in count_lines(points, joined.rows):
        print(line)
    if joined.split == "test" and all(words.get("common_test") == ["true"] for words in joined.settings):
        print(ON_ONE_SET)
    if "out" in options:
        save_joined(joined, Path(options["out"]))
        print(f"written to {options['out']}")
    words_of = partial(_words_of, joined=joined, folders=folders)
    for line in verdict_lines(joined.rows, joined.metric, joined.split, joined.conditions, words_of):
        print(line)


def _words_of(point: Row, joined: Joined, folders: Sequence[Path]) -> list[str]:
    """A point's settings as options of commands, with those in which the sweeps differ; [] if its sweep does not record
    them."""
    sweep_index = next(i for i, row in zip(joined.of, joined.rows, strict=True) if point.items() <= row.items())
    try:
        sweep = read_sweep(["--folder", str(folders[sweep_index]), "--resume"])
    except ValueError:  # made in Python, or the file of its method has moved
        return []
    own_values: Row = {name: value for name, value in point.items() if name in (*sweep.axes, *sweep.labels)}
    settings = joined.settings[sweep_index]
    other_names = [
        name for name in joined.differ if name in settings and name not in ("algorithm", "seed", *sweep.outer)
    ]
    return [word for name in other_names for word in (f"--{written(name)}", *settings[name])] + as_words(
        sweep, own_values, joined.point
    )
