"""Settings in which compared runs differ, and which of the runs had the same clients."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fljax.catalogue.words import words_of, written
from fljax.jobs.settings import PARTS, RECORD

OF_METHODS = ("lr", "lr_decay", "momentum", "weight_decay", "epochs", "batch_size", "optimizer", "n_clusters")
"""Settings of methods that a comparison should keep equal, and whose differences are easily overlooked."""
OF_TEXT = ("text_column", "text_words", "text_length")
OF_FEATURES = ("feature_column", "category_column", "ignored_column", "fill", *OF_TEXT)
OF_COLUMNS = ("client_column", "label_column", "split_column", *OF_FEATURES)
"""Settings that describe the columns of a table."""
OF_CLIENTS = ("data", *OF_COLUMNS, "task", "new_clients")
"""A run's own settings that determine the clients, besides the data set and the partition."""
_TESTS = ("evaluate_every", "score", "validate", "patience")
"""Settings of the tests of a run; the round at which it ended has its own note."""
_UNSAID = (*RECORD, *_TESTS, "algorithm", "seed", "compile", "data_folder", "new_client_rounds")
"""Entries of a config.toml that do not affect results, or that the table shows."""

Config = Mapping[str, Any]
"""A run's config.toml; empty if it is not known."""


def not_alike(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line with the settings of local training and of clusters in which methods differ; [] if they do not."""
    found = []
    for name in OF_METHODS:
        values = {method: own[name] for method, own in settings.items() if name in own}
        usual = Counter(values.values()).most_common(1)[0][0] if values else None
        if others := [f"{method} {value}" for method, value in values.items() if value != usual]:
            found.append(f"{written(name)} {usual}, {', '.join(others)}")
    return [f"methods differ in: {'; '.join(found)}"] if found else []


def these_differ(configs: Mapping[str, Config]) -> list[str]:
    """A line with settings other than the methods in which runs, by name, differ; [] if they do not or nothing is
    known."""
    known = {name: _flat(config) for name, config in configs.items() if config}
    found = {}
    for key in dict.fromkeys(key for own in known.values() for key in own):
        part = key.partition(".")[0]
        if part != key and part in found:  # another partition has other settings
            continue
        of_value: dict[str, list[str]] = {}
        for name, own in known.items():
            of_value.setdefault(" ".join(words_of(own.get(key))), []).append(name)
        if len(of_value) > 1:
            found[key] = ", ".join(f"{value} ({', '.join(names)})" for value, names in of_value.items())
    told = "; ".join(f"{written(key)} {values}" for key, values in found.items())
    return [f"runs differ in {', '.join(map(written, found))}: {told}"] if found else []


def same_clients(one: Config, other: Config, seeds: bool) -> bool:
    """Whether two runs have the same clients, as far as is known: of the same seed, or with ``seeds`` of their own."""
    data = [config.get("data") or config.get("dataset") for config in (one, other)]

    def said(config: Config, name: str) -> Any:
        return config.get(name) or None  # a file of an older version lacks newer settings

    alike = all(said(one, name) == said(other, name) for name in (*OF_CLIENTS, "partition"))
    return (
        not one or not other or (data[0] == data[1] and alike and (not seeds or one.get("seed") == other.get("seed")))
    )


def data_settings(configs: Mapping[str, Config]) -> dict[str, list[str]]:
    """Data setting -> the names of runs whose clients differ only in the seed; an unknown setting counts as the first.

    A data setting is named by what differs from the others: the data set, the partition, its settings.
    """
    alike: list[list[str]] = []
    for name, config in configs.items():
        own = next((part for part in alike if same_clients(configs[part[0]], config, seeds=False)), None)
        if own is None:
            alike.append([name])
        else:
            own.append(name)
    if len(alike) == 1:
        return {"": alike[0]}
    names = [
        name or part[0] for name, part in zip(_data_names([configs[part[0]] for part in alike]), alike, strict=True)
    ]
    if len(set(names)) < len(names):  # they lie in different folders
        names = [part[0] for part in alike]
    return dict(zip(names, alike, strict=True))


def _data_names(configs: Sequence[Config]) -> list[str]:
    """For each data setting, what distinguishes its clients from all others', in words; "" if nothing does."""
    of_data = ("dataset", *OF_CLIENTS, "partition")
    flat = [
        {key: value for key, value in _flat(own).items() if key.partition(".")[0] in of_data and value is not None}
        for own in configs
    ]
    told: list[list[str]] = [[] for _ in flat]
    for key in dict.fromkeys(key for own in flat for key in own):
        words = {" ".join(words_of(own[key])) for own in flat if key in own}
        if len(words) > 1 or ("." not in key and not all(key in own for own in flat)):
            for parts, own in zip(told, flat, strict=True):
                parts += [_in_words(key, own[key])] if key in own else []
    return [", ".join(parts) for parts in told]


def _in_words(key: str, value: Any) -> str:
    if key in ("dataset", "partition"):
        return str(value)
    return Path(value).stem if key == "data" else f"{written(key.rpartition('.')[2])} {' '.join(words_of(value))}"


def _flat(config: Config) -> dict[str, Any]:
    """A run's own settings and those of its parts, named "part" and "part.name"."""
    own = {name: value for name, value in config.items() if not isinstance(value, Mapping) and name not in _UNSAID}
    own = {name: value for name, value in own.items() if value != []}  # as in a file of an older version
    for part in PARTS:
        section = config.get(part)
        if isinstance(section, Mapping):
            own |= {part: section.get("name")}
            own |= {f"{part}.{name}": value for name, value in section.items() if name not in ("name", "unset")}
    return own


def in_words(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
