"""Tables in text files: CSV, plain or packed by gzip, its separator and its lines."""

import csv
import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import dropwhile, islice
from pathlib import Path
from typing import IO, NamedTuple

from fljax.data.own.file_kinds import is_packed, kind_of

_BEFORE_NAME = r"(?:^|(?<=[,;\t|]))"
"""Where a quote opens; one inside a name, as of inches, is a part of it."""
_MOST_HEADER_LINES = 1000


class Lines(NamedTuple):
    """The content of a text file."""

    header: list[str]  # names of the columns
    rows: list[list[str]]  # one value per column
    begins: list[int]  # the line on which each row begins


def read_lines(path: Path) -> Lines:
    """The names and rows of a table; empty lines are none of them.

    Values of a ``.tsv`` are separated by tabs, others as `_separator` finds.

    Raises:
        ValueError: as `opened`, or a row has more or fewer values than there are names.
    """
    with _values_of_any_length(), opened(path) as file:
        separator = "\t" if kind_of(path) == ".tsv" else _separator(file)
        file.seek(0)
        reader = csv.reader(file, delimiter=separator)
        header = next((row for row in reader if row), [])
        rows, lines, begins = [], [], reader.line_num + 1  # empty lines are no rows; a quoted value may span lines
        for row in reader:
            if row and len(row) != len(header):
                raise ValueError(
                    f"line {begins} has {len(row)} values and the header {len(header)} names; give one value each"
                )
            if row:
                rows.append(row)
                lines.append(begins)
            begins = reader.line_num + 1
    return Lines(header, rows, lines)


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """The text of a CSV file, unpacked if its name says that it is packed; errors of the block are those of the file.

    Raises:
        ValueError: it is not text in UTF-8, or not packed by gzip, or damaged.
    """
    try:
        with (gzip.open if is_packed(path) else open)(path, "rt", newline="", encoding="utf-8-sig") as file:
            yield file
    except UnicodeDecodeError as error:
        raise ValueError(f"not CSV text in UTF-8: {error}; save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"not CSV text: {error}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"cannot be unpacked by gzip: {error}; pack it again, or give it unpacked") from None


def _separator(lines: Iterator[str]) -> str:
    """The first of the usual separators that the header has outside of its quoted names, which may span lines."""
    unquoted = ""
    for line in islice(dropwhile(lambda line: not line.strip("\r\n"), lines), _MOST_HEADER_LINES):
        unquoted = re.sub(f'{_BEFORE_NAME}"([^"]|"")*"', "", unquoted + line)
        if not re.search(f'{_BEFORE_NAME}"', unquoted):
            break
    return next((character for character in ",;\t|" if character in unquoted), ",")


@contextmanager
def _values_of_any_length() -> Iterator[None]:
    """A context in which Python's csv also reads values of more than 131,072 characters, such as a book."""
    old_limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(old_limit)
