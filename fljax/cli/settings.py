"""From TOML and the command line to typed values: layers of words, each parsed by tyro to its parameter's type."""

import contextlib
import dataclasses
import difflib
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import tyro

from fljax.cli.parameters import REQUIRED, Parameter, Section, kind_name

Schema = dict[str, Section]
"""Section name -> its parameters; the section "" holds the run's own."""
Words = dict[str, list[str]]
"""Setting, as "name" or "section.name" -> what was written for it."""
Values = dict[str, dict[str, Any]]
"""Section -> name -> value."""

ONE_OF_A_KIND = ("", "partition", "model")
"""Sections that a short name must not be shared with; the others are methods, and a short name sets it in all."""


def words_of_arguments(arguments: Sequence[str]) -> Words:
    """``--ifca.n-clusters 4 --model.hidden 64 32`` by setting; ``--name=value`` is understood.

    Raises:
        ValueError: the first argument is no ``--name``.
    """
    words: Words = {}
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            name = name.replace("-", "_")
            words[name] = [value] if equals else []
        elif name:
            words[name].append(argument)
        else:
            raise ValueError(f"{argument!r} comes without a name; settings are written --name value, see --help")
    return words


def words_of_toml(table: Mapping[str, Any]) -> Words:
    """A TOML document by setting; the key ``name`` of a section is the section's own setting."""
    words: Words = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            inner = words_of_toml(value)
            words |= {name if key == "name" else f"{name}.{key}": word for key, word in inner.items()}
        else:
            words[name] = [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return words


def nearest(name: str, known: Iterable[str], kind: str) -> str:
    """``name`` where it is one of ``known``.

    Raises:
        ValueError: it is not; the message has the nearest of them.
    """
    known = list(known)
    if name in known:
        return name
    near = difflib.get_close_matches(name, known, n=1, cutoff=0)
    raise ValueError(f"no {kind} {name!r}; the nearest is {near[0]!r}")


def resolve(words: Words, schema: Schema) -> Words:
    """The words by full name "section.name": a short name sets its parameter in every method that has it.

    A full name wins over a short one.

    Raises:
        ValueError: nothing has the name (the nearest is given), or parts of different kinds have it.
    """
    known = [path(section, name) for section, parameters in schema.items() for name in parameters]
    resolved: Words = {}
    for name in sorted(words, key=lambda name: name in known):
        holders = [name] if name in known else [full for full in known if full.partition(".")[2] == name]
        if len(holders) > 1 and any(full.partition(".")[0] in ONE_OF_A_KIND for full in holders):
            raise ValueError(f"--{written(name)} could be {' or '.join('--' + written(full) for full in holders)}")
        if not holders:
            near = difflib.get_close_matches(name, [*known, *(full.partition(".")[2] for full in known)], n=1, cutoff=0)
            raise ValueError(f"no setting --{written(name)}; the nearest is --{written(near[0])}")
        resolved |= dict.fromkeys(holders, words[name])
    return resolved


def parse(words: Words, schema: Schema) -> Values:
    """Every parameter's value: what the words say, else its default.

    Raises:
        ValueError: words that are not of their parameter's type, or a parameter without default that is not set.
    """
    values: Values = {}
    for section, parameters in schema.items():
        values[section] = {}
        for name, parameter in parameters.items():
            full = path(section, name)
            value = typed(full, words[full], parameter.kind) if full in words else parameter.default
            if value is REQUIRED:
                raise ValueError(f"--{written(full)} is not set; give {kind_name(parameter.kind)}")
            values[section][name] = value
    return values


def typed(name: str, words: Sequence[str], kind: Any) -> Any:
    """The words of one setting as a value of type ``kind``; a bool without words is True.

    Raises:
        ValueError: they are not of that type.
    """
    if kind is bool:
        words = [word.capitalize() for word in words] or ["True"]
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return tyro.cli(kind, args=words, add_help=False, config=(tyro.conf.FlagConversionOff,))
    except SystemExit:
        raise ValueError(f"--{written(name)} {' '.join(words)}: give {kind_name(kind)}".replace(" :", ":")) from None


def show_help(command: str, text: str, schema: Schema, values: Values) -> None:
    """Prints tyro's help for the schema; the defaults are ``values``."""
    titles = {section: _dataclass(section, parameters, values[section]) for section, parameters in schema.items()}
    own = titles.pop("")
    parts = [
        (
            f"{section.replace('+', '_')}_section",
            Annotated[kind, tyro.conf.arg(name=section)],
            dataclasses.field(default_factory=kind),
        )
        for section, kind in titles.items()
    ]
    everything = dataclasses.make_dataclass("Settings", parts, bases=(own,))
    with contextlib.suppress(SystemExit):
        tyro.cli(everything, args=["--help"], prog=command, description=text, config=(tyro.conf.FlagConversionOff,))


def path(section: str, name: str) -> str:
    """Full name of a setting."""
    return f"{section}.{name}" if section else name


def written(name: str) -> str:
    """A setting as the command line writes it."""
    return name.replace("_", "-")


def _dataclass(section: str, parameters: Section, values: Mapping[str, Any]) -> type:
    def field(name: str, parameter: Parameter) -> tuple[str, Any, Any]:
        kind = Annotated[parameter.kind, tyro.conf.arg(help=parameter.help)]
        return name, kind, dataclasses.field(default=values[name])

    fields = [field(name, parameter) for name, parameter in parameters.items()]
    return dataclasses.make_dataclass(f"{section.title()}Settings", fields)
