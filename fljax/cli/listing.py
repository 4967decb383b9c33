"""`fljax list`: methods with their settings, bricks, attacks, drifts, clocks, partitions, networks and so on."""

from collections.abc import Sequence

from fljax.catalogue.datasets import ABOUT
from fljax.catalogue.entries import Entry, by_kind, entry, fitting, methods_table, names
from fljax.catalogue.file_words import is_file, short_name
from fljax.catalogue.own import installed, kind_of_file
from fljax.catalogue.parameters import defaults
from fljax.catalogue.words import nearest, written
from fljax.cli.text import show, show_section
from fljax.jobs.job import read_job

USAGE = """usage: fljax list [KIND | NAME ...] [--markdown]

Lists every name that fljax run can use. KIND is algorithms, bricks, attacks, drifts, clocks, partitions, models,
samplings, scores or datasets; with a NAME of one of them, such as ifca, fedavg+krum or ./mine.py:mymethod, it shows the
settings of that one. --markdown prints the methods as a Markdown table.
"""
KINDS = (
    "algorithms",
    "bricks",
    "attacks",
    "drifts",
    "clocks",
    "partitions",
    "models",
    "samplings",
    "scores",
    "datasets",
)


def main(arguments: Sequence[str]) -> None:
    """Lists everything, one kind, or the settings of one name.

    Raises:
        ValueError: there is no such kind or name.
    """
    if {"--help", "-h"} & set(arguments):
        print(USAGE, end="")
    elif "--markdown" in arguments:
        print(methods_table())
    else:
        for name in arguments or KINDS:
            show_kind(name) if name in KINDS else show_one(name)


def show_kind(kind: str) -> None:
    """Prints every name of a kind with its summary, and its settings in a second line."""
    print(kind)
    if kind == "datasets":
        show([("", f"{' '.join(names('dataset'))}\n(fljax data lists where each is, or how to get it)")], 2)
    elif kind == "algorithms":
        methods = {name: entry("algorithm", name) for name in by_kind()}
        for group in dict.fromkeys(details.group for details in methods.values()):
            print(f"\n {group}")
            show(((name, _line(details)) for name, details in methods.items() if details.group == group), 26)
    else:
        show(((name, _line(entry(kind[:-1], name))) for name in names(kind[:-1])), 26)
    theirs = [f"{name} ({of})" for name, of in installed(kind[:-1]).items() if name not in names(kind[:-1])]
    print(f"\n of installed packages\n  {', '.join(theirs)}\n" if theirs else "")


def show_one(word: str) -> None:
    """Prints the settings of one name, with their meanings."""
    kind = kind_of(word)
    if kind == "dataset":
        show_dataset(word)
        return
    details = entry(kind, word)
    title = f"{details.title}: {details.summary}. {details.paper} {details.link}".rstrip()
    print(title if kind == "algorithm" else f"{word}: {details.summary} {details.paper} {details.link}".rstrip())
    if kind == "algorithm":
        print(f"bricks that fit: {' '.join(fitting(word)) or 'none'}")
        if details.heterogeneous:
            print("clients can have different networks: --model heterogeneous")
        if in_main_job := in_a_run(word, details):
            print(f"defaults in fljax run that differ from those below: {in_main_job}")
    prefix = short_name(word) if kind == "algorithm" else "" if kind == "brick" else kind
    show_section(prefix, details.section, {name: parameter.default for name, parameter in details.section.items()})


def in_a_run(word: str, details: Entry) -> str:
    """The settings of a method whose defaults in `fljax run` differ from the method's own, in one line."""
    values = read_job(["--algorithm", word]).settings[short_name(word)]
    differing = [name for name, parameter in details.section.items() if values[name] != parameter.default]
    return " ".join(f"{written(name)}={values[name]}" for name in differing)


def show_dataset(name: str) -> None:
    """Prints the description of a data set, and where it was found or how to get it."""
    from fljax.data.datasets import available

    print(f"{name}: {ABOUT[name]}")
    show([(f"--dataset {name}", dict(available())[name])])


def kind_of(word: str) -> str:
    """The kind of a name.

    Raises:
        ValueError: nothing has this name.
    """
    if is_file(word):
        return kind_of_file(word)
    kinds = ("brick", "attack", "drift", "clock", "sampling", "score", "model", "partition", "dataset", "algorithm")
    everything = {name: kind for of_kind in (installed, names) for kind in kinds for name in of_kind(kind)}
    return everything[nearest(word.partition("+")[0], [*everything, *KINDS], "kind or name")]


def _line(details: Entry) -> str:
    """Summary, paper and settings."""
    return f"{details.summary}{f' ({details.paper})' if details.paper else ''}\n{defaults(details.section)}".rstrip()
