"""Notes under the table of a comparison: what one must know of the runs and the table does not show."""

import math
from collections.abc import Sequence
from typing import Any

from fljax.catalogue.file_words import short_name
from fljax.jobs.layers import STEPS
from fljax.jobs.unlike import in_words, not_alike, these_differ
from fljax.results.groups import config_of, label_of

ON_ONE_SET = "all clients are tested on one set (--common-test)"


def notes_of(
    groups: dict[str, list[Any]],
    results: dict[str, dict[Any, Any]],
    config: dict[str, dict[str, Any]],
    unpaired: Sequence[str],
    compared: Sequence[Any],
    baseline: str,
    brief: bool,
) -> list[str]:
    """Lines under a table: what its runs were tested on if not on each client's own examples, settings in which they
    differ, clusters, results that were left out, methods without pairs, the number of pairs of the others, and
    differences that are equal on all seeds."""
    from fljax.report.comparison import clusters_found, left_out

    configs = {name: config_of(group[0]) for name, group in groups.items()}
    are_common = all(config_of(run).get("common_test") for group in groups.values() for run in group)
    lines = [ON_ONE_SET] if are_common else []
    lines += these_differ(configs)
    if len(groups) > 1:
        methods = {label: next(iter(by_seed.values())).name for label, by_seed in results.items()}
        lines += not_alike({label: _with_nones(config[label].get(name, {})) for label, name in methods.items()})
    lines += _not_at_the_same_round(results, config) + _no_results_yet(groups, brief)
    metrics = {label: [method.metrics for method in by_seed.values()] for label, by_seed in results.items()}
    lines += clusters_found(metrics) + left_out(metrics)
    if unpaired:
        lines.append(
            f"no paired difference of {in_words(unpaired)} to {baseline}: the clients or the seeds are not the same"
        )
    baseline_seeds = [method.n_seeds for method in compared if method.algorithm == baseline]
    fewer = [
        f"{method.n_pairs} of {method.algorithm}"
        for method in compared
        if method.difference and {method.n_seeds, *baseline_seeds} != {method.n_pairs}
    ]
    lines += [f"differences are over the seeds in common with {baseline}: {', '.join(fewer)}"] if fewer else []
    constant = [method.algorithm for method in compared if method.n_pairs > 1 and method.p_value is None]
    if constant:
        text = f"the difference to {baseline} is equal on all seeds"
        lines.append(f"no interval and no p-value of {in_words(constant)}: {text}")
    return lines


def without_value(ends: dict[str, dict[Any, float]], measure: str) -> list[str]:
    """A line with the runs whose metric is not finite at the end, so that means are over the other seeds only."""
    texts = []
    for label, by_seed in ends.items():
        lacking = [seed for seed, value in by_seed.items() if not math.isfinite(value)]
        texts += [f"{label}{_seeds_in_words(lacking, len(by_seed))}"] if lacking else []
    return [f"{measure} is not finite and was left out: {', '.join(texts)}"] if texts else []


def never_reached(results: dict[str, dict[Any, Any]], target: float | None) -> list[str]:
    """A line with the runs that never reached the target, so that means are over the other seeds only."""
    from fljax.metrics.headline import measures_of
    from fljax.metrics.target import first_reached

    if target is None:
        return []
    texts, name = [], ""
    for label, by_seed in results.items():
        never = [seed for seed, result in by_seed.items() if first_reached(result.metrics, target) is None]
        texts += [f"{label}{_seeds_in_words(never, len(by_seed))}"] if never else []
        name = measures_of(next(iter(by_seed.values())).metrics).headline
    return [f"{name} never reached {target:g}: {', '.join(texts)}"] if texts else []


def _not_at_the_same_round(results: dict[str, dict[Any, Any]], config: dict[str, dict[str, Any]]) -> list[str]:
    """A line with the runs that made fewer rounds than planned; ``--patience`` may have ended them."""
    n_rounds = {
        label: {seed: len(result.metrics["ids"]) for seed, result in by_seed.items()}
        for label, by_seed in results.items()
    }
    longest = max(n for by_seed in n_rounds.values() for n in by_seed.values())
    texts = []
    for label, by_seed in n_rounds.items():
        planned = config[label].get("rounds", longest)
        for n in sorted(set(by_seed.values())):
            seeds = _seeds_in_words([seed for seed, n_made in by_seed.items() if n_made == n], len(by_seed))
            texts += [f"{label} {n} of {planned} rounds{seeds}"] if n < planned else []
    is_same_round = all(n == longest for by_seed in n_rounds.values() for n in by_seed.values())
    is_patient = all(config[label].get("patience") for label in n_rounds)
    at_end = "ended early" if is_patient else "not finished (their last tests are compared)"
    heading = at_end if is_same_round else "not at the same round"
    return [f"{heading}: {'; '.join(texts)}"] if texts else []


def _no_results_yet(groups: dict[str, list[Any]], brief: bool) -> list[str]:
    """A line with the methods of a folder's config.toml that have made no round there."""
    texts = []
    for name, group in groups.items():
        for method in dict.fromkeys(short_name(word) for run in group for word in run.config.get("algorithm", ())):
            seeds = [run.config.get("seed") for run in group if method not in run]
            texts += [f"{label_of(groups, name, method, brief)}{_seeds_in_words(seeds, len(group))}"] if seeds else []
    return [f"{', '.join(texts)}: no results yet"] if texts else []


def _seeds_in_words(seeds: Sequence[Any], n_seeds: int) -> str:
    """The seeds in parentheses, unless they are all seeds of a method."""
    return f" (seed {', '.join(map(str, seeds))})" if len(seeds) < n_seeds else ""


def _with_nones(section: dict[str, Any]) -> dict[str, Any]:
    """A method's settings, with those of its optimiser that a config.toml leaves out because they are None."""
    return dict.fromkeys(STEPS[1:] if "lr" in section else ()) | section
