"""A job: which federation, model and methods, and every number; read from the main job, a TOML file and arguments."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.catalogue.entries import entry, names
from fljax.catalogue.job import RUN, WORK, RunSettings
from fljax.catalogue.own import short_name
from fljax.catalogue.parameters import Schema, Section
from fljax.catalogue.words import nearest, shown, written
from fljax.jobs.layers import file_of, naming_file, read_layers
from fljax.jobs.optimizers import check_optimizer
from fljax.jobs.settings import (
    OF_A_RUN_ALONE,
    OUTER,
    PARTS,
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
    """A job: every setting by section, with what it may be."""

    schema: Schema
    settings: Values
    unused: str = ""
    """A line with what of the file of ``--config`` no method or part of the job has; "" where there is nothing."""

    @property
    def run(self) -> RunSettings:
        """The run's own settings, those that the command does not have at their defaults."""
        return RunSettings(**{name: value for name, value in self.settings[""].items() if name in RUN})

    @property
    def own(self) -> dict[str, Any]:
        """The run's own settings that the command has, and the command's by name."""
        return self.settings[""]

    @property
    def methods(self) -> dict[str, str]:
        """Section of each method -> what was written for it."""
        return {short_name(word): word for word in self.run.algorithm}

    @property
    def of_methods(self) -> Values:
        """The settings of the methods alone."""
        return {section: self.settings[section] for section in self.methods}

    @property
    def folder(self) -> Path | None:
        """Where the results go."""
        return None if self.run.folder is None else Path(self.run.folder)

    def with_setting(self, full: str, value: Any) -> "Job":
        """The job with one setting changed."""
        section, _, name = full.rpartition(".")
        return self._replace(settings=self.settings | {section: self.settings[section] | {name: value}})


def read_job(arguments: Sequence[str], own: Section = RUN, command: str = "run") -> Job:
    """The job of a command line: the main job, changed by the TOML file, changed by the arguments.

    Without ``--config``, a folder's own config.toml is the file where it has results or is gone on with. ``own`` is
    what the ``command`` can be told besides the settings of parts and methods.

    Raises:
        ValueError: in one line, for names that do not exist, values that are not allowed, and the folder of another
            command.
    """
    return job_of(read_layers(arguments, command), own)


def job_of(layers: Sequence[Layer], own: Section, reader: Reader | None = None) -> Job:
    """The job that the layers describe, each changing those before it; ``reader`` reads words in its own way."""
    schema = schema_of(layers, own)
    for name, what in OF_A_RUN_ALONE.items() if "algorithm" in own else ():
        if name not in own and last(layers[:-1], name) not in (None, ["None"]):
            raise ValueError(f"the file sets {name}, which {what}; leave it out")
    for name, _ in layers[-1]:
        if is_method(section := name.partition(".")[0]) and "." in name and section not in schema:
            raise ValueError(f"--{written(name)}: {section} is not run; add it to --algorithm")
    with naming_file(layers, -2):
        if "algorithm" in own:
            _check_not_run(layers, schema)
    if (dataset := last(layers[-1:], "dataset")) and (given := last(layers[-1:], "data")) not in (None, ["None"]):
        raise ValueError(f"--dataset {dataset[0]} and --data {given[0]} are two data sets; leave one out")
    found: dict[str, Any] = {}
    known = {field for section in schema.values() for field in section}
    # The main job says of every method what not all of them have.
    layers = [[entry for entry in layers[0] if "." in entry[0] or entry[0] in known], *layers[1:]]
    used = [*relevant(layers, own, schema)]
    for i, layer in enumerate(used):
        with naming_file(layers, i):
            found |= read_layer(layer, schema, reader or read_value)
    # In a folder that is gone on with, what a method or part no longer has is another run, and refused as such.
    to_tell = "algorithm" in own and last(layers[-1:], "config") is not None
    for section, parameters in schema.items():
        if parameters.get("optimizer") == WORK["optimizer"]:  # a network of one's own may have another of the name
            check_optimizer(found.get(path(section, "optimizer")))
    unused = [_unused(layers, used[-2]) if to_tell else "", _given_again(layers[-1], schema)]
    return Job(schema, values_of(schema, found), "; ".join(filter(None, unused)))


def _unused(layers: Sequence[Layer], used: Layer) -> str:
    """`Job.unused`: whole sections, and of a part that has something in use the names."""
    kept = [name for name, _ in used]
    left = [name for name, _ in layers[-2] if "." in name and name not in kept]
    begins = {name.partition(".")[0] for name in kept if "." in name}
    told = [name if (section := name.partition(".")[0]) in begins else f"[{section}]" for name in left]
    return f"{file_of(layers)}: not used by this job: {', '.join(dict.fromkeys(told))}" if told else ""


def _given_again(arguments: Layer, schema: Schema) -> str:
    """`Job.unused`: lists that stand twice, of which the last one counts."""
    counts = dict(arguments)
    again = {name: words for name, words in arguments if words != counts[name] and _is_collected(name, schema)}
    told = [f"{shown(name, words)} (--{written(name)} stands there again)" for name, words in again.items()]
    return f"not used: {', '.join(told)}; give all words at once" if told else ""


def _is_collected(name: str, schema: Schema) -> bool:
    """Whether a setting is a list that is empty unless something is named, as --score is."""
    places = [full.rpartition(".") for full in full_names(name, schema)]
    return all(schema[section][field].default == () for section, _, field in places)


def _check_not_run(layers: Sequence[Layer], schema: Schema) -> None:
    """Raises ValueError where a file sets what a method that is not run does not have.

    What such a method has may stay, where the arguments choose among the methods that the file is for.
    """
    for name, _ in itertools.chain(*layers[1:-1]):
        section, dot, _ = name.partition(".")
        if not dot or section in schema or not is_method(section):
            continue
        full_names(name, {section: WORK | entry("algorithm", section).section})
        if last(layers[-1:], "algorithm") is None:
            raise ValueError(f"[{section}]: {section} is not run; add it to algorithm, or leave it out")


def schema_of(layers: Sequence[Layer], own: Section) -> Schema:
    """The settings that a job of these layers has.

    Raises:
        ValueError: a method, data set, partition, model or sampling of that name does not exist.
    """

    def named(name: str) -> Any:
        words = last(layers, name)
        return own[name].default if words is None else own[name].read(name, words)

    def where_said(name: str) -> contextlib.AbstractContextManager[None]:
        return naming_file(layers, max((i for i, one in enumerate(layers) if last([one], name) is not None), default=0))

    if "dataset" in own:
        if Path(word := named("dataset")).suffix in (".csv", ".tsv", ".parquet", ".npz") or Path(word).is_dir():
            raise ValueError(f"--dataset {word}: data of your own is --data {word}; --dataset names a set of fljax's")
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
            taken = f"a setting or a section of config.toml is called {short_name(word)}"
            raise ValueError(f"--algorithm {word}: {taken}; give the method another name")
        if short_name(word) in schema:
            same = [one for one in methods if short_name(one) == short_name(word)]
            fault = "stands there twice" if len(set(same)) == 1 else "are two of one name, which names their results"
            raise ValueError(f"--algorithm {' '.join(same)}: {short_name(word)} {fault}; leave one out, or rename it")
        schema[short_name(word)] = section
    return schema


def relevant(layers: Sequence[Layer], own: Section, schema: Schema) -> Iterator[Layer]:
    """The layers without what they say of methods and parts that the last ones do not choose, or the command has not.

    Another partition keeps the number of clients only. The last layer, the arguments, is kept whole.
    """
    with_methods = "algorithm" in own
    chosen = {short_name(word) for word in (last(layers, "algorithm") or ()) if with_methods}
    for i, layer in enumerate(layers[:-1]):
        here = {short_name(word) for word in last([layer], "algorithm") or ()}
        idle = {part for part in PARTS if part not in own or last(layers[: i + 1], part) != last(layers, part)}

        def is_kept(name: str, here: set[str] = here, idle: set[str] = idle) -> bool:
            section, dot, _ = name.partition(".")
            if not dot:
                return name in own or (with_methods and name not in RUN)
            if name == "partition.n_clients":
                return "n_clients" in schema.get("partition", {})
            return section in chosen or not (section in idle or section in here or is_method(section))

        yield [entry for entry in layer if is_kept(entry[0])]
    yield layers[-1]


def is_method(name: str) -> bool:
    """Whether a section of settings is one of our methods', with bricks or without."""
    return name.partition("+")[0] in names("algorithm")
