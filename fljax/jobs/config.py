"""config.toml: everything needed to repeat a run, and where it was made."""

import time
import tomllib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fljax.catalogue.file_words import is_file, short_name
from fljax.catalogue.job import PARTS
from fljax.catalogue.words import words_of, written
from fljax.files import write_atomically
from fljax.folder import writer
from fljax.folder.surroundings import machine, versions
from fljax.jobs.job import Job
from fljax.jobs.kinds import RESULTS, begun_by, made_by
from fljax.jobs.main_job import set_by_main_job
from fljax.jobs.settings import NOT_KEPT, OUTER, RECORD, UNSET, Layer, last, of_text, of_toml, path
from fljax.run.privacy import NOISES
from fljax.sealed import DamagedError, check_text, with_checksum

FILES = ("config.toml", "names.json", "clients.csv", "summary.csv", "table.csv", "comparison.csv", "report.html")
"""Files that commands write into a results folder, besides the methods' folders and ``plots/``."""


def write(
    command: str, document: dict[str, Any], job: Job, folder: Path, may_change: Collection[str], writable: bool = True
) -> None:
    """Writes a config.toml with the settings ``document`` of ``job`` into ``folder``, unless it is there already.

    The versions and the machine of a folder with results stay in it; after a forced resume with other versions or on
    another machine, ``[[history]]`` lists these too. The last line has a checksum, because the file is read again.

    Raises:
        ValueError: the folder has results with other values of settings that must not change, or the file must be
            written and the folder is not ``writable``.
    """
    path, record = folder / "config.toml", {"versions": versions(), "machine": machine()}
    if begun_by(folder):
        check(document, job, folder, may_change)
        stored, new_settings = of_toml(path), of_text(tomli_w.dumps(document), folder)
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        old_record = {name: content[name] for name in RECORD if name in content}
        record = _with_history(old_record, record) if job.run.force_resume else old_record
        if stored == new_settings and record == old_record and _is_undamaged(path):
            return
    elif not (path.exists() and made_by(path)):
        _check_free(folder)
    if not writable:
        raise ValueError(f"{folder} is not writable; copy it to a place that is, or choose another --folder")
    writer.make_folder(folder)
    title = f"# fljax {command} --config THIS_FILE repeats this {command}; the last line has a checksum.\n"
    write_atomically(path, with_checksum(title + tomli_w.dumps(document | record)))


def _check_free(folder: Path) -> None:
    """Raises ValueError if results would replace a user's own file."""
    if taken := [name for name in FILES if (folder / name).is_file()]:
        raise ValueError(f"{folder} has a {taken[0]} of its own, which results would replace; choose another --folder")


def check(document: dict[str, Any], job: Job, folder: Path, may_change: Collection[str]) -> None:
    """Raises ValueError if ``folder`` has results of other settings than ``document``, or of further methods."""
    if command := begun_by(folder):
        stored = of_toml(folder / "config.toml")
        check_same(stored, of_text(tomli_w.dumps(document), folder), job, folder, may_change)
        if "algorithm" in may_change:
            _check_methods(last([stored], "algorithm") or [], job, folder, command)


def _check_methods(words: Sequence[str], job: Job, folder: Path, command: str) -> None:
    """Raises ValueError if one of the folder's methods ``words`` has results and is not a method of the job.

    config.toml and the tables cover the job's methods only, so they would lose the other method.
    """
    left_out = [
        word
        for word in words
        if short_name(word) not in job.methods
        and any(folder.glob(RESULTS[command].replace("*/rounds", f"{short_name(word)}/rounds")))
    ]
    if left_out:
        chosen = job.run.algorithm
        all_methods = dict.fromkeys(word for word in (*words, *chosen) if word in left_out or word in chosen)
        raise ValueError(
            f"--algorithm {' '.join(chosen)}: {folder} holds results of {', '.join(left_out)} too; choose --algorithm "
            f"{' '.join(all_methods)} or another --folder"
        )


def _is_undamaged(path: Path) -> bool:
    try:
        check_text(path, "", required=True)
    except DamagedError:
        return False
    return True


def _with_history(record: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """The record with ``current`` appended to its history, if that differs from the last entry."""
    history = record["history"] if isinstance(record.get("history"), list) else []
    last_entry = history[-1] if history else {name: record.get(name) for name in current}
    return record if last_entry == current else record | {"history": [*history, current]}


def new_folder() -> Path:
    """Makes a folder ``results/<time>`` that no other run has."""
    return writer.new_folder(Path("results"), time.strftime("%Y-%m-%d_%H-%M-%S"))


def as_toml(job: Job) -> dict[str, Any]:
    """The job's settings as a TOML document; settings that are None are left out, or listed as unset if None is not
    their default, or if the main job may set them."""
    names_of_main_job = set_by_main_job()

    def is_set_elsewhere(section: str, name: str) -> bool:
        is_of_main_job = not {name, path(section, name)}.isdisjoint(names_of_main_job)
        return job.schema[section][name].default is not None or is_of_main_job

    def table(section: str) -> dict[str, Any]:
        values = job.settings[section]
        entries = {name: value for name, value in values.items() if value is not None and name not in NOT_KEPT}
        if "target_epsilon" in entries:  # the noise follows from it, so its default is left out
            default_noises = {name: job.schema[section][name].default for name in NOISES if name in entries}
            entries = {
                name: value
                for name, value in entries.items()
                if name not in default_noises or value != default_noises[name]
            }
        unset = [name for name, value in values.items() if value is None and is_set_elsewhere(section, name)]
        return entries | ({UNSET: unset} if unset else {})

    sections = {section: table(section) for section in job.settings}
    run_table = sections.pop("")
    for part in PARTS:
        sections[part] = {"name": run_table.pop(part)} | sections[part]
    return run_table | sections


def check_same(stored: Layer, new_settings: Layer, job: Job, folder: Path, may_change: Collection[str]) -> None:
    """Raises ValueError if the folder's config.toml has another value for one of the settings.

    A setting that is missing on one side has its default there. Methods of one side only are not compared.
    """
    stored_words, new_words = dict(stored), dict(new_settings)
    defaults = {
        path(section, name): parameter.default
        for section, parameters in job.schema.items()
        for name, parameter in parameters.items()
    }
    sections = [{name.rpartition(".")[0] for name in words} for words in (stored_words, new_words)]
    for name in dict.fromkeys((*new_words, *stored_words)):
        section = name.rpartition(".")[0]
        is_in_one_only = section not in {*(sections[0] & sections[1]), "", *PARTS}
        if name in may_change or name.endswith(".at_once") or (is_in_one_only and not name.startswith(OUTER)):
            continue
        default = ["unset"] if name.startswith(OUTER) else words_of(defaults[name]) if name in defaults else None
        old, new = stored_words.get(name, default), new_words.get(name, default)
        if old is not None and new is not None and not _same(name, old, new):  # None: a setting of another version
            raise ValueError(
                f"{folder} holds results with --{written(name)} {' '.join(old)}, not {' '.join(new)}; "
                "choose another --folder"
            )


def _same(name: str, old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether words mean the same: 2 and 2.0 do, and so do different paths of a file, whose content the runs record."""
    if name in (*PARTS, "algorithm") and all(map(is_file, (*old, *new))):
        old, new = [short_name(word) for word in old], [short_name(word) for word in new]
    if name == "data" and ["None"] not in (list(old), list(new)):
        return True

    def equal(one: str, other: str) -> bool:
        try:
            return one == other or float(one) == float(other)
        except ValueError:
            return False

    return len(old) == len(new) and all(map(equal, old, new))
