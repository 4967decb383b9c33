"""Which command made a results folder or a file of settings."""

import re
import shlex
from pathlib import Path

RESULTS = {"run": "*/rounds/*.npz", "sweep": "*/parts/*.npz", "compare": "seed_*/*/rounds/*.npz"}
"""Command -> pattern of its first complete results in a folder; an incomplete file ends in .part."""

KINDS = {"run": "a run", "plan": "a run", "sweep": "a sweep", "compare": "a comparison"}
"""Command -> the content of its folder, in words."""


def check_made(config: str, maker: str, command: str) -> None:
    """Raises ValueError if ``command`` cannot use a file of settings that the command ``maker`` wrote."""
    if KINDS[maker] != KINDS[command]:
        raise ValueError(
            f"--config {config}: it holds the settings of {KINDS[maker]}, not of {KINDS[command]}; "
            f"fljax {maker} --config {shlex.quote(config)} repeats it"
        )


def begun_by(folder: Path) -> str | None:
    """The command whose first results a folder has; None if it has none, and settings may still be changed."""
    if not folder.joinpath("config.toml").exists():
        return None
    return next((command for command, pattern in RESULTS.items() if any(folder.glob(pattern))), None)


def made_by(file: Path) -> str | None:
    """The command that a config.toml repeats, by its first line; None if it does not name one."""
    match = re.match(r"# fljax (\w+) --config ", file.read_text(encoding="utf-8", errors="replace"))
    return match[1] if match else None


def is_sweep(folder: Path) -> bool:
    """Whether a folder is one of ``fljax sweep``, or of `fljax.run.sweep.search`."""
    config = folder / "config.toml"
    return made_by(config) == "sweep" if config.exists() else any(folder.glob("parts/search.json"))


def check_kind(folder: str, content: str, maker: str, command: str) -> None:
    """Raises ValueError if ``command`` cannot use a folder of ``maker``; ``content`` says what the folder holds."""
    if KINDS[maker] != KINDS[command]:
        resume = " --resume" if maker == "sweep" else ""
        raise ValueError(
            f"--folder {folder}: it holds {content}, not of {KINDS[command]}; resume it with fljax {maker} --folder "
            f"{shlex.quote(folder)}{resume}, or choose another --folder"
        )
