"""Settings in which compared runs differ, and which of the runs had the same clients."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fljax.catalogue.entries import entry, names
from fljax.catalogue.job import PARTS, STEPS
from fljax.catalogue.words import words_of, written
from fljax.jobs.settings import RECORD, UNSET

OF_METHODS = (*STEPS, "epochs", "local_steps", "batch_size", "optimizer", "n_clusters")
"""Settings of methods that a comparison should keep equal, and whose differences are easily overlooked."""
OF_TEXT = ("text_column", "text_words", "text_length")
OF_FEATURES = ("feature_column", "category_column", "ignored_column", "fill", *OF_TEXT)
OF_COLUMNS = ("client_column", "label_column", "split_column", *OF_FEATURES)
"""Settings that describe the columns of a table."""
OF_CLIENTS = ("data", *OF_COLUMNS, "task", "new_clients", "common_test")
"""A run's own settings that determine the clients, besides the data set and the partition."""
_TESTS = ("evaluate_every", "score", "validate", "patience")
"""Settings of the tests of a run; the round at which it ended has its own note."""
_UNSAID = (*RECORD, *_TESTS, "algorithm", "seed", "compile", "data_folder", "new_client_rounds")
"""Entries of a config.toml that do not affect results, or that the table shows."""

Config = Mapping[str, Any]
"""A run's config.toml; empty if it is not known."""


def not_alike(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line with the settings of local training and of clusters in which methods differ; [] if they do not."""
    differences = []
    for name in OF_METHODS:
        values = {method: section[name] for method, section in settings.items() if name in section}
        most_common = Counter(values.values()).most_common(1)[0][0] if values else None
        if other_methods := [f"{method} {value}" for method, value in values.items() if value != most_common]:
            differences.append(f"{written(name)} {most_common}, {', '.join(other_methods)}")
    return [f"methods differ in: {'; '.join(differences)}"] if differences else []


def these_differ(configs: Mapping[str, Config]) -> list[str]:
    """A line with the settings, besides the methods, in which runs differ, and the names of the runs with each value;
    [] if they do not differ or nothing is known."""
    flat_configs = {name: _flat(config) for name, config in configs.items() if config}
    differences = {}
    for key in dict.fromkeys(key for settings in flat_configs.values() for key in settings):
        part = key.partition(".")[0]
        alike: dict[Any, list[str]] = {}  # another partition has other settings: each is compared with its like
        for name, settings in flat_configs.items():
            alike.setdefault(settings.get(part) if part != key else None, []).append(name)
        texts = []
        for names_alike in alike.values():
            runs_by_value: dict[str, list[str]] = {}
            for name in names_alike:
                runs_by_value.setdefault(" ".join(words_of(flat_configs[name].get(key))), []).append(name)
            if len(runs_by_value) > 1:
                texts += [f"{value} ({', '.join(names)})" for value, names in runs_by_value.items()]
        if texts:
            differences[key] = ", ".join(texts)
    text = "; ".join(f"{written(key)} {values}" for key, values in differences.items())
    return [f"runs differ in {', '.join(map(written, differences))}: {text}"] if differences else []


def same_clients(one: Config, other: Config, seeds: bool) -> bool:
    """Whether two runs have the same clients, as far as is known: of the same seed, or with ``seeds`` of their own."""
    data = [config.get("data") or config.get("dataset") for config in (one, other)]

    def value_of(config: Config, name: str) -> Any:
        return config.get(name) or None  # a file of an older version lacks newer settings

    is_alike = all(value_of(one, name) == value_of(other, name) for name in OF_CLIENTS)
    is_alike = is_alike and section_of(one, "partition") == section_of(other, "partition")
    return (
        not one
        or not other
        or (data[0] == data[1] and is_alike and (not seeds or one.get("seed") == other.get("seed")))
    )


def data_settings(configs: Mapping[str, Config]) -> dict[str, list[str]]:
    """Data setting -> the names of runs whose clients differ only in the seed; an unknown setting counts as the first.

    A data setting is named by what differs from the others: the data set, the partition, its settings.
    """
    groups: list[list[str]] = []
    for name, config in configs.items():
        group = next((members for members in groups if same_clients(configs[members[0]], config, seeds=False)), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    if len(groups) == 1:
        return {"": groups[0]}
    names = [
        name or members[0]
        for name, members in zip(_data_names([configs[members[0]] for members in groups]), groups, strict=True)
    ]
    if len(set(names)) < len(names):  # they lie in different folders
        names = [members[0] for members in groups]
    return dict(zip(names, groups, strict=True))


def _data_names(configs: Sequence[Config]) -> list[str]:
    """For each data setting, what distinguishes its clients from all others', in words; "" if nothing does."""
    of_data = ("dataset", *OF_CLIENTS, "partition")
    flat = [
        {key: value for key, value in _flat(config).items() if key.partition(".")[0] in of_data and value is not None}
        for config in configs
    ]
    texts: list[list[str]] = [[] for _ in flat]
    for key in dict.fromkeys(key for config in flat for key in config):
        words = {" ".join(words_of(config[key])) for config in flat if key in config}
        if len(words) > 1 or ("." not in key and not all(key in config for config in flat)):
            for parts, config in zip(texts, flat, strict=True):
                parts += [_in_words(key, config[key])] if key in config else []
    return [", ".join(parts) for parts in texts]


def _in_words(key: str, value: Any) -> str:
    if key in ("dataset", "partition"):
        return str(value)
    return Path(value).stem if key == "data" else f"{written(key.rpartition('.')[2])} {' '.join(words_of(value))}"


def _flat(config: Config) -> dict[str, Any]:
    """A run's own settings and those of its parts, named "part" and "part.name"."""
    settings = {name: value for name, value in config.items() if not isinstance(value, Mapping) and name not in _UNSAID}
    # A setting that a file of an older version lacks is off in it.
    settings = {name: value for name, value in settings.items() if value != [] and value is not False}
    for part in PARTS:
        if section := section_of(config, part):
            settings |= {part: section.get("name")}
            settings |= {f"{part}.{name}": value for name, value in section.items() if name != "name"}
    return settings


def section_of(config: Config, part: str) -> dict[str, Any]:
    """The section of a part, with the defaults of settings that a file of an older version lacks; {} if it has none."""
    section = config.get(part)
    if not isinstance(section, Mapping):
        return {}
    is_known = (word := section.get("name", "")) in names(part)
    defaults = {name: field.default for name, field in entry(part, word).section.items()} if is_known else {}
    unset = dict.fromkeys(section.get(UNSET, ()))
    return defaults | unset | {name: value for name, value in section.items() if name != UNSET}


def in_words(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
