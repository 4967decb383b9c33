"""Compares the identity (`fljax.run.identity`) of a folder's run with that of the run to be resumed."""

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from fljax.folder.surroundings import TRACED

LATER = (
    *("key.impl", "group", "triggered", "loss", "work.terms", "model.arguments", "program", "program.rest"),
    "sampling.timing",
)
"""Entries that identities of older versions lack; an identity without the first of them lacks all, and is accepted."""

_OF_DATA = ("model.mean", "model.deviation", "model.target_mean", "model.target_deviation", "program", "program.rest")
"""Entries of a run's identity that may depend on the examples."""
_SUMS = {
    "data": "other labels, or on another split of the examples among clients",
    "group": "other true groups",
    "triggered": "other examples with a trigger",
}
"""Entries that are checksums, meaningless to a reader -> the meaning of a difference."""


def check_same_run(
    folder: Path, stored: dict[str, Any], given: dict[str, Any], made_with: Sequence[dict[str, Any]] = ()
) -> None:
    """Raises ValueError if the folder's run differs from the one to be resumed.

    ``made_with`` are the versions and devices of its work so far and of the work to come. Different versions of the
    tracing packages write the same program differently, so with several versions programs are not compared;
    `fljax.folder.surroundings.continued` reports the versions.
    """
    if len({tuple(entry.get(name) for name in TRACED) for entry in made_with}) > 1:
        given = given | {name: stored[name] for name in ("program", "program.rest") if name in stored}
    if LATER[0] not in stored:
        given = {name: value for name, value in given.items() if name in stored or name not in LATER}
    differing = {name for name in stored if name in given and stored[name] != given[name]}
    # Programs last: they depend on the others.
    for name, old in sorted(stored.items(), key=lambda item: item[0].startswith("program")):
        if name in differing:
            if name == "pixels" or (name in _OF_DATA and "pixels" in differing):
                raise ValueError(f"{folder} holds a run on other examples; use another folder, or restore the data")
            if name in _SUMS and None not in (old, given[name]):
                raise ValueError(f"{folder} holds a run on {_SUMS[name]}; use another folder, or restore the data")
            if name.startswith("program"):
                _check_numbers(folder, stored.keys(), given.keys())
                raise ValueError(
                    f"{folder} holds a run with the same names but other code: the computation of a round, a test or "
                    "the first models has changed; use another folder, or restore the code and jax_enable_x64"
                )
            text = f"{name}={old!r}, not {given[name]!r}; use another folder or {old!r}"
            raise ValueError(f"{folder} holds a run with {text}")
    _check_numbers(folder, stored.keys(), given.keys())
    if unshared := stored.keys() ^ given.keys():
        raise ValueError(
            f"{folder} holds a run of another method, or of another version of fljax: only one of the two has "
            f"{min(unshared)!r}; use another folder"
        )


def check_rounds(folder: Path, done: int, n_rounds: int) -> None:
    """Raises ValueError if the folder's run has ``done`` more than ``n_rounds`` rounds."""
    if done > n_rounds:
        text = f"n_rounds={n_rounds} is below the {done} rounds in {folder}"
        raise ValueError(f"{text}; choose n_rounds >= {done}, or another folder")


def _check_numbers(folder: Path, stored: Set[str], given: Set[str]) -> None:
    """Raises ValueError if one run has a hyperparameter that the other lacks, which also makes another program, but
    explains it better."""
    for names, others, has in ((given, stored, "had no number"), (stored, given, "had a number")):
        if unshared := sorted(name for name in names - others if name.startswith("hyper.")):
            text = f"{folder} holds a run of a method that {has} {unshared[0].removeprefix('hyper.')!r}"
            raise ValueError(f"{text}, but this one has {'one' if names is given else 'none'}; use another folder")
