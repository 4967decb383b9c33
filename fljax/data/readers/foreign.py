"""For messages: what a file of the wrong kind is, and which package reading a file needs."""

from importlib import import_module
from pathlib import Path
from typing import Any


def kind(head: bytes) -> str:
    """The kind of a file, in words, by its first bytes."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a Python pickle, which is not read because unpickling a file runs code from it"
    if head[:2] == b"\x1f\x8b":
        return "a gzip file"
    if head[:2] == b"PK":
        return "a zip file"
    if head.lstrip()[:1] == b"<":
        return "a web page"
    return f"something that begins with {head[:4].hex()}" if head else "empty"


def first_pickle(folder: Path) -> Path | None:
    """The first pickle in a folder or its subfolders, such as CIFAR's Python version."""
    for file in sorted([*folder.glob("*"), *folder.glob("*/*")])[:1000]:
        if file.is_file():
            with open(file, "rb") as stream:
                if "pickle" in kind(stream.read(4)):
                    return file
    return None


def installed(module: str, path: Path) -> Any:
    """Imports a module that reading ``path`` needs.

    Raises:
        ValueError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"reading {path} needs {error.name}: pip install 'fljax[datasets]'") from None
