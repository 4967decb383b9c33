"""config.toml: everything needed to repeat a run, and where it was made."""

import importlib.metadata
import os
import platform
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import jax
import tomli_w

from fljax.cli.axes import SWEEP, SweepJob
from fljax.cli.job import MAY_CHANGE, Job, has_results, is_method, read_config
from fljax.cli.outer import OUTER
from fljax.cli.settings import Words, path, words_of_toml, written
from fljax.run.checkpoint import write_atomically

PACKAGES = ("fljax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "scikit-learn")
SWEEP_MAY_CHANGE = ("data_folder", "new_client_rounds", "runs_at_once")
"""What `MAY_CHANGE` is for a sweep, whose rounds are laid out from the start."""


def write(job: Job, folder: Path) -> None:
    """Writes the folder's config.toml.

    Raises:
        ValueError: the folder has results of other settings.
    """
    check_same(as_toml(job), _defaults(job), folder, MAY_CHANGE)
    _write(folder, "run", as_toml(job))


def write_sweep(job: SweepJob, folder: Path) -> None:
    """Writes the config.toml of a sweep's folder.

    Raises:
        ValueError: the folder has results, and the sweep is another or was not told to go on.
    """
    document = as_toml(job.job) | {name: value for name, value in job.own.items() if value is not None}
    del document["resume"]
    document[job.name] |= job.axes
    document |= {"outer": {job.full[label]: [_word(value) for value in values] for label, values in job.outer.items()}}
    if has_results(folder) and not job.own["resume"]:
        raise ValueError(f"{folder} holds results; add --resume to go on with them, or choose another --folder")
    check_same(document, _defaults(job.job), folder, SWEEP_MAY_CHANGE)
    _write(folder, "sweep", document)


def _write(folder: Path, command: str, document: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    record = {"versions": versions(), "machine": machine()}
    content = f"# fljax {command} --config THIS_FILE repeats this {command}.\n" + tomli_w.dumps(document | record)
    write_atomically(folder / "config.toml", content.encode())


def _word(value: Any) -> str:
    """A value of the outer loop as its one word on the command line."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def as_toml(job: Job) -> dict[str, Any]:
    """The job's settings as a TOML document; None is left out where it is the default."""

    def table(section: str) -> dict[str, Any]:
        defaults = {name: parameter.default for name, parameter in job.schema[section].items()}
        set_ = {name: value for name, value in job.settings[section].items() if not value is defaults[name] is None}
        return {name: _plain(value) for name, value in set_.items()}

    sections = {section: table(section) for section in job.settings}
    own = sections.pop("")
    for section in ("partition", "model"):
        sections[section] = {"name": own.pop(section)} | sections[section]
    return own | sections


def _plain(value: Any) -> Any:
    """A value as TOML has it: a tuple is an array, None the word."""
    return list(value) if isinstance(value, tuple) else "None" if value is None else value


def _defaults(job: Job) -> Words:
    """What each setting is where a document leaves it out."""
    schema = job.schema | {"": job.schema[""] | SWEEP}
    found = {path(section, name): p.default for section, own in schema.items() for name, p in own.items()}
    return words_of_toml({name: _plain(default) for name, default in found.items()})


def check_same(document: dict[str, Any], defaults: Words, folder: Path, may_change: Collection[str]) -> None:
    """Raises ValueError where the folder has results and its config.toml another value for one of the settings.

    What either leaves out is at its default. Methods that only one of them has are not compared.
    """
    if not has_results(folder):
        return
    stored, given = words_of_toml(read_config(folder / "config.toml")), words_of_toml(document)
    for name in dict.fromkeys((*given, *stored)):
        section = name.rpartition(".")[0]
        of_both = all(any(other.startswith(f"{section}.") for other in words) for words in (stored, given))
        if name in may_change or name.endswith(".at_once") or (is_method(section) and not of_both):
            continue
        default = ["unset"] if name.startswith(OUTER) else defaults.get(name)
        was, now = stored.get(name, default), given.get(name, default)
        if was is not None and now is not None and not _same(was, now):  # None: a setting of another version
            raise ValueError(
                f"{folder} holds results with --{written(name)} {' '.join(was)}, not {' '.join(now)}; "
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


def versions() -> dict[str, str]:
    """Versions of Python and of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """What the run was computed on."""
    devices = jax.devices()
    return {
        "system": platform.platform(),
        "cores": os.cpu_count() or 1,
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in devices],
    }
