"""Finished runs beside each other: seed by seed where they differ in nothing else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fljax.jobs.groups import by_method, configs_of, named_groups
from fljax.jobs.notes import notes_of
from fljax.jobs.unlike import same_clients


class Comparison(NamedTuple):
    """Finished runs beside each other."""

    rows: list[dict[str, Any]]  # of the table, plain numbers
    text: str  # for a terminal
    markdown: str
    latex: str
    header: list[str]
    cells: list[list[str]]
    curves: dict[str, Any]  # method -> (seeds, rounds) of the measure
    clients: dict[str, Any]  # method -> (clients,) last test, over all seeds
    of_clients: str  # what those are: "accuracy", "R2" or "loss"
    measure: str
    notes: list[str]  # lines under the table
    settings: str


def compare_folders(folders: Sequence[Path], baseline: str | None = None, measure: str | None = None) -> Comparison:
    """The methods of results folders, over the seeds where the folders are runs with different ones.

    Runs that differ in more are told apart by their folders, the seeds of a comparison by the comparison's.

    Raises:
        ValueError: a folder holds no run, the runs have no such measure, or no such baseline is among the methods.
    """
    import numpy as np

    from fljax.run import formats
    from fljax.run.headline import measures_of
    from fljax.run.load import last_test, load_run
    from fljax.run.significance import compare_scores

    groups = named_groups([load_run(folder) for folder in folders])
    found, config = by_method(groups), configs_of(groups)
    everything = [one for own in found.values() for one in own.values()]
    first = measures_of(everything[0].metrics)
    name = _measure(everything, measure)
    values = {method: [_over_rounds(one, name) for one in own.values()] for method, own in found.items()}
    lasts = {
        method: [last_test(each, config[method]) for one, each in zip(own.values(), values[method], strict=True)]
        for method, own in found.items()
    }
    ends = {m: [each[last] for each, last in zip(values[m], lasts[m], strict=True)] for m in found}
    scores = _scores({method: dict(zip(own, ends[method], strict=True)) for method, own in found.items()})
    other = next(iter(scores)) if baseline is None else baseline
    alone = max(map(len, found.values())) == 1
    apart = [method for method in scores if not same_clients(config[method], config.get(other, {}), seeds=alone)]
    compared = compare_scores(scores, baseline, apart=apart)
    header, notes = formats.header_of(name, other), notes_of(groups, found, config, apart, compared, other)
    alike = all(measures_of(one.metrics) == first for one in everything)
    shown = first.scores[0].partition("_")[0] if alike else "loss"
    return Comparison(
        formats.as_rows(compared, name),
        "\n".join([formats.as_text(compared, header, name), *notes]),
        "".join([formats.as_markdown(compared, header, name), *(f"\n{note}\n" for note in notes)]),
        formats.as_latex(compared, header, name),
        [cell.replace("\n", " ") for cell in header],
        formats.cells(compared),
        {method: _curves(values[method], ends[method]) for method in found},
        {
            method: np.concatenate([_of_clients(one, shown, config[method]) for one in own.values()])
            for method, own in found.items()
        },
        first.word if alike else shown,
        name,
        notes,
        _settings(folders[0]),
    )


def _measure(runs: Sequence[Any], asked: str | None) -> str:
    """The measure that is asked for, or the first run's own; ValueError where a run has no such number a round."""
    from fljax.run.headline import measures_of
    from fljax.run.patience import measures_by_validation
    from fljax.run.spread import spreads

    first = runs[0]
    name = measures_of(first.metrics).scores[0] if asked is None else asked
    for one in runs:
        made = [*spreads(one.metrics), *measures_by_validation(one.metrics)]
        if name in made or (name in one.metrics and one.metrics[name].ndim == 1):
            continue
        if asked is None:
            raise ValueError(
                f"{first.folder} is compared by {name}, which {one.folder} does not have: classes and numbers; "
                "show them apart, or choose what both have: --measure test_loss"
            )
        numbers = [key for key, value in one.metrics.items() if value.ndim == 1 and value.dtype.kind == "f"]
        known = ", ".join([*numbers, *made])
        raise ValueError(f"--measure {name}: {one.folder} has no such number; it has {known}")
    return name


def _over_rounds(run: Any, measure: str) -> Any:
    """(rounds,) of a run's measure as a table means it: simulated seconds are those since the run began."""
    import numpy as np

    from fljax.run.patience import at_best_validation, measures_by_validation
    from fljax.run.spread import measured

    if measure in measures_by_validation(run.metrics):
        return at_best_validation(run.metrics)
    values = measured(run.metrics, measure)
    return np.cumsum(values, dtype=np.float64) if measure == "simulated_seconds" else values


def _of_clients(run: Any, kind: str, config: dict[str, Any]) -> Any:
    """(clients,) of a run's last test."""
    from fljax.run.load import last_test

    values = run.metrics[f"client_{kind}"]
    return values[last_test(values, config)]


def _scores(ends: dict[str, dict[Any, Any]]) -> dict[str, Any]:
    """Method -> a number for each seed that any method has, NaN where it lacks one; alone, of whatever seed."""
    import numpy as np

    if max(map(len, ends.values())) == 1:
        return {method: np.array([*own.values()]) for method, own in ends.items()}
    seeds = dict.fromkeys(seed for own in ends.values() for seed in own)
    return {method: np.array([own.get(seed, np.nan) for seed in seeds]) for method, own in ends.items()}


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """The run folders: a comparison's are those of its seeds."""
    found = []
    for folder in folders:
        seeds = [path for path in folder.glob("seed_*") if path.is_dir()] if folder.is_dir() else []
        found += sorted(seeds, key=lambda path: (len(path.name), path.name)) or [folder]
    return list({path.resolve(): path for path in found}.values())


def _curves(runs: Sequence[Any], ends: Sequence[Any]) -> Any:
    """(seeds, rounds); runs of fewer rounds keep their last value, of ``ends``."""
    import numpy as np

    longest = max(len(run) for run in runs)
    padded = [np.append(run, [end] * (longest - len(run))) for run, end in zip(runs, ends, strict=True)]
    return np.stack(padded).astype(float)


def _settings(folder: Path) -> str:
    """What made a run: the comparison that it is a seed of, or itself."""
    paths = (folder.parent / "config.toml", folder / "config.toml")
    above, own = (path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in paths)
    return above if above.startswith("# fljax compare") else own
