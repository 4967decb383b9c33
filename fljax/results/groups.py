"""Groups of finished runs that differ only in their seeds, and their results and settings by method."""

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fljax.catalogue.file_words import short_name
from fljax.catalogue.job import PARTS
from fljax.jobs.kinds import made_by
from fljax.jobs.settings import RECORD
from fljax.jobs.unlike import section_of

Groups = dict[str, list[Any]]
"""Name of a group -> its `fljax.results.load.LoadedRun`s."""
_PLACE = (*RECORD, "data_folder", "new_client_rounds")
"""Entries of a config.toml that record where a run was made, or concern the time after its rounds."""


def named_groups(runs: Sequence[Any]) -> Groups:
    """Groups of runs that differ in their seeds, named by the folder of each, or the common beginning of its names."""
    groups = [runs] if _differ_only_in_seed(runs) else _groups(runs)
    folders = [_common_folder(group) for group in groups]
    if len(set(folders)) < len(folders):
        folders = [group[0].folder.resolve() for group in groups]
    return dict(zip(_distinct_names(folders), map(list, groups), strict=True))


def _common_folder(group: Sequence[Any]) -> Path:
    """The folder of a comparison or of a single run; for other runs the common beginning of their folders' paths."""
    folders = [run.folder.resolve() for run in group]
    if all(map(_is_seed, folders)) and (len(folders) > 1 or _n_seeds(folders[0]) == 1):
        return folders[0].parent
    common_beginning = os.path.commonprefix([*map(str, folders)])  # noqa: RUF071 - letters of names, not folders
    return folders[0] if len(folders) == 1 else Path(common_beginning.rstrip("/._- "))


def by_method(groups: Groups, brief: bool) -> dict[str, dict[Any, Any]]:
    """Method, as `label_of` names it, -> seed -> its results."""
    results: dict[str, dict[Any, Any]] = {}
    for name, group in groups.items():
        for run in group:
            for method in run:
                results.setdefault(label_of(groups, name, method, brief), {})[run.config.get("seed")] = run[method]
    return results


def configs_of(groups: Groups, brief: bool) -> dict[str, dict[str, Any]]:
    """Method, as `by_method` names it, -> the settings of its first run; {} if they are not known."""
    return {
        label_of(groups, name, method, brief): config_of(group[0])
        for name, group in groups.items()
        for run in group
        for method in run
    }


def config_of(run: Any) -> dict[str, Any]:
    """A run's settings; for a method's own folder those of the run that it lies in. {} if they are not known."""
    parent_file = run.folder.resolve().parent / "config.toml"
    if run.config or not parent_file.exists():
        return run.config
    try:
        settings = tomllib.loads(parent_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a damaged file does not affect the results
        return {}
    return settings if set(run) <= {short_name(word) for word in settings.get("algorithm", ())} else {}


def label_of(groups: Groups, name: str, method: str, brief: bool) -> str:
    """The label of a method of the group ``name``: with several groups, it includes the group's folder.

    ``brief``: it does so only if several groups have the method.
    """
    n_groups = sum(any(method in run for run in group) for group in groups.values()) if brief else len(groups)
    return method if n_groups <= 1 else f"{name}/{method}"


def _settings_besides_seed(run: Any) -> dict[str, Any]:
    """A run's settings except its seed, its place, and what is off, which the file of an older version may lack."""
    config = {name: value for name, value in run.config.items() if name not in ("seed", *_PLACE)}
    settings = {name: value for name, value in config.items() if value != [] and value is not False}
    return settings | {part: section_of(config, part) for part in PARTS if part in config}


def _differ_only_in_seed(runs: Sequence[Any]) -> bool:
    """Whether runs differ only in their seeds."""
    settings = [*map(_settings_besides_seed, runs)]
    seeds = {repr(run.config.get("seed")) for run in runs}
    return len(runs) == 1 or (
        all(own_settings == settings[0] for own_settings in settings) and len(seeds) == len(runs) and bool(settings[0])
    )


def _groups(runs: Sequence[Any]) -> list[list[Any]]:
    """Groups the seeds of a comparison, and other runs that differ only in their seeds; any other run is alone."""
    by_key: dict[Any, list[Any]] = {}
    for run in runs:
        folder = run.folder.resolve()
        by_key.setdefault(folder.parent if _is_seed(folder) else repr(_settings_besides_seed(run)), []).append(run)
    return [
        group
        for runs_together in by_key.values()
        for group in ([runs_together] if _differ_only_in_seed(runs_together) else [[run] for run in runs_together])
    ]


def _is_seed(folder: Path) -> bool:
    """Whether a run is a seed of a comparison."""
    parent_file = folder.resolve().parent / "config.toml"
    return folder.resolve().name.startswith("seed_") and parent_file.exists() and made_by(parent_file) == "compare"


def _n_seeds(folder: Path) -> int:
    """The number of seeds of the comparison to which a run's folder belongs."""
    return len([*folder.parent.glob("seed_*/config.toml")])


def _distinct_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of the folders' paths, as many as are needed to distinguish them."""
    parts = [folder.resolve().parts for folder in folders]
    depths = range(1, max(map(len, parts), default=0) + 1)
    names = (["/".join(path_parts[-depth:]) for path_parts in parts] for depth in depths)
    return next(
        (distinct for distinct in names if len(set(distinct)) == len(distinct)), [str(folder) for folder in folders]
    )
