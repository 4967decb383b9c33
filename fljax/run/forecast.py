"""The plans of several methods as a table."""

from collections.abc import Mapping

from fljax.run.columns import table
from fljax.run.plan import Plan
from fljax.run.sweep.memory import size

HEADER = ("algorithm", "kept", "each\nclient", "most\nclients", "GFLOP\na round", "side\nby side", "rounds/s")


def as_table(plans: Mapping[str, Plan], n_rounds: int) -> str:
    """A row a method, under what they have in common: data, memory, and the length of the run."""
    first = next(iter(plans.values()))
    rows = []
    for name, own in plans.items():
        measured = ["-", "do not fit", "-"]
        if own.at_once > 0:
            seconds = f"{n_rounds / own.rounds_per_second:.3g} s"
            measured = [str(own.at_once), f"{own.rounds_per_second:.3g}", seconds]
        kept, each = size(own.state), size(own.per_client)
        rows.append([name, kept, each, str(own.largest_cohort), f"{own.flops / 1e9:.3g}", *measured])
    common = f"{size(first.data)} of data, {size(first.limit)} of memory to use"
    return f"{common}\n{table([*HEADER, f'{n_rounds}{chr(10)}rounds'], rows)}"
