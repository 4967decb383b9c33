"""config.toml: everything needed to repeat a run, and where it was made."""

import time
from collections.abc import Collection, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import tomli_w

from fljax.catalogue.words import words_of, written
from fljax.cli.job import Job, has_results, is_method
from fljax.cli.settings import OUTER, PARTS, RECORD, UNSET, Layer, of_text, of_toml, path
from fljax.run.checkpoint import write_atomically
from fljax.run.record import machine, versions

NOT_KEPT = ("folder", "config", "resume")
"""Settings that say where a run goes, not what it is."""


def write(command: str, document: dict[str, Any], job: Job, folder: Path, may_change: Collection[str]) -> None:
    """Writes a config.toml with the settings ``document`` of ``job``, unless it is there.

    Raises:
        ValueError: the folder has results of other settings than those that may change.
    """
    stored = of_toml(folder / "config.toml") if has_results(folder) else None
    if stored is not None:
        given = of_text(tomli_w.dumps(document), folder)
        check_same(stored, given, job, folder, may_change)
        if stored == given:
            return
    record = dict(zip(RECORD, (versions(), machine()), strict=True))
    content = f"# fljax {command} --config THIS_FILE repeats this {command}.\n" + tomli_w.dumps(document | record)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "config.toml", content.encode())


def new_folder() -> Path:
    """A folder ``results/<time>`` that no other run has, made."""
    name = time.strftime("%Y-%m-%d_%H-%M-%S")
    for i in count(1):
        folder = Path("results", name if i == 1 else f"{name}_{i}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError


def as_toml(job: Job) -> dict[str, Any]:
    """The job's settings as a TOML document; what is None is left out, or listed as unset where that is no default."""

    def table(section: str) -> dict[str, Any]:
        values = job.settings[section]
        given = {name: value for name, value in values.items() if value is not None and name not in NOT_KEPT}
        unset = [
            name for name, value in values.items() if value is None and job.schema[section][name].default is not None
        ]
        return given | ({UNSET: unset} if unset else {})

    sections = {section: table(section) for section in job.settings}
    own = sections.pop("")
    for part in PARTS:
        sections[part] = {"name": own.pop(part)} | sections[part]
    return own | sections


def check_same(stored: Layer, given: Layer, job: Job, folder: Path, may_change: Collection[str]) -> None:
    """Raises ValueError where the folder's config.toml has another value for one of the settings.

    What either leaves out is at its default. Methods that only one of them has are not compared.
    """
    was, now = dict(stored), dict(given)
    defaults = {path(section, name): one.default for section, own in job.schema.items() for name, one in own.items()}
    sections = [{name.rpartition(".")[0] for name in words} for words in (was, now)]
    for name in dict.fromkeys((*now, *was)):
        section = name.rpartition(".")[0]
        of_one = section not in sections[0] & sections[1] and (is_method(section) or section not in ("", *PARTS))
        if name in may_change or name.endswith(".at_once") or (of_one and not name.startswith(OUTER)):
            continue
        default = ["unset"] if name.startswith(OUTER) else words_of(defaults[name]) if name in defaults else None
        old, new = was.get(name, default), now.get(name, default)
        if old is not None and new is not None and not _same(old, new):  # None: a setting of another version
            raise ValueError(
                f"{folder} holds results with --{written(name)} {' '.join(old)}, not {' '.join(new)}; "
                "choose another --folder"
            )


def _same(was: Sequence[str], now: Sequence[str]) -> bool:
    """Whether words mean the same: 2 and 2.0 do."""

    def equal(one: str, other: str) -> bool:
        try:
            return one == other or float(one) == float(other)
        except ValueError:
            return False

    return len(was) == len(now) and all(map(equal, was, now))
