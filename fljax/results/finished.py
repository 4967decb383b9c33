"""Compares finished runs: seed by seed if they differ in nothing else, with one table per data setting."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fljax.files import as_path
from fljax.jobs.unlike import data_settings, same_clients, these_differ
from fljax.results.comparison import Comparison, Part
from fljax.results.groups import Groups, by_method, config_of, configs_of, named_groups
from fljax.results.measures import ROUNDS, counted_at, measure_of, over_rounds
from fljax.results.notes import never_reached, notes_of, without_value


def compare_runs(
    folders: str | Path | Sequence[str | Path],
    baseline: str | None = None,
    measure: str | None = None,
    target: float | None = None,
) -> Comparison:
    """Compares the methods of finished results folders, as ``fljax show`` does.

    Runs that differ only in their seeds are compared seed by seed: means, standard deviations, paired differences with
    intervals, and p-values. Runs of several data settings (data set, partition, columns) get one table per setting, and
    one table of all methods by settings, with their mean ranks.

    Args:
        folders: results folders of ``fljax run``, `fljax.train` or ``fljax compare``; several are named by their paths.
        baseline: the method that the others are compared with; None: the first. A data setting that lacks it uses its
            own first method.
        measure: the metric of each round, such as ``"test_loss"``; ``"accuracy_worst10"`` or ``"accuracy_deviation"``
            over the clients; ``"megabytes_up"`` or ``"megabytes_down"`` (10^6 bytes since the run began, mean over all
            clients); with edge servers ``"edge_megabytes_up"`` or ``"edge_megabytes_down"``; ``"rounds"``; a test of
            new clients, such as ``"new_accuracy_macro"``. None: ``"accuracy_macro"``, for regression ``"r2_micro"``;
            with a ``target`` ``"rounds"``.
        target: value of accuracy_macro, for regression of r2_micro: the metric is taken in the first round that reaches
            it, not at the end. A seed that never reaches it has no value.

    Raises:
        ValueError: a folder holds no run, the runs do not have the metric, no method is the baseline, or the target
            cannot be a value of accuracy_macro.
    """
    from fljax.results.load import load_run

    several = folders if np.iterable(folders) and not isinstance(folders, str | Path) else [folders]
    paths = [as_path("folders", folder) for folder in several]
    if not paths:
        raise ValueError("folders is empty; give at least one results folder")
    runs = [load_run(folder) for folder in run_folders(paths)]
    groups = named_groups(runs)
    results = [run[method] for run in runs for method in run]
    measure = measure_of(results, ROUNDS if measure is None and target is not None else measure)
    groups_by_data = _by_data(groups)
    brief = len(groups_by_data) > 1
    _check_baseline(
        baseline, [method for data_groups in groups_by_data.values() for method in by_method(data_groups, brief)]
    )
    parts = {name: _part(data_groups, baseline, measure, target, brief) for name, data_groups in groups_by_data.items()}
    title = f"{measure} {counted_at(results[0], target)}"
    if not brief:
        return Comparison(measure, title, parts, None, [], _settings(paths[0]))
    overview, notes = _over_settings(
        parts, measure, ranked=target is None
    )  # a method that never reaches the target has no rank
    differ = these_differ({name: config_of(group[0]) for name, group in groups.items()})
    return Comparison(measure, title, parts, overview, [*differ, *notes], _settings(paths[0]))


def _by_data(groups: Groups) -> dict[str, Groups]:
    """Data setting -> the groups of runs on it, with names that distinguish them there."""
    names_by_data = data_settings({name: config_of(group[0]) for name, group in groups.items()})
    if len(names_by_data) == 1:
        return dict.fromkeys(names_by_data, groups)
    return {
        data: named_groups([run for name in names for run in groups[name]]) for data, names in names_by_data.items()
    }


def _check_baseline(baseline: str | None, methods: Sequence[str]) -> None:
    """Raises ValueError if no data setting has the method."""
    if baseline is not None and baseline not in methods:
        raise ValueError(f"baseline={baseline!r} is not a method; choose one of {', '.join(dict.fromkeys(methods))}")


def _part(groups: Groups, baseline: str | None, measure: str, target: float | None, brief: bool) -> Part:
    """The methods of one data setting; for ``brief`` names see `fljax.results.groups.label_of`."""
    import numpy as np

    from fljax.metrics.headline import limits, measures_of
    from fljax.report.formats import table_of
    from fljax.report.significance import compare_scores

    results, config = by_method(groups, brief), configs_of(groups, brief)
    values = {
        method: {seed: over_rounds(result, measure) for seed, result in by_seed.items()}
        for method, by_seed in results.items()
    }
    ends = {
        method: {seed: _end(result, values[method][seed], config[method], target) for seed, result in by_seed.items()}
        for method, by_seed in results.items()
    }
    scores = _scores(ends)
    baseline_method = baseline if baseline in scores else next(iter(scores))
    is_single_seed = max(map(len, results.values())) == 1
    unpaired = [
        method
        for method in scores
        if not same_clients(config[method], config.get(baseline_method, {}), seeds=is_single_seed)
    ]
    compared = compare_scores(scores, baseline_method, apart=unpaired, limits=limits(measure))
    all_results = [result for by_seed in results.values() for result in by_seed.values()]
    first = measures_of(all_results[0].metrics)
    is_same_task = all(measures_of(result.metrics) == first for result in all_results)
    shown = first.kind if is_same_task else "loss"
    return Part(
        compared,
        table_of(compared, measure, baseline_method),
        {method: _curves(values[method], ends[method]) for method in results},
        {
            method: np.concatenate([_of_clients(result, shown, config[method]) for result in by_seed.values()])
            for method, by_seed in results.items()
        },
        first.word if is_same_task else shown,
        [
            *notes_of(groups, results, config, unpaired, compared, baseline_method, brief),
            *(never_reached(results, target) if target is not None else without_value(ends, measure)),
        ],
    )


def _over_settings(parts: Mapping[str, Part], measure: str, ranked: bool) -> tuple[Any, list[str]]:
    """The table of methods by data settings, and a line with the p-value of their ranks."""
    from fljax.metrics.headline import direction
    from fljax.report.formats import digits_of, p_value, table_of_settings
    from fljax.report.ranks import rank_methods

    compared, sign = {data: part.compared for data, part in parts.items()}, direction(measure)
    # Rounded, as the table shows them.
    means = {
        data: {method.algorithm: round(method.mean, digits_of(methods, measure)) for method in methods}
        for data, methods in compared.items()
    }
    ranks = rank_methods(means, sign) if ranked and sign else None
    table = table_of_settings(compared, measure, ranks)
    if ranks is None or ranks.p_value is None:
        return table, []
    text = f"{len(ranks.mean)} methods on {len(parts)} data settings: p = {p_value(ranks.p_value)}"
    critical = f"two differ at the 5 % level if they are {ranks.critical_difference:.2f} or more apart (Nemenyi)"
    return table, [f"ranks of {text} by Friedman's test; {critical}"]


def _end(run: Any, values: Any, config: dict[str, Any], target: float | None) -> float:
    """The one of a run's ``values`` (rounds,) that is compared: of the last test, or of the round of the target."""
    from fljax.metrics.target import first_reached
    from fljax.results.result import last_test

    if target is None:
        return values[last_test(values, config)]
    first = first_reached(run.metrics, target)
    return float("nan") if first is None else values[first]


def _of_clients(run: Any, kind: str, config: dict[str, Any]) -> Any:
    """(clients,) values of a run's last test."""
    from fljax.results.result import last_test

    values = run.metrics[f"client_{kind}"]
    return values[last_test(values, config)]


def _scores(ends: dict[str, dict[Any, Any]]) -> dict[str, Any]:
    """Method -> one value per seed that any method has, NaN for a seed that it lacks; if each method has one seed only,
    that one, whatever it is."""
    import numpy as np

    if max(map(len, ends.values())) == 1:
        return {method: np.array([*by_seed.values()]) for method, by_seed in ends.items()}
    seeds = dict.fromkeys(seed for by_seed in ends.values() for seed in by_seed)
    return {method: np.array([by_seed.get(seed, np.nan) for seed in seeds]) for method, by_seed in ends.items()}


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """The folders of runs; a comparison is replaced by the folders of its seeds."""
    run_paths = []
    for folder in folders:
        seeds = [path for path in folder.glob("seed_*") if path.is_dir()] if folder.is_dir() else []
        run_paths += sorted(seeds, key=lambda path: (len(path.name), path.name)) or [folder]
    return list({path.resolve(): path for path in run_paths}.values())


def _curves(runs: Mapping[Any, Any], ends: Mapping[Any, float]) -> Any:
    """(seeds, rounds) values of runs by seed; runs of fewer rounds are padded with their value in ``ends``."""
    import numpy as np

    longest = max(map(len, runs.values()))
    padded = [np.append(run, [ends[seed]] * (longest - len(run))) for seed, run in runs.items()]
    return np.stack(padded).astype(float)


def _settings(folder: Path) -> str:
    """The config.toml that made a run: of the comparison that it is a seed of, else its own."""
    paths = (folder.parent / "config.toml", folder / "config.toml")
    of_comparison, of_run = (
        path.read_text(encoding="utf-8", errors="replace") if path.exists() else "" for path in paths
    )
    return of_comparison if of_comparison.startswith("# fljax compare") else of_run
