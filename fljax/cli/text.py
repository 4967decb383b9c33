"""Plain text for a terminal: entries with their meaning, aligned tables, the help of a command."""

import shutil
import sys
import textwrap
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from fljax.catalogue.parameters import REQUIRED, Schema, Section
from fljax.catalogue.words import words_of, written
from fljax.cli.settings import path

LEFT = 32
"""Columns of a name; a longer one has a line of its own."""


def show(entries: Iterable[tuple[str, str]], left: int = LEFT) -> None:
    """Prints names with their texts beside them, folded to the terminal's width; "\\n" begins a new line."""
    width = max(shutil.get_terminal_size().columns, left + 30)
    for name, text in entries:
        lines = [line for part in text.split("\n") for line in textwrap.wrap(part, width - left) or [""]]
        if len(name) + 4 > left:
            print(f"  {name}")
            name = ""
        for line in lines:
            print(f"  {name:<{left - 2}}{line}".rstrip())
            name = ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], bold: Container[tuple[int, int]] = ()) -> str:
    """Cells in columns, the first flush left, the others flush right; "\\n" in a header begins a new line.

    On a terminal the cells (row, column) of ``bold`` are bold.
    """
    heads = [cell.split("\n") for cell in header]
    height = max(map(len, heads))
    lines = [[([""] * (height - len(head)) + head)[i] for head in heads] for i in range(height)]
    widths = [max(len(row[i]) for row in (*lines, *rows)) for i in range(len(header))]

    def aligned(cells: Sequence[str], row: int) -> str:
        parts = [cell.rjust(widths[i]) if i else cell.ljust(widths[i]) for i, cell in enumerate(cells)]
        shown = (f"\x1b[1m{part}\x1b[0m" if (row, i) in bold else part for i, part in enumerate(parts))
        return "  ".join(shown if sys.stdout.isatty() else parts).rstrip()

    return "\n".join([*(aligned(cells, -1) for cells in lines), *(aligned(row, i) for i, row in enumerate(rows))])


def show_help(command: str, text: str, schema: Schema, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what a command does and everything that it can be told, with the values that it would have now."""
    print(f"usage: {command} [--NAME VALUE ...]\n\n{text}")
    for section, own in schema.items():
        print(f"\n{section or 'settings'}:")
        show_section(section, own, settings[section])


def show_section(prefix: str, section: Section, values: Mapping[str, Any]) -> None:
    """Prints the settings of one section."""

    def meaning(name: str) -> str:
        value = values[name]
        default = "required" if value == REQUIRED else f"default: {' '.join(words_of(value))}"
        return f"{section[name].help} ({default})".lstrip()

    show((f"--{written(path(prefix, name))} {section[name].metavar}", meaning(name)) for name in section)
