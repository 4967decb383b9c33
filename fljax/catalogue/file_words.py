"""Words that name objects of users' files, ``./mine.py:mymethod``, alone and as parts of ``fedavg+./mine.py:clipped``.

Only the spelling is read here; `fljax.catalogue.own` opens the files.
"""

import re
from pathlib import Path

_PART = re.compile(
    r"[^+/:]*(?=\+|$)"  # a name
    r"|.*?\.py(?::[^+]*)?(?=\+|$)"  # an object of a file, whose path may contain a "+"
    r"|[^+]*",
    re.DOTALL,
)


def parts_of(word: str) -> list[str]:
    """The words of a method and of its bricks: ``fedavg+./c++/mine.py:clipped+krum`` has three.

    In a path, a "+" before the first "/" separates two words: write ``./c++/mine.py:clipped``.
    """
    parts, begin = [], 0
    while begin <= len(word):
        match = _PART.match(word, begin)
        assert match is not None  # its last alternative fits everywhere
        parts.append(match[0])
        begin = match.end() + 1
    return parts


def is_file(word: str) -> bool:
    """Whether ``word`` names an object of a user's file, or the file alone, which `fljax.catalogue.own.find` rejects;
    of a method with bricks, whether a part does."""
    return ".py:" in word or any(part.endswith(".py") for part in parts_of(word))


def split_word(word: str) -> tuple[str, str]:
    """File and name of a word: ``./mine.py``, ``mymethod``; no file for a word of another kind."""
    path, _, name = word.rpartition(":") if ".py:" in word else (word, "", "")
    return (path, name) if is_file(word) else ("", word)


def files_of(word: str) -> list[Path]:
    """The files of a word's parts."""
    return [Path(split_word(part)[0]) for part in parts_of(word) if is_file(part)]


def short_name(word: str) -> str:
    """The name in settings and results folders, in which an object of a file has its name alone: ``fedavg+clipped``."""
    return "+".join(split_word(part)[1] for part in parts_of(word))


def absolute(word: str, folder: Path) -> str:
    """``word`` with the absolute path of its file; relative paths start at ``folder``."""
    path, name = split_word(word)
    if not path or "\0" in path:  # which is rejected where it is read, with the setting's name
        return word
    return f"{folder.joinpath(Path(path).expanduser()).resolve()}:{name}"
