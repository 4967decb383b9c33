"""A job: federation, model, methods and all settings, read from the main job, a TOML file and arguments."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.catalogue.entries import entry, is_of_fljax, names
from fljax.catalogue.file_words import short_name
from fljax.catalogue.job import PARTS, RUN, WORK, RunSettings
from fljax.catalogue.parameters import Schema, Section
from fljax.catalogue.words import nearest, shown, written
from fljax.data.own.file_kinds import TABLES, kind_of
from fljax.jobs.layers import file_of, naming_file, read_layers
from fljax.jobs.optimizers import check_optimizer
from fljax.jobs.settings import (
    OF_A_RUN_ALONE,
    OUTER,
    RECORD,
    Layer,
    Reader,
    Values,
    full_names,
    last,
    path,
    read_layer,
    read_value,
    values_of,
)


class Job(NamedTuple):
    """A job: the value of every setting by section, with the type and range of each."""

    schema: Schema
    settings: Values
    unused: str = ""
    """A line with the settings of the file of ``--config`` that the job does not use; "" if there are none."""

    @property
    def run(self) -> RunSettings:
        """The run's own settings; those that the command does not have are at their defaults."""
        return RunSettings(**{name: value for name, value in self.settings[""].items() if name in RUN})

    @property
    def own(self) -> dict[str, Any]:
        """The run's own settings that the command has, and the command's own, by name."""
        return self.settings[""]

    @property
    def methods(self) -> dict[str, str]:
        """Section of each method -> the word that named it."""
        return {short_name(word): word for word in self.run.algorithm}

    @property
    def of_methods(self) -> Values:
        """The settings of the methods only."""
        return {section: self.settings[section] for section in self.methods}

    @property
    def folder(self) -> Path | None:
        """The results folder; None if none is given."""
        return None if self.run.folder is None else Path(self.run.folder)

    def with_setting(self, full: str, value: Any) -> "Job":
        """The job with one setting changed."""
        section = full.rpartition(".")[0]
        values = {one.rpartition(".")[2]: new for one, new in one_length({full: value}, self.schema).items()}
        return self._replace(settings=self.settings | {section: self.settings[section] | values})


def one_length(values: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Full name -> value, with None for the other of a method's epochs and local steps where one of them is given."""
    others = {
        other: None
        for full, value in values.items()
        for section, _, name in [full.rpartition(".")]
        if value is not None and name in _LENGTHS and schema[section].get(name) == WORK[name]
        for other in [path(section, _LENGTHS[name])]
    }
    return others | values


_LENGTHS = {"epochs": "local_steps", "local_steps": "epochs"}


def read_job(arguments: Sequence[str], own: Section = RUN, command: str = "run") -> Job:
    """The job of a command line: the main job, changed by the TOML file, changed by the arguments.

    Without ``--config``, a folder's own config.toml is that file if the folder has results or is resumed. ``own`` are
    the settings of the ``command`` besides those of parts and methods.

    Raises:
        ValueError: in one line: a name does not exist, a value is not allowed, or the folder is of another command.
    """
    return job_of(read_layers(arguments, command), own)


def job_of(layers: Sequence[Layer], own: Section, reader: Reader | None = None) -> Job:
    """The job of the layers, each of which changes those before it; ``reader`` reads the words of a setting."""
    schema = schema_of(layers, own)
    for name, why in OF_A_RUN_ALONE.items() if "algorithm" in own else ():
        if name not in own and last(layers[:-1], name) not in (None, ["None"]):
            raise ValueError(f"the file sets {name}: {why}; leave it out")
    for name, _ in layers[-1]:
        if is_of_fljax(section := name.partition(".")[0]) and "." in name and section not in schema:
            raise ValueError(f"--{written(name)}: the job does not run {section}; add it to --algorithm")
    with naming_file(layers, -2):
        if "algorithm" in own:
            _check_not_run(layers, schema)
    dataset, data = (last(layers[-1:], name) for name in ("dataset", "data"))
    if dataset and data and data != ["None"]:
        raise ValueError(f"--dataset {dataset[0]} and --data {data[0]} are two data sets; leave one out")
    values: dict[str, Any] = {}
    field_names = {field for section in schema.values() for field in section}
    # The main job sets for all methods what only some of them have.
    layers = [[entry for entry in layers[0] if "." in entry[0] or entry[0] in field_names], *layers[1:]]
    used_layers = [*relevant(layers, own, schema)]
    for i, layer in enumerate(used_layers):
        with naming_file(layers, i):
            values |= one_length(read_layer(layer, schema, reader or read_value), schema)
    # If a folder is resumed, a setting that its methods or parts no longer have means another run, which is an error.
    reports_unused = "algorithm" in own and last(layers[-1:], "config") is not None
    for section, parameters in schema.items():
        if parameters.get("optimizer") == WORK["optimizer"]:  # a user's network may have another setting of this name
            check_optimizer(values.get(path(section, "optimizer")))
    unused = [_unused(layers, used_layers[-2]) if reports_unused else "", _repeated_lists(layers[-1], schema)]
    return Job(schema, values_of(schema, values), "; ".join(filter(None, unused)))


def _unused(layers: Sequence[Layer], used_layer: Layer) -> str:
    """`Job.unused`: whole sections, or the names in a section of which something is used."""
    used_names = [name for name, _ in used_layer]
    unused_names = [name for name, _ in layers[-2] if "." in name and name not in used_names]
    used_sections = {name.partition(".")[0] for name in used_names if "." in name}
    texts = [name if (section := name.partition(".")[0]) in used_sections else f"[{section}]" for name in unused_names]
    return f"{file_of(layers)}: not used by this job: {', '.join(dict.fromkeys(texts))}" if texts else ""


def _repeated_lists(arguments: Layer, schema: Schema) -> str:
    """`Job.unused`: lists that are given twice, of which only the last counts."""
    counts = dict(arguments)
    repeated = {name: words for name, words in arguments if words != counts[name] and _is_collected(name, schema)}
    texts = [f"{shown(name, words)} (--{written(name)} is given again)" for name, words in repeated.items()]
    return f"not used: {', '.join(texts)}; give all words at once" if texts else ""


def _is_collected(name: str, schema: Schema) -> bool:
    """Whether a setting is a list that is empty by default, as --score is."""
    paths = [full.rpartition(".") for full in full_names(name, schema)]
    return all(schema[section][field].default == () for section, _, field in paths)


def _check_not_run(layers: Sequence[Layer], schema: Schema) -> None:
    """Raises ValueError if a file has a section of a method that the job does not run, or a wrong name in it.

    The section is allowed if the arguments choose some of the file's methods; its names are checked all the same.
    """
    for name, _ in itertools.chain(*layers[1:-1]):
        section, dot, _ = name.partition(".")
        if not dot or section in schema or not is_of_fljax(section):
            continue
        full_names(name, {section: WORK | entry("algorithm", section).section})
        if last(layers[-1:], "algorithm") is None:
            raise ValueError(f"[{section}]: the job does not run {section}; add it to algorithm, or leave it out")


def schema_of(layers: Sequence[Layer], own: Section) -> Schema:
    """The settings that a job of these layers has.

    Raises:
        ValueError: a method, data set, partition, model or sampling of that name does not exist.
    """

    def named(name: str) -> Any:
        words = last(layers, name)
        return own[name].default if words is None else own[name].read(name, words)

    def where_said(name: str) -> contextlib.AbstractContextManager[None]:
        setting_layers = [i for i, layer in enumerate(layers) if last([layer], name) is not None]
        return naming_file(layers, max(setting_layers, default=0))

    if "dataset" in own:
        file = Path(word := named("dataset"))
        if kind_of(file) in (*TABLES, ".npz") or file.is_dir():
            raise ValueError(f"--dataset {word}: for your own data write --data {word}; --dataset names a set of fljax")
        with where_said("dataset"):
            nearest(word, names("dataset"), "data set")
    schema = {"": own}
    for part in (part for part in PARTS if part in own):
        with where_said(part):
            schema[part] = entry(part, named(part)).section
    methods = named("algorithm") if "algorithm" in own else ()
    if "algorithm" in own and not methods:
        raise ValueError("--algorithm: give at least one; fljax list has their names")
    for word in methods:
        with where_said("algorithm"):
            section = WORK | entry("algorithm", word).section
        if short_name(word) in {*RECORD, *own, *RUN, OUTER}:
            reason = f"a setting or a section of config.toml has the name {short_name(word)}"
            raise ValueError(f"--algorithm {word}: {reason}; give the method another name")
        if short_name(word) in schema:
            same = [method for method in methods if short_name(method) == short_name(word)]
            fault = "is given twice" if len(set(same)) == 1 else "is the name of two methods, and of their results"
            raise ValueError(f"--algorithm {' '.join(same)}: {short_name(word)} {fault}; leave one out, or rename it")
        schema[short_name(word)] = section
    return schema


def relevant(layers: Sequence[Layer], own: Section, schema: Schema) -> Iterator[Layer]:
    """The layers without settings of methods and parts that the later layers do not choose or the command lacks.

    If a later layer chooses another partition, only the number of clients is kept. The last layer, the arguments, stays
    whole.
    """
    with_methods = "algorithm" in own
    chosen = {short_name(word) for word in (last(layers, "algorithm") or ()) if with_methods}
    for i, layer in enumerate(layers[:-1]):
        layer_methods = {short_name(word) for word in last([layer], "algorithm") or ()}
        other_parts = {part for part in PARTS if part not in own or last(layers[: i + 1], part) != last(layers, part)}

        def is_kept(name: str, layer_methods: set[str] = layer_methods, other_parts: set[str] = other_parts) -> bool:
            section, dot, _ = name.partition(".")
            if not dot:
                return name in own or (with_methods and name not in RUN)
            if name == "partition.n_clients":
                return "n_clients" in schema.get("partition", {})
            return section in chosen or not (section in other_parts or section in layer_methods or is_of_fljax(section))

        yield [entry for entry in layer if is_kept(entry[0])]
    yield layers[-1]
