"""Checks whether a job can resume what its folder holds, before anything in the folder is written."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fljax.catalogue.job import PARTS
from fljax.catalogue.words import written
from fljax.folder.checkpoint import rounds_done, standing_of
from fljax.folder.rounds import read_rounds
from fljax.jobs import config
from fljax.jobs.job import Job
from fljax.jobs.layers import MAY_CHANGE
from fljax.jobs.settings import last, of_toml, path
from fljax.rounds.sampling import Sampling
from fljax.run.arguments import check_folder
from fljax.run.patience import ends_after


def begun_with(job: Job, folders: Iterable[Path]) -> list[int | None]:
    """The number of devices of each method's run in each of the results ``folders``; None if it has not begun."""
    return [standing_of(folder / name).n_devices for folder in folders for name in job.methods]


def check_going_on(job: Job, runs: dict[str, dict[str, Any]], folder: Path) -> None:
    """Checks that the runs can resume what ``folder`` holds of them, before anything in it is written.

    Raises:
        ValueError: it has results of other settings, of further methods or of more rounds.
    """
    config.check(config.as_toml(job), job, folder, MAY_CHANGE)
    check_rounds(job, folder)
    check_runs(job, runs, folder, folder)
    check_patience(job, folder)


def check_runs(job: Job, runs: dict[str, dict[str, Any]], folder: Path, results: Path) -> None:
    """Raises ValueError if ``folder``, part of the folder ``results``, holds a method's run that differs from
    ``runs``."""
    for name, run in runs.items():
        try:
            check_folder(folder / name, **run, compile=job.run.compile, force_resume=job.run.force_resume)
        except ValueError as error:
            error.args = (_as_written(str(error), name, job),)
            raise refused_rounds(job, name, run["sampling"], results) or error from None


def _as_written(text: str, method: str, job: Job) -> str:
    """A message of `fljax.run.identity` with a setting's name as on the command line."""

    def name(match: re.Match[str]) -> str:
        section = match[1] if match[1] in PARTS else method
        return f"--{written(path(section, match[2]))} " if match[2] in job.settings.get(section, ()) else match[0]

    return re.sub(r"(?<=holds a run with )(\w+)\.(\w+)=", name, text)


def refused_rounds(job: Job, name: str, sampling: Sampling, folder: Path) -> ValueError | None:
    """The error for a run that depends on its number of rounds, if the folder's run has another number; else None."""
    timing, n_rounds = sampling.timing, job.run.rounds
    if timing is not None and timing.ends:
        reason = f"without waiting (--clock {job.run.clock}): its order is drawn for this number of rounds"
    elif (target := job.settings[name].get("target_epsilon")) is not None:
        reason = f"with --target-epsilon {target:g}: its noise is computed for this number of rounds"
    else:
        return None
    stored = last([of_toml(folder / "config.toml")], "rounds") if (folder / "config.toml").exists() else None
    if stored is None or stored == [str(n_rounds)]:
        return None
    return ValueError(
        f"--rounds {n_rounds}: {folder} holds a run of --rounds {stored[0]} {reason}; choose --rounds {stored[0]} or "
        "another --folder"
    )


def check_rounds(job: Job, folder: Path) -> None:
    """Raises ValueError if a method has made more rounds than the job has: they cannot be undone."""
    for name in job.methods:
        if (done := rounds_done(folder / name)) > (rounds := job.run.rounds):
            raise ValueError(
                f"--rounds {rounds}: {folder} holds {done} rounds of {name}; choose --rounds {done} or another --folder"
            )


def check_patience(job: Job, folder: Path) -> None:
    """Raises ValueError if a method has made more rounds than the job's patience allows."""
    if (patience := job.run.patience) is None:
        return
    for name in job.methods:
        done = rounds_done(folder / name)
        ends = ends_after(read_rounds(folder / name, done), patience, job.run.evaluate_every) if done else None
        if ends is not None and ends < done:
            raise ValueError(
                f"--patience {patience}: {folder} holds {done} rounds of {name}, but this patience ends it after "
                f"{ends}; leave --patience as it was, or choose another --folder"
            )
