"""Notes under the table of a comparison: what one must know of the runs and the table does not show."""

from collections.abc import Sequence
from typing import Any

from fljax.catalogue.own import short_name
from fljax.jobs.groups import config_of, label_of
from fljax.jobs.layers import STEPS
from fljax.jobs.unlike import in_words, not_alike, these_differ


def notes_of(
    groups: dict[str, list[Any]],
    found: dict[str, dict[Any, Any]],
    config: dict[str, dict[str, Any]],
    apart: Sequence[str],
    compared: Sequence[Any],
    other: str,
    brief: bool,
) -> list[str]:
    """Lines under a table: settings in which its runs differ, clusters, results that were left out, methods without
    pairs, the number of pairs of the others, and differences that are equal on all seeds."""
    from fljax.run.comparison import clusters_found, left_out

    lines = these_differ({name: config_of(group[0]) for name, group in groups.items()})
    if len(groups) > 1:
        methods = {label: next(iter(own.values())).name for label, own in found.items()}
        lines += not_alike({label: _with_nones(config[label].get(name, {})) for label, name in methods.items()})
    lines += _not_at_the_same_round(found, config) + _no_results_yet(groups, brief)
    metrics = {label: [one.metrics for one in own.values()] for label, own in found.items()}
    lines += clusters_found(metrics) + left_out(metrics)
    if apart:
        lines.append(f"no paired difference of {in_words(apart)} to {other}: the clients or the seeds are not the same")
    of_other = [one.n_seeds for one in compared if one.algorithm == other]
    few = [
        f"{one.n_pairs} of {one.algorithm}"
        for one in compared
        if one.difference and {one.n_seeds, *of_other} != {one.n_pairs}
    ]
    lines += [f"differences are over the seeds in common with {other}: {', '.join(few)}"] if few else []
    same = [one.algorithm for one in compared if one.n_pairs > 1 and one.p_value is None]
    if same:
        lines.append(f"no interval and no p-value of {in_words(same)}: the difference to {other} is equal on all seeds")
    return lines


def never_reached(found: dict[str, dict[Any, Any]], target: float | None) -> list[str]:
    """A line with the runs that never reached the target, so that means are over the other seeds only."""
    from fljax.run.headline import measures_of
    from fljax.run.target import first_reached

    if target is None:
        return []
    told, name = [], ""
    for label, own in found.items():
        never = [seed for seed, one in own.items() if first_reached(one.metrics, target) is None]
        told += [f"{label}{_which(never, len(own))}"] if never else []
        name = measures_of(next(iter(own.values())).metrics).headline
    return [f"{name} never reached {target:g}: {', '.join(told)}"] if told else []


def _not_at_the_same_round(found: dict[str, dict[Any, Any]], config: dict[str, dict[str, Any]]) -> list[str]:
    """A line with the runs that made fewer rounds than planned; ``--patience`` may have ended them."""
    done = {label: {seed: len(one.metrics["ids"]) for seed, one in own.items()} for label, own in found.items()}
    longest = max(n for own in done.values() for n in own.values())
    told = []
    for label, own in done.items():
        planned = config[label].get("rounds", longest)
        for n in sorted(set(own.values())):
            which = _which([seed for seed, made in own.items() if made == n], len(own))
            told += [f"{label} {n} of {planned} rounds{which}"] if n < planned else []
    same = all(n == longest for own in done.values() for n in own.values())
    patient = all(config[label].get("patience") for label in done)
    last = "ended early" if patient else "not finished (their last tests are compared)"
    word = last if same else "not at the same round"
    return [f"{word}: {'; '.join(told)}"] if told else []


def _no_results_yet(groups: dict[str, list[Any]], brief: bool) -> list[str]:
    """A line with the methods of a folder's config.toml that have made no round there."""
    told = []
    for name, group in groups.items():
        for method in dict.fromkeys(short_name(word) for run in group for word in run.config.get("algorithm", ())):
            seeds = [run.config.get("seed") for run in group if method not in run]
            told += [f"{label_of(groups, name, method, brief)}{_which(seeds, len(group))}"] if seeds else []
    return [f"{', '.join(told)}: no results yet"] if told else []


def _which(seeds: Sequence[Any], n_seeds: int) -> str:
    """The seeds in parentheses, unless they are all seeds of a method."""
    return f" (seed {', '.join(map(str, seeds))})" if len(seeds) < n_seeds else ""


def _with_nones(section: dict[str, Any]) -> dict[str, Any]:
    """A method's settings, with those of its optimiser that a config.toml leaves out because they are None."""
    return dict.fromkeys(STEPS[1:] if "lr" in section else ()) | section
