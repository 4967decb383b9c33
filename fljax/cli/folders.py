"""Command lines of finished runs: folders, and settings of one word each."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from fljax.jobs.settings import of_arguments


def folders_and_words(
    command: str, names: Sequence[str], arguments: Sequence[str]
) -> tuple[list[Path], dict[str, str]]:
    """``FOLDER ... --name word ...``: the folders, of which there is one at least, and the words by their names.

    Raises:
        ValueError: no folder, another name than ``names``, or no single word.
    """
    folders = [Path(word) for word in takewhile(lambda word: not word.startswith("-"), arguments)]
    given: dict[str, str] = {}
    for name, words in of_arguments(arguments[len(folders) :]):
        if name not in names or len(words) != 1:
            *others, last = (f"--{known}" for known in names)
            known = f"{', '.join(others)} and {last}"
            raise ValueError(f"--{name} {' '.join(words)}: fljax {command} takes {known}, a word each")
        given[name] = words[0]
    if not folders:
        raise ValueError(f"say which: fljax {command} FOLDER; results are in results/")
    return folders, given
