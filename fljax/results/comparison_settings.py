"""The settings of a comparison, checked before its runs."""

from typing import Any

from fljax.jobs.job import Job
from fljax.jobs.sweep_values import MOST_RUNS
from fljax.metrics.cost import EDGE_TRAFFIC
from fljax.results.measures import SPENT
from fljax.run.arguments import numbers_of_rounds


def check_comparison(job: Job) -> None:
    """Checks a job of `fljax compare`.

    Raises:
        ValueError: the baseline is not one of the methods, there are too many runs, or a seed is too large.
    """
    baseline = job.own["baseline"]
    if baseline is not None and baseline not in job.methods:
        raise ValueError(f"--baseline {baseline}: choose one of {', '.join(job.methods)}")
    seed, seeds = job.run.seed, job.own["seeds"]
    if (n_runs := len(job.methods) * seeds) > MOST_RUNS:
        n_methods = f"{len(job.methods)} method{'s' * (len(job.methods) > 1)}"
        raise ValueError(f"{n_methods} x --seeds {seeds} are {n_runs} runs; choose at most {MOST_RUNS}")
    if seed + seeds > 2**32:
        raise ValueError(f"--seeds {seeds}: the last seed is {seed + seeds - 1}; seeds are at most {2**32 - 1}")


def check_measure(measure: str, planned: dict[str, dict[str, Any]]) -> None:
    """Checks the metric that is compared, from the arguments of each method's run.

    Raises:
        ValueError: a method's rounds do not have the metric.
    """
    metrics = {name: [*numbers_of_rounds(**plan), *SPENT] for name, plan in planned.items()}
    for numbers in metrics.values():
        numbers += [measure for measure, floats in EDGE_TRAFFIC.items() if floats in numbers]
    for name, numbers in metrics.items():
        if measure not in numbers:
            common = [
                metric for metric in numbers if all(metric in other_metrics for other_metrics in metrics.values())
            ]
            raise ValueError(f"measure={measure!r}: {name} has no such metric; choose one of {', '.join(common)}")
