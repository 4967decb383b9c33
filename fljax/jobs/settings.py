"""Layers of settings: the words of a TOML file and of the arguments, by full name; all are checked, used or not."""

import difflib
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fljax.catalogue.file_words import absolute, parts_of
from fljax.catalogue.job import PARTS
from fljax.catalogue.own import OPEN
from fljax.catalogue.parameters import REQUIRED, Parameter, Schema
from fljax.catalogue.words import shown, takes_several, words_of, written
from fljax.other_names import name_here

Layer = list[tuple[str, list[str]]]
"""Settings in the order in which they are written, as ("name" or "section.name", words); a name may occur twice."""
Values = dict[str, dict[str, Any]]
"""Section -> name -> value."""
Reader = Callable[[str, Parameter, list[str]], Any]
"""``(full name, parameter, words) -> value``."""

OF_A_RUN_ALONE = {
    "new_clients": "only fljax run tests new clients (fljax show compares several seeds)",
    "patience": "only fljax run stops runs early (fljax show compares several seeds)",
}
"""Settings of `fljax run` that other commands refuse -> the reason."""
CHAINS = ("augment", "uplink", "downlink")
"""Settings that put bricks into every method, see `fljax.jobs.chains`."""
RECORD = ("versions", "machine", "history")
"""Sections of a config.toml that record where it was made; a new run does not read them."""
NOT_KEPT = ("folder", "config", "resume", "force_resume")
"""Settings of the command line only: they choose the place of a run, not its content."""
OUTER = "outer"
UNSET = "unset"
"""Key of a section in TOML, which has no None: the names of the settings that are None."""


class Listed(list[str]):
    """The words of a list in TOML, as opposed to those of a single value."""


def of_arguments(arguments: Sequence[str]) -> Layer:
    """The layer of arguments such as ``--ifca.n-clusters 4 --model.hidden 64 32``; ``--name=value`` works, too.

    Raises:
        ValueError: the first argument is not of the form ``--name``.
    """
    layer: Layer = []
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            layer.append((name.replace("-", "_"), [value] if equals else []))
        elif layer:
            layer[-1][1].append(argument)
        else:
            raise ValueError(
                f"{argument[:100]!r} has no name in front; write settings as --name value, such as --algorithm "
                "fedavg; see --help"
            )
    return _with_absolute_paths(layer, Path())


def of_toml(path: Path) -> Layer:
    """The layer of a TOML file; the key ``name`` of a section in `PARTS` chooses the part itself.

    Raises:
        ValueError: the file cannot be read, is not TOML, or has a section that is empty or nested.
    """
    try:
        return of_text(path.read_text(encoding="utf-8"), path.parent)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not TOML: not UTF-8 text, {error.reason} at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply; settings are written name = value in a [section]") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def of_file(path: Path) -> Layer:
    """`of_toml` of a file that a user names.

    Raises:
        ValueError: as `of_toml`, or it has a setting of the command line only.
    """
    layer = of_toml(path)
    for name, words in layer:
        if name in NOT_KEPT:
            raise ValueError(
                f"{path}: {name} = {' '.join(words)[:100]!r} is a setting of the command line only; leave it out, and "
                f"give --{written(name)} on the command line"
            )
    return layer


def of_text(text: str, folder: Path) -> Layer:
    """`of_toml` of a file's text, whose relative paths start at ``folder``."""
    table = {name: value for name, value in tomllib.loads(text).items() if name not in RECORD}
    return _with_absolute_paths(_entries(table, "", 0), folder)


def _entries(table: Mapping[str, Any], section: str, depth: int) -> Iterator[tuple[str, list[str]]]:
    for name, value in table.items():
        full = f"{section}.{name}" if section else name
        if isinstance(value, Mapping):
            if not value or depth > section.startswith(OUTER):
                fault = "is empty" if not value else "is nested too deeply"
                raise ValueError(f"[{full[:100]}] {fault}; settings are written name = value in a [section]")
            yield from _entries(value, full, depth + 1)
        elif name == UNSET and isinstance(value, list):
            yield from ((f"{section}.{unset_name}" if section else str(unset_name), ["None"]) for unset_name in value)
        else:
            words = Listed(words_of(value)) if isinstance(value, list) else words_of(value)
            yield section if name == "name" and section in PARTS else full, words


def _with_absolute_paths(layer: Iterable[tuple[str, list[str]]], folder: Path) -> Layer:
    def found(name: str, words: list[str]) -> list[str]:
        if name in ("data", "data_folder"):  # a file or folder, but for the word None
            return [word if word == "None" else _absolute_path(folder, word) for word in words]
        if name in ("clock.devices", "devices"):  # a file, or the name of a profile
            return [word if Path(word).suffix == "" else _absolute_path(folder, word) for word in words]
        if name == "algorithm":
            return ["+".join(absolute(part, folder) for part in parts_of(word)) for word in words]
        is_open = name in (*OPEN, *CHAINS) or name.rpartition(".")[2] == "optimizer"  # which each method has
        return [absolute(word, folder) for word in words] if is_open else words

    return [(name, type(words)(found(name, words))) for name, words in layer]


def _absolute_path(folder: Path, word: str) -> str:
    if not word or "\0" in word:
        return word  # rejected where it is read, with the setting's name
    return str(folder.joinpath(Path(word).expanduser()).resolve())


def last(layers: Sequence[Layer], name: str) -> list[str] | None:
    """The words of a setting in the last layer that has it; None if no layer has it."""
    return next((words for layer in layers[::-1] for setting, words in layer[::-1] if setting == name), None)


def full_names(name: str, schema: Schema) -> list[str]:
    """The settings that ``name`` means: a short name means the parameter of every method that has it.

    Raises:
        ValueError: there is no such setting (the message suggests the nearest), the name is empty, or parts of
            different kinds have it.
    """
    if not name:
        raise ValueError("a setting has no name; write settings as --name value, see --help")
    section, dot, field = name.rpartition(".")
    if field in schema.get(section, ()) and (section or not dot):
        return [name]
    matches = [path(section, name) for section, parameters in schema.items() if section and name in parameters]
    if len(matches) > 1 and any(full.partition(".")[0] in PARTS for full in matches):
        full = " or ".join("--" + written(match) for match in matches)
        raise ValueError(f"--{written(name)} is the name of several settings; write {full}")
    if not matches:
        from fljax.jobs.elsewhere import elsewhere  # reads the whole library, which only an error needs

        if text := elsewhere(name, schema):
            raise ValueError(f"no setting --{written(name[:100])}{text}")
        if name in OF_A_RUN_ALONE:
            raise ValueError(f"no setting --{written(name)} here: {OF_A_RUN_ALONE[name]}; leave it out")
        settings = [path(section, field) for section, parameters in schema.items() for field in parameters]
        short = [full.partition(".")[2] for full in settings if "." in full]
        if (here := name_here("setting", name)) and (here[:2] != "--" or _named_by(here) in (*settings, *short)):
            raise ValueError(f"no setting --{written(name)}; here it is {here}")
        similar = _similar_settings(name, schema)
        near = similar or difflib.get_close_matches(name[:100], [*settings, *short], n=1, cutoff=0.5)
        hint = f"the nearest is --{written(near[0])}" if near else "see --help"
        raise ValueError(f"no setting --{written(name[:100])}; {hint}")
    return matches


def _named_by(words: str) -> str:
    """The setting that the first of ``words`` names on the command line."""
    return words.split()[0].removeprefix("--").replace("-", "_")


def _similar_settings(name: str, schema: Schema) -> list[str]:
    """The settings whose help begins with the words of ``name``, as of lr with "learning rate"; else those whose names
    begin with it."""
    words, entries = name.replace("_", " ").lower(), [entry for section in schema.values() for entry in section.items()]
    names = [field for field, parameter in entries if len(words) > 3 and parameter.help.startswith(words)]
    return names or [field for field, _ in entries if len(words) > 2 and field.startswith(name)]


def read_value(name: str, parameter: Parameter, words: list[str]) -> Any:
    """The value of ``words``.

    Raises:
        ValueError: the parameter does not take them, or they are a list in TOML and the parameter takes one value.
    """
    if isinstance(words, Listed) and len(words) == 1 and not takes_several(parameter.kind):
        raise ValueError(f"{name} = [{words[0]}] is a list; give one value, {name} = {words[0]}")
    if len(words) > 1 and parameter.number is not None and not takes_several(parameter.kind):
        raise ValueError(f"{shown(name, words)}: give one number; fljax sweep takes several")
    return parameter.read(name, words)


def read_layer(layer: Layer, schema: Schema, reader: Reader = read_value) -> dict:
    """Full name -> value. A full name overrides a short one, a later setting an earlier one; all are read.

    Raises:
        ValueError: as `full_names`, or words that their parameter does not take.
    """
    values = {}
    for name, words in sorted(layer, key=lambda entry: full_names(entry[0], schema) == [entry[0]]):
        for full in full_names(name, schema):
            section, _, field = full.rpartition(".")
            # An error names the setting as it was written, but a sweep decides by the section what varies.
            values[full] = reader(name if reader is read_value else full, schema[section][field], words)
    return values


def values_of(schema: Schema, given_values: Mapping[str, Any]) -> Values:
    """Every parameter's value: the one in ``given_values``, else its default.

    Raises:
        ValueError: a parameter without default is not set.
    """
    values = {
        section: {name: parameter.default for name, parameter in parameters.items()}
        for section, parameters in schema.items()
    }
    for full, value in given_values.items():
        section, _, name = full.rpartition(".")
        values[section][name] = value
    for section, section_values in values.items():
        for name, value in section_values.items():
            if value == REQUIRED:
                raise ValueError(f"{shown(path(section, name), ())} is not set; give {schema[section][name].metavar}")
    return values


def path(section: str, name: str) -> str:
    """The full name of a setting."""
    return f"{section}.{name}" if section else name
