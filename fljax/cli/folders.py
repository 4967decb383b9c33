"""Command lines of finished runs: folders, and settings of one word each."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from fljax.catalogue.words import shown
from fljax.jobs.settings import of_arguments


def folders_and_words(
    command: str, names: Sequence[str], arguments: Sequence[str]
) -> tuple[list[Path], dict[str, str]]:
    """Reads ``FOLDER ... --name word ...``: returns the folders, at least one, and the words by name.

    Raises:
        ValueError: there is no folder, a name is not in ``names``, a name does not have exactly one word, or a word is
            empty.
    """
    folder_words = list(takewhile(lambda word: not word.startswith("-"), arguments))
    folders = [Path(word) for word in folder_words]
    options: dict[str, str] = {}
    for name, words in of_arguments(arguments[len(folders) :]):
        if name not in names or len(words) != 1 or not words[0]:  # a variable of the shell that is not set
            *others, last = (f"--{option}" for option in names)
            allowed = f"{', '.join(others)} and {last}"
            raise ValueError(f"{shown(name, words)}: fljax {command} takes {allowed}, each with one word")
        options[name] = words[0]
    if not folders or "" in folder_words:
        raise ValueError(f"name a folder: fljax {command} FOLDER; results are in results/")
    return folders, options
