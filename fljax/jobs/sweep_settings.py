"""A sweep's settings for its config.toml, and the settings of one point as options of other commands."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from fljax.catalogue.words import in_words, words_of, written
from fljax.jobs import config
from fljax.jobs.job import read_job
from fljax.jobs.kinds import begun_by
from fljax.jobs.settings import OUTER, of_toml, path
from fljax.jobs.sweep import SweepJob
from fljax.report.summary import Row

MAY_CHANGE = ("data_folder", "new_client_rounds", "runs_at_once", "force_resume")
"""Settings that may change when a sweep is resumed; its number of rounds is fixed from the start."""


def as_toml(sweep: SweepJob) -> dict[str, Any]:
    """The sweep's settings as a TOML document; settings that vary have their words."""
    document = config.as_toml(sweep.job)
    document[sweep.name] |= {name: axis.words for name, axis in sweep.axes.items()}
    outer = {full: [" ".join(words_of(value)) for value in values] for full, values in sweep.outer.items()}
    return document | ({OUTER: outer} if outer else {})


def may_grow(sweep: SweepJob, folder: Path) -> list[str]:
    """The settings of the sweep in ``folder`` that may change, as long as all its runs are among the new ones.

    The search itself checks that no seed and no point is missing.
    """
    stored = dict(of_toml(folder / "config.toml")) if begun_by(folder) else {}
    swept_names = {full.rpartition(".")[2] for full in sweep.outer}  # their folders would have other names
    points = [path(sweep.name, name) for name in sweep.axes if name not in swept_names]
    outer = {f"{OUTER}.{full}": set(words) for full, words in as_toml(sweep).get(OUTER, {}).items()}
    grown = [name for name, words in outer.items() if name in stored and words >= set(stored[name])]
    return ["seeds", "draws", *points, *grown]


def as_words(sweep: SweepJob, point: Row, included: Collection[str] = ()) -> list[str]:
    """A point as options of `fljax run` and `fljax compare`, with every digit of its numbers.

    They include the method's other settings that are not the defaults of these commands, and those in ``included``.
    """
    values: dict[str, Any] = {}  # by full name
    defaults = read_job(["--algorithm", *sweep.job.run.algorithm]).settings.get(sweep.name, {})
    for name, value in sweep.job.settings[sweep.name].items():
        full = path(sweep.name, name)
        if (
            name not in sweep.axes
            and full not in sweep.outer
            and (name in included or value != defaults.get(name, value))
        ):
            values[full] = value
    for label, value in point.items():
        if (full := sweep.labels.get(label)) is None:
            values[path(sweep.name, label)] = float(str(np.float32(str(value))))
        else:
            text = str(value)  # in older tables "(128, 64)", not "128 64"
            values[full] = next(choice for choice in sweep.outer[full] if text in (in_words(choice), str(choice)))
    return [word for full, value in values.items() for word in (f"--{written(full)}", *words_of(value))]
