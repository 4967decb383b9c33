"""Whether a folder's run is the one that is to go on: their identities (`fljax.run.identity`), compared."""

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from fljax.run.surroundings import TRACED

LATER = (
    *("key.impl", "group", "triggered", "loss", "work.terms", "model.arguments", "program", "program.rest"),
    "sampling.timing",
)
"""What an identity has not always said; one without the first of them says none of them, and is believed without."""

_OF_DATA = ("model.mean", "model.deviation", "model.target_mean", "model.target_deviation", "program", "program.rest")
"""Parts of a run's identity that may follow from the examples."""
_SUMS = {
    "data": "other labels, or on examples dealt out otherwise",
    "group": "other true groups",
    "triggered": "other examples with a trigger",
}
"""Parts that are checksums, which say nothing to a reader, and what a difference means."""


def check_same_run(
    folder: Path, stored: dict[str, Any], given: dict[str, Any], made_with: Sequence[dict[str, Any]] = ()
) -> None:
    """Raises ValueError where the folder's run differs from the one to be resumed.

    ``made_with`` are the surroundings of its work so far and of what is to come. Another version of what traces
    programs writes the same one otherwise, so that of several nothing is told by it; `continued` speaks of them.
    """
    if len({tuple(one.get(name) for name in TRACED) for one in made_with}) > 1:
        given = given | {name: stored[name] for name in ("program", "program.rest") if name in stored}
    if LATER[0] not in stored:
        given = {name: value for name, value in given.items() if name in stored or name not in LATER}
    differ = {name for name in stored if name in given and stored[name] != given[name]}
    for name, old in sorted(stored.items(), key=lambda item: item[0].startswith("program")):  # which follow from others
        if name in differ:
            if name == "pixels" or (name in _OF_DATA and "pixels" in differ):
                raise ValueError(f"{folder} holds a run on other examples; use another folder, or the data as it was")
            if name in _SUMS and None not in (old, given[name]):
                raise ValueError(f"{folder} holds a run on {_SUMS[name]}; use another folder, or the data as it was")
            if name.startswith("program"):
                _check_numbers(folder, stored.keys(), given.keys())
                raise ValueError(
                    f"{folder} holds a run of the same names and other code: what a round, a test or the first models "
                    "compute has changed; use another folder, or the code as it was, and jax_enable_x64"
                )
            text = f"{name}={old!r}, not {given[name]!r}; use another folder or {old!r}"
            raise ValueError(f"{folder} holds a run with {text}")
    _check_numbers(folder, stored.keys(), given.keys())
    if different := stored.keys() ^ given.keys():
        raise ValueError(
            f"{folder} holds a run of another method, or of another version of fljax: {min(different)!r} is known of "
            "one of the two only; use another folder"
        )


def check_rounds(folder: Path, done: int, n_rounds: int) -> None:
    """Raises ValueError where the folder's run has ``done`` more than ``n_rounds``."""
    if done > n_rounds:
        text = f"n_rounds={n_rounds} is below the {done} rounds in {folder}"
        raise ValueError(f"{text}; choose n_rounds >= {done}, or another folder")


def _check_numbers(folder: Path, stored: Set[str], given: Set[str]) -> None:
    """A number more or less is another program too, and says more than that."""
    for names, others, has in ((given, stored, "had no number"), (stored, given, "had a number")):
        if found := sorted(name for name in names - others if name.startswith("hyper.")):
            text = f"{folder} holds a run of a method that {has} {found[0].removeprefix('hyper.')!r}"
            raise ValueError(f"{text}, and this one has {'one' if names is given else 'none'}; use another folder")
