"""Kinds of files with a user's own data, told by their names."""

from pathlib import Path

TEXT_TABLES = (".csv", ".tsv")
"""Tables in text files, which may be packed by gzip: ``mine.csv.gz``."""
TABLES = (*TEXT_TABLES, ".parquet")

ALLOWED_TABLES = ".csv, .csv.gz, .tsv, .tsv.gz, .parquet"
"""The kinds of tables, as messages list them."""


def kind_of(path: Path) -> str:
    """The ending of a file's name in small letters, which is that of the packed file in ``mine.CSV.gz``; "" if it has
    none."""
    return Path(_unpacked_name(path)).suffix.lower()


def is_packed(path: Path) -> bool:
    """Whether the name is that of a table packed by gzip."""
    return _unpacked_name(path) != path.name


def stem_of(path: Path) -> str:
    """The file's name without its kind: "mine" of ``mine.csv`` and of ``mine.csv.gz``."""
    return Path(_unpacked_name(path)).stem


def _unpacked_name(path: Path) -> str:
    """The file's name, without the ``.gz`` of a packed table."""
    name = path.name[: -len(".gz")]
    return name if path.suffix.lower() == ".gz" and Path(name).suffix.lower() in TEXT_TABLES else path.name
