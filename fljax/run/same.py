"""Whether a folder's run is the one that is to go on: their identities (`fljax.run.identity`), compared."""

from pathlib import Path
from typing import Any

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


def check_same_run(folder: Path, stored: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises ValueError where the folder's run differs from the one to be resumed."""
    if LATER[0] not in stored:
        given = {name: value for name, value in given.items() if name in stored or name not in LATER}
    differ = {name for name in stored if name in given and stored[name] != given[name]}
    for name, old in stored.items():
        if name in differ:
            if name == "pixels" or (name in _OF_DATA and "pixels" in differ):
                raise ValueError(f"{folder} holds a run on other examples; use another folder, or the data as it was")
            if name in _SUMS and None not in (old, given[name]):
                raise ValueError(f"{folder} holds a run on {_SUMS[name]}; use another folder, or the data as it was")
            if name.startswith("program"):
                raise ValueError(
                    f"{folder} holds a run of the same names and other code: what a round, a test or the first models "
                    "compute has changed; use another folder, or the code as it was"
                )
            text = f"{name}={old!r}, not {given[name]!r}; use another folder or {old!r}"
            raise ValueError(f"{folder} holds a run with {text}")
    if different := stored.keys() ^ given.keys():
        raise ValueError(
            f"{folder} holds a run of another method, or of another version of fljax: {min(different)!r} is known of "
            "one of the two only; use another folder"
        )
