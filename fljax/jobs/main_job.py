"""The default settings of a job: the main job, as far as it fits the chosen network and data."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from fljax.catalogue.datasets import OF_USERS
from fljax.catalogue.job import RUN
from fljax.catalogue.words import shown
from fljax.data.own.file_kinds import TABLES, kind_of
from fljax.jobs.settings import Layer, last, of_toml
from fljax.jobs.unlike import OF_COLUMNS

MAIN_JOB, MAIN_NUMBERS = (Path(__file__).with_name(name) for name in ("main_job.toml", "main_job_numbers.toml"))
OF_OWN_DATA = (*OF_COLUMNS, "task")
"""Settings that describe the user's own data."""
OF_PUBLIC_DATA = ("fedtsdp",)
"""Methods of the main job that need examples at the server: with data that names its clients, or one test set for all,
it has none."""


@cache
def _layer_of(file: Path) -> Layer:
    return of_toml(file)


def main_job() -> Layer:
    """The settings of the main job but for hyperparameters; a new list."""
    return [*_layer_of(MAIN_JOB)]


def set_by_main_job() -> set[str]:
    """The names of all its settings."""
    return {name for name, _ in (*_layer_of(MAIN_JOB), *_layer_of(MAIN_NUMBERS))}


def numbers_of_main_job(layers: Sequence[Layer]) -> Layer:
    """The hyperparameters that suit the main job: those of all methods suit its groups, those of one its network."""
    same_data = (last(layers, "data") or ["None"]) == ["None"]
    same_network = last(layers, "model") == last(layers[:1], "model")
    return [entry for entry in _layer_of(MAIN_NUMBERS) if (same_network if "." in entry[0] else same_data)]


def own_defaults(layers: Sequence[Layer]) -> list[Layer]:
    """The changes of the main job for data that names its clients, a data set of users or the user's own data, and for
    one test set for all clients.

    Raises:
        ValueError: both a client column and a partition are given, or columns are named without data.
    """
    main = last(layers[:1], "algorithm") or []
    without_public = "algorithm", [name for name in main if name not in OF_PUBLIC_DATA]
    if (last(layers, "data") or ["None"]) == ["None"]:
        _check_no_own_columns(layers)
        has_users = (last(layers, "dataset") or [""])[0] in OF_USERS
        if has_users:
            return [[("partition", ["natural"]), without_public]]
        common_test = last(layers, "common_test")
        is_common = common_test is not None and RUN["common_test"].read("common_test", common_test)
        return [[without_public]] if is_common else []
    partition = last(layers[1:], "partition") or ["natural"]
    if partition != ["natural"] and (last(layers, "client_column") or ["None"]) != ["None"]:
        raise ValueError(f"--partition {partition[0]}: --client-column names the clients already; give one of the two")
    is_table = kind_of(Path((last(layers, "data") or [""])[0])) in TABLES
    has_numbers = is_table and (last(layers, "text_column") or ["None"]) == ["None"]
    layer: Layer = [("partition", ["natural"]), ("normalize", ["standard" if has_numbers else "unit"])]
    layer.append(without_public)
    if partition == ["natural"]:
        layer += [("partition.n_clients", ["0"]), ("partition.min_size", ["1"])]
    return [layer]


def _check_no_own_columns(layers: Sequence[Layer]) -> None:
    """Raises ValueError if a layer describes the user's own data, but no layer names such data."""
    for layer in layers:
        if last([layer], "data") is not None:
            continue  # the layer says --data None
        for name, words in layer:
            if name in OF_OWN_DATA and RUN[name].read(name, words) != RUN[name].default:
                raise ValueError(f"{shown(name, words)} is for data of your own; give --data FILE, too")
