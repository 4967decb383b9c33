"""What is to be known of runs beside each other that the table of them does not show, in lines under it."""

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
    """Lines under a table: what its runs do not have alike, clusters, what they left out, which have no pairs, and how
    many pairs the others have."""
    from fljax.run.comparison import clusters_found, left_out

    lines = these_differ({name: config_of(group[0]) for name, group in groups.items()})
    if len(groups) > 1:
        methods = {label: next(iter(own.values())).name for label, own in found.items()}
        lines += not_alike({label: _with_nones(config[label].get(name, {})) for label, name in methods.items()})
    lines += _not_at_the_same_round(found, config) + _no_results_yet(groups, brief)
    metrics = {label: [one.metrics for one in own.values()] for label, own in found.items()}
    lines += clusters_found(metrics) + left_out(metrics)
    if apart:
        lines.append(f"no difference to {other} of {in_words(apart)}: other clients, or another seed's, are no pairs")
    of_other = [one.n_seeds for one in compared if one.algorithm == other]
    few = [
        f"{one.n_pairs} of {one.algorithm}"
        for one in compared
        if one.difference and {one.n_seeds, *of_other} != {one.n_pairs}
    ]
    return lines + ([f"seeds in common with {other}, which differences are over: {', '.join(few)}"] if few else [])


def never_reached(found: dict[str, dict[Any, Any]], target: float | None) -> list[str]:
    """A line with the runs that never had the target, whose means are those of the other seeds alone."""
    from fljax.run.headline import measures_of
    from fljax.run.target import first_reached

    if target is None:
        return []
    told, name = [], ""
    for label, own in found.items():
        never = [seed for seed, one in own.items() if first_reached(one.metrics, target) is None]
        told += [f"{label}{_which(never, len(own))}"] if never else []
        name = measures_of(next(iter(own.values())).metrics).headline
    return [f"{name} never got to {target:g}: {', '.join(told)}"] if told else []


def _not_at_the_same_round(found: dict[str, dict[Any, Any]], config: dict[str, dict[str, Any]]) -> list[str]:
    """A line with the runs that have made fewer rounds than they were to make; ``--patience`` may have ended them."""
    done = {label: {seed: len(one.metrics["ids"]) for seed, one in own.items()} for label, own in found.items()}
    longest = max(n for own in done.values() for n in own.values())
    told = []
    for label, own in done.items():
        planned = config[label].get("rounds", longest)
        for n in sorted(set(own.values())):
            which = _which([seed for seed, made in own.items() if made == n], len(own))
            told += [f"{label} {n} of {planned}{which}"] if n < planned else []
    same = all(n == longest for own in done.values() for n in own.values())
    patient = all(config[label].get("patience") for label in done)
    last = "ended early" if patient else "not finished, so that the last tests are compared"
    word = last if same else "not at the same round"
    return [f"{word}: {'; '.join(told)}"] if told else []


def _no_results_yet(groups: dict[str, list[Any]], brief: bool) -> list[str]:
    """A line with the methods that a folder's config.toml has and that have made no round there."""
    told = []
    for name, group in groups.items():
        for method in dict.fromkeys(short_name(word) for run in group for word in run.config.get("algorithm", ())):
            seeds = [run.config.get("seed") for run in group if method not in run]
            told += [f"{label_of(groups, name, method, brief)}{_which(seeds, len(group))}"] if seeds else []
    return [f"{', '.join(told)}: no results yet"] if told else []


def _which(seeds: Sequence[Any], n_seeds: int) -> str:
    """Which of a method's seeds are meant, where not all of them are."""
    return f" (seed {', '.join(map(str, seeds))})" if len(seeds) < n_seeds else ""


def _with_nones(section: dict[str, Any]) -> dict[str, Any]:
    """A method's settings, with those of its optimiser that a config.toml leaves out where they are None."""
    return dict.fromkeys(STEPS[1:] if "lr" in section else ()) | section
