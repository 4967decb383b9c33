"""What a results folder's runs were made of, as objects: to predict, to test on other data, or to go on in Python."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fljax.jobs.assemble import make_methods, planned
from fljax.jobs.job import read_job
from fljax.jobs.own_data import read_data
from fljax.jobs.parts import make_model, make_parts
from fljax.run.rounds import METRICS
from fljax.types import Federation


class Remade(NamedTuple):
    """What the runs of a folder are made of."""

    federation: Federation  # with the job's attackers and drift
    newcomers: Federation | None  # the clients that it held out for the end
    runs: dict[str, dict[str, Any]]  # method -> what `fljax.train` is called with: "algorithm", "hyper", "key", ...
    fills: np.ndarray | None = None  # (features,) what ``--fill`` put into the empty cells of each column of a table


def remake(folder: str | Path) -> Remade:
    """Reads the settings of a folder of ``fljax run``, or of a seed of ``fljax compare``, and makes all that they name.

    The data is read again, from where it was. The network of ``runs["ditto"]["algorithm"].predict`` scales its inputs
    as it did in training: it takes a table's numbers as they are in the file, and pixels as they are in the pool.
    ``fljax.train(**runs["ditto"], folder=folder / "ditto")`` gives the final state of a finished run at once, and goes
    on with one that was stopped.

    Raises:
        ValueError: the folder has no settings of a run, or they name what is no longer there.
    """
    folder = Path(folder)
    if seeds := sorted(path.parent.name for path in folder.glob("seed_*/config.toml")):
        raise ValueError(f"{folder} holds a comparison; choose one of its seeds: {', '.join(seeds)}")
    if (folder.parent / "config.toml").is_file() and (folder / METRICS).exists():
        raise ValueError(f"{folder} has what one method left; give {folder.parent}, and --method {folder.name}")
    if not (folder / "config.toml").is_file():
        raise ValueError(f"there is no {folder / 'config.toml'}; fljax run writes one, and fljax compare for each seed")
    job = read_job(["--folder", str(folder)])
    federation, newcomers = make_parts(job)
    fills = None if job.run.data is None else read_data(job).fills(federation)  # attackers add rows to the pool
    methods, federation = make_methods(job, make_model(job, federation), federation)
    ends = {"patience": job.run.patience}
    runs = {name: planned(job, made, federation, name) | ends for name, made in methods.items()}
    return Remade(federation, newcomers, runs, fills)
