"""Makes the objects of a results folder's runs again: to predict, to test on other data, or to resume in Python."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.files import as_path
from fljax.folder.rounds import METRICS
from fljax.jobs.assemble import make_methods, planned
from fljax.jobs.job import read_job
from fljax.jobs.own_data import read_data
from fljax.jobs.parts import make_model, make_parts
from fljax.types import Federation


class Remade(NamedTuple):
    """The objects of the runs of a folder."""

    federation: Federation  # with the job's attackers and drift
    newcomers: Federation | None  # the new clients that the job held out
    runs: dict[str, dict[str, Any]]  # method -> arguments of `fljax.train`: "algorithm", "hyper", "key", ...
    fills: np.ndarray | None = None  # (features,) values that ``--fill`` put into the empty cells of a table


def remake(folder: str | Path) -> Remade:
    """Reads the settings of a folder of ``fljax run``, or of a seed of ``fljax compare``, and makes what they name.

    The data is read again from its files. ``runs["ditto"]["algorithm"].predict`` scales its inputs as in training: it
    takes a table's numbers as in the file, and pixels as in the pool. ``fljax.train(**runs["ditto"],
    folder=folder / "ditto")`` returns the final state of a finished run at once, and resumes an interrupted one.

    Raises:
        ValueError: the folder has no settings of a run, or they name something that no longer exists.
    """
    folder = as_path("folder", folder)
    if seeds := sorted(path.parent.name for path in folder.glob("seed_*/config.toml")):
        raise ValueError(f"{folder} holds a comparison; choose one of its seeds: {', '.join(seeds)}")
    if (folder.parent / "config.toml").is_file() and (folder / METRICS).exists():
        raise ValueError(f"{folder} is the folder of one method; give {folder.parent}, and --method {folder.name}")
    if not (folder / "config.toml").is_file():
        raise ValueError(f"there is no {folder / 'config.toml'}; fljax run writes one, and fljax compare for each seed")
    job = read_job(["--folder", str(folder)])
    federation, newcomers = make_parts(job)
    fills = None if job.run.data is None else read_data(job).fills(federation)  # attackers add rows to the pool
    methods, federation = make_methods(job, make_model(job, federation), federation)
    patience = {"patience": job.run.patience}
    runs = {name: planned(job, method, federation, name) | patience for name, method in methods.items()}
    return Remade(federation, newcomers, runs, fills)
