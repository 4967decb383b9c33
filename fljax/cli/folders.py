"""Command lines of finished runs: folders, and settings of one word each."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from fljax.jobs.settings import of_arguments


def folders_and_words(
    command: str, names: Sequence[str], arguments: Sequence[str]
) -> tuple[list[Path], dict[str, str]]:
    """Reads ``FOLDER ... --name word ...``: returns the folders, at least one, and the words by name.

    Raises:
        ValueError: there is no folder, a name is not in ``names``, or a name does not have exactly one word.
    """
    folders = [Path(word) for word in takewhile(lambda word: not word.startswith("-"), arguments)]
    options: dict[str, str] = {}
    for name, words in of_arguments(arguments[len(folders) :]):
        if name not in names or len(words) != 1:
            *others, last = (f"--{option}" for option in names)
            allowed = f"{', '.join(others)} and {last}"
            raise ValueError(f"--{name} {' '.join(words)}: fljax {command} takes {allowed}, each with one word")
        options[name] = words[0]
    if not folders:
        raise ValueError(f"name a folder: fljax {command} FOLDER; results are in results/")
    return folders, options
