"""Plain text for a terminal: entries with their meaning, the help of a command."""

import shutil
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from fljax.catalogue.parameters import REQUIRED, Schema, Section
from fljax.catalogue.words import words_of, written
from fljax.jobs.settings import path

NAME_WIDTH = 32
"""Columns of a name; a longer name has a line of its own."""


def show(entries: Iterable[tuple[str, str]], name_width: int = NAME_WIDTH) -> None:
    """Prints names with their texts beside them, folded to the terminal's width; "\\n" begins a new line."""
    width = max(shutil.get_terminal_size().columns, name_width + 30)
    for name, text in entries:
        lines = [line for part in text.split("\n") for line in textwrap.wrap(part, width - name_width) or [""]]
        if len(name) + 4 > name_width:
            print(f"  {name}")
            name = ""
        for line in lines:
            print(f"  {name:<{name_width - 2}}{line}".rstrip())
            name = ""


def show_help(command: str, text: str, schema: Schema, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what a command does and all its settings, with the values that they have now."""
    print(f"usage: {command} [--NAME VALUE ...]\n\n{text}")
    for section, parameters in schema.items():
        print(f"\n{section or 'settings'}:")
        show_section(section, parameters, settings[section])


def show_section(prefix: str, section: Section, values: Mapping[str, Any]) -> None:
    """Prints the settings of one section."""

    def meaning(name: str) -> str:
        value = values[name]
        default = "required" if value == REQUIRED else f"default: {' '.join(words_of(value))}"
        return f"{section[name].help} ({default})".lstrip()

    show((f"--{written(path(prefix, name))} {section[name].metavar}", meaning(name)) for name in section)
