"""Which command a results folder, or a file of settings, is of."""

import re
import shlex
from pathlib import Path

RESULTS = {"run": "*/rounds/*.npz", "sweep": "*/parts/*.npz", "compare": "seed_*/*/rounds/*.npz"}
"""Command -> where its first results lie in a folder, when they are whole: what was cut off is called .part."""

KINDS = {"run": "a run", "plan": "a run", "sweep": "a sweep", "compare": "a comparison"}
"""Command -> what its folder holds."""


def check_made(config: str, maker: str, command: str) -> None:
    """Raises ValueError where a file of settings that the command ``maker`` wrote is not ``command``'s."""
    if KINDS[maker] != KINDS[command]:
        raise ValueError(
            f"--config {config}: it holds the settings of {KINDS[maker]}, not of {KINDS[command]}; "
            f"fljax {maker} --config {shlex.quote(config)} repeats it"
        )


def begun_by(folder: Path) -> str | None:
    """The command that has got as far as its first results in a folder; None: none, its settings may be changed."""
    if not folder.joinpath("config.toml").exists():
        return None
    return next((command for command, pattern in RESULTS.items() if any(folder.glob(pattern))), None)


def made_by(file: Path) -> str | None:
    """The command that a config.toml says that it repeats; None: it says nothing."""
    found = re.match(r"# fljax (\w+) --config ", file.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else None


def is_sweep(folder: Path) -> bool:
    """Whether a folder is one of ``fljax sweep``, or of `fljax.run.sweep.search`."""
    config = folder / "config.toml"
    return made_by(config) == "sweep" if config.exists() else any(folder.glob("parts/search.json"))


def check_kind(folder: str, held: str, maker: str, command: str) -> None:
    """Raises ValueError where a folder of the command ``maker``, which ``held`` describes, is not ``command``'s."""
    if KINDS[maker] != KINDS[command]:
        resume = " --resume" if maker == "sweep" else ""
        raise ValueError(
            f"--folder {folder}: it holds {held}, not of {KINDS[command]}; fljax {maker} --folder {shlex.quote(folder)}"
            f"{resume} goes on with it, or choose another --folder"
        )
