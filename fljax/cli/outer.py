"""The outer loop of `fljax sweep`: static settings, each combination of whose values is a program of its own."""

import shlex
from collections.abc import Container, Sequence
from typing import Any

from fljax.cli.axis import check_different
from fljax.cli.job import Job
from fljax.cli.settings import Words, resolve, typed, written

OUTER = "outer."
NOT_OUTER = ("algorithm", "dataset", "data_folder", "partition", "model", "rounds", "seed")
"""Settings that make another sweep, with a table of its own."""
NOT_SWEPT = ("new_clients", "new_client_rounds")
"""Settings of what a sweep does not do: its runs keep no model that new clients could meet."""
NO_NEW_CLIENTS = "a sweep tests no new clients; fljax run does"


def outer_values(words: Words, job: Job) -> dict[str, list[Any]]:
    """The values of each setting, by full name, that one layer gives to the outer loop.

    Raises:
        ValueError: in one line, for settings that the outer loop does not take or that stand twice, and values of the
            wrong type or that stand twice.
    """
    found: dict[str, str] = {}
    for name in words:
        full = _full(name, job)
        if full in found:
            raise ValueError(f"--{written(found[full])} and --{written(name)} are both --{written(full)}; give one")
        found[full] = name
    return {full: _values(name, words[name], full, job) for full, name in found.items()}


def labels(names: Sequence[str], axes: Container[str]) -> list[str]:
    """A column of the table for each full name: the short one where nothing else has it."""
    short = [name.rpartition(".")[2] for name in names]
    alone = [short.count(label) == 1 and label not in axes for label in short]
    return [label if ok else name for label, ok, name in zip(short, alone, names, strict=True)]


def _full(name: str, job: Job) -> str:
    """The setting that an outer name means."""
    (found,) = resolve({name.removeprefix(OUTER): []}, job.schema)
    if found in NOT_OUTER:
        raise ValueError(f"--{written(name)}: another {found} is a sweep of its own; run one for each")
    if found in NOT_SWEPT:
        raise ValueError(f"--{written(name)}: {NO_NEW_CLIENTS}")
    return found


def _values(name: str, words: Sequence[str], full: str, job: Job) -> list[Any]:
    """The values of an outer setting: a word each, quoted where a value has several."""
    if not words:
        raise ValueError(f"--{written(name)}: an empty grid; give at least one value")
    section, _, field = full.rpartition(".")
    try:
        split = [shlex.split(word) for word in words]
    except ValueError:
        raise ValueError(f"--{written(name)} {' '.join(words)}: a quotation mark is not closed") from None
    values = [typed(name, parts, job.schema[section][field].kind) for parts in split]
    check_different(f"--{written(name)} {' '.join(words)}", values)
    return values
