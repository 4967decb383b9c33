"""A job: which federation, model and methods, and every number; read from the main job, a TOML file and arguments."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from fljax.algorithms import ALGORITHMS, method_named
from fljax.cli.parameters import Parameter, Section, parameters
from fljax.cli.ranges import check_numbers, check_whole
from fljax.cli.settings import (
    Schema,
    Values,
    Words,
    nearest,
    parse,
    resolve,
    typed,
    words_of_arguments,
    words_of_toml,
    written,
)
from fljax.data.partition import PARTITIONS
from fljax.models import MODELS

RECORD = ("versions", "machine")
"""Sections of a config.toml that say where it was made; a new run does not read them."""
MAY_CHANGE = ("rounds", "algorithm", "data_folder", "new_client_rounds")
"""Settings with which a results folder may be gone on with."""


class RunSettings(NamedTuple):
    """The run's own settings.

    algorithm: methods to run, on the same federation and the same cohorts; see fljax list. fedprox+adam has a server
        that takes Adam's step; +momentum and +yogi likewise.
    dataset: name of a data set; see fljax data list.
    data_folder: where its files are; None: found by itself.
    partition: who owns which example; see fljax list.
    model: network; see fljax list.
    rounds: rounds in all.
    seed: everything random comes from it, the partition included.
    participation: share of the clients in each round, above 0, at most 1.
    dropout: probability that a participant drops out of a round; None: nobody does.
    evaluate_every: test after every so many rounds, and always after the last.
    new_clients: share of the clients that never takes part and meets the trained server at the end, above 0, below 1;
        None: nobody.
    new_client_rounds: rounds of work for new clients, in methods that keep something per client.
    """

    algorithm: tuple[str, ...] = ("fedavg",)
    dataset: str = "digits"
    data_folder: str | None = None
    partition: str = "iid"
    model: str = "mlp"
    rounds: int = 30
    seed: int = 0
    participation: float = 1.0
    dropout: float | None = None
    evaluate_every: int = 1
    new_clients: float | None = None
    new_client_rounds: int = 5


WORK: Section = {
    "epochs": Parameter(int, 5, "passes over its own data that a client makes in a round"),
    "batch_size": Parameter(int, 32, "examples in a step"),
    "at_once": Parameter(int | None, None, "clients trained at once; None: the backend's best"),
    "optimizer": Parameter(str, "sgd", "of the clients: sgd or adam"),
}
"""Local effort, for each method."""

FILES: Section = {
    "folder": Parameter(str | None, None, "results folder; an existing one is gone on with. None: results/<time>"),
    "config": Parameter(str | None, None, "TOML file of settings, such as a results folder's config.toml"),
}
"""What the command line has beyond a job's settings."""


class Job(NamedTuple):
    """A job, and where its files go."""

    settings: Values
    schema: Schema
    folder: Path | None


def read_job(arguments: Sequence[str]) -> Job:
    """The job of a command line: the main job, changed by the TOML file, changed by the arguments.

    Without ``--config``, a folder's own config.toml is the file where it has results or is gone on with.

    Raises:
        ValueError: in one line, for names that do not exist and values of the wrong type.
    """
    return job_of(*read_layers(arguments))


def read_layers(arguments: Sequence[str]) -> tuple[list[Words], Path | None]:
    """(the words of the main job, of the TOML file if there is one, and of the arguments; the results folder)."""
    given = words_of_arguments(arguments)
    files = {name: typed(name, given.pop(name, ["None"]), FILES[name].kind) for name in FILES}
    folder = None if files["folder"] is None else Path(files["folder"])
    layers = [words_of_toml(read_main_job()), given]
    if files["config"] is not None:
        layers.insert(1, words_of_toml(read_config(Path(files["config"]))))
    elif folder is not None and (folder / "config.toml").exists() and (has_results(folder) or _goes_on(given)):
        layers.insert(1, words_of_toml(read_config(folder / "config.toml")))
    return layers, folder


def _goes_on(given: Words) -> bool:
    """Whether a folder is named to go on with what it was begun with; any other setting makes a new start of it."""
    return "resume" in given or set(given) <= {*MAY_CHANGE, "memory"}


def job_of(
    layers: Sequence[Words], folder: Path | None, take: Callable[[Words, Schema], Words] = lambda words, schema: words
) -> Job:
    """The job that the layers describe, each changing those before it.

    ``take(words, schema)`` sees the words by full name and returns those to be read; a sweep takes its axes out.
    """
    schema = job_schema({name: word for layer in layers for name, word in layer.items()})
    for name in layers[-1]:
        if is_method(section := name.partition(".")[0]) and section not in schema:
            raise ValueError(f"--{written(name)}: {section} is not run; add it to --algorithm")
    words: Words = {}
    for layer in relevant(layers):
        words |= resolve(layer, schema)
    job = Job(parse(take(words, schema), schema), schema, folder)
    check_numbers(job.settings, job.schema)
    return job


def federation_settings(given: Words) -> tuple[Schema, Values]:
    """What a command line says of the data set and the partition alone; the rest is the main job's.

    Raises:
        ValueError: as `read_job`.
    """
    main_job = words_of_toml(read_main_job())
    merged = main_job | given
    whole = job_schema(merged)
    own = {name: whole[""][name] for name in ("dataset", "data_folder", "partition", "seed")}
    schema = {"": own, "partition": whole["partition"]}
    known = {"dataset", "partition", "seed"}
    base = {name: word for name, word in main_job.items() if name in known or name.startswith("partition.")}
    base, given = relevant([base, given])
    values = parse(resolve(base, schema) | resolve(given, schema), schema)
    check_whole(values)
    return schema, values


def read_main_job() -> dict:
    """What `fljax run` does when it is told nothing else."""
    return tomllib.loads(resources.files("fljax.cli").joinpath("main_job.toml").read_text(encoding="utf-8"))


def relevant(layers: Sequence[Words]) -> Iterator[Words]:
    """The layers without what they say of methods, partitions and models that the last layers do not choose.

    Another partition keeps the number of clients only. The last layer, the command line, is kept whole.
    """
    final = {name: word for layer in layers for name, word in layer.items()}
    so_far: Words = {}
    for layer in layers[:-1]:
        so_far |= layer
        chosen = final.get("algorithm", ())
        idle = {section for section in (name.partition(".")[0] for name in layer) if is_method(section)} - set(chosen)
        idle |= {section for section in ("partition", "model") if so_far.get(section) != final.get(section)}
        yield {
            name: word
            for name, word in layer.items()
            if "." not in name or name.partition(".")[0] not in idle or name == "partition.n_clients"
        }
    yield layers[-1]


def has_results(folder: Path) -> bool:
    """Whether a run or sweep has got as far as its first results; until then its settings may be changed."""
    results = (path for pattern in ("*/rounds/*", "*/parts/*.npz") for path in folder.glob(pattern))
    return folder.joinpath("config.toml").exists() and any(results)


def read_config(path: Path) -> dict:
    """A TOML file of settings.

    Raises:
        ValueError: it cannot be read, or is no TOML.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not TOML: not UTF-8 text, {error.reason} at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    return {name: value for name, value in table.items() if name not in RECORD}


def job_schema(words: Words) -> Schema:
    """The settings that a job with these names has.

    Raises:
        ValueError: a method, data set, partition or model of that name does not exist.
    """
    own = parameters(RunSettings)
    names = parse({name: word for name, word in words.items() if name in own}, {"": own})[""]
    algorithms = [nearest_method(name) for name in names["algorithm"]]
    if not algorithms:
        raise ValueError("--algorithm: give at least one; fljax list has their names")
    return {
        "": own,
        "partition": partition_section(nearest(names["partition"], PARTITIONS, "partition")),
        "model": model_section(nearest(names["model"], MODELS, "model")),
        **{name: algorithm_section(name) for name in algorithms},
    }


def is_method(name: str) -> bool:
    """Whether a section of settings is a method's, with a server optimiser or without."""
    return name.partition("+")[0] in ALGORITHMS


def nearest_method(name: str) -> str:
    """``name`` where a method has it; see `fljax.algorithms.method_named` for "fedprox+adam".

    Raises:
        ValueError: no method has it (the nearest is given), or it takes no such server optimiser.
    """
    base, plus, optimizer = name.partition("+")
    method_named(name := nearest(base, ALGORITHMS, "algorithm") + plus + optimizer)
    return name


def algorithm_section(name: str) -> Section:
    """Local effort, static choices and numbers of a method."""
    method = method_named(name)
    return WORK | parameters(method.factory, leave_out=("model", "work")) | parameters(method.hyper)


def partition_section(name: str) -> Section:
    """What a partition can be told; its seed is the run's."""
    return parameters(PARTITIONS[name], leave_out=("train", "test", "seed"))


def model_section(name: str) -> Section:
    """What a network can be told; its input and output follow from the data."""
    return parameters(MODELS[name], leave_out=("input_shape", "n_classes"))
