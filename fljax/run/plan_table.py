"""The plans of several methods as a table that is printed row by row, as soon as each plan is known."""

from collections.abc import Sequence

from fljax.devices.memory import size
from fljax.report.columns import table
from fljax.run.plan import Plan

HEADER = (
    "algorithm",
    "kept",
    "each\nclient",
    "most\nclients",
    "GFLOP\na round",
    "side\nby side",
    "rounds/s",
    "compile",
)
_WIDTHS = (8, 8, 8, 7, 7, 8, 8, 8)


def head(names: Sequence[str], n_rounds: int) -> str:
    """The head of the table for the methods ``names``."""
    return table([*HEADER, f"{n_rounds}\nrounds"], [], least=_widths(names))


def line(name: str, plan: Plan, n_rounds: int, names: Sequence[str]) -> str:
    """A method's row. Estimates that were not measured are marked ``~``."""
    state, is_quick = size(plan.state), plan.per_client is None
    per_client, cohort = ("-", "-") if plan.per_client is None else (size(plan.per_client), str(plan.largest_cohort))
    speed = ["-", "do not fit", "-", "-"]
    if plan.at_once > 0 or is_quick:
        mark = "" if plan.measured else "~"
        seconds = plan.compile_seconds + n_rounds / plan.rounds_per_second
        rate, total = f"{mark}{plan.rounds_per_second:.3g}", f"{mark}{seconds:.3g} s"
        compiling = f"{'~' if is_quick else ''}{plan.compile_seconds:.2g} s"
        speed = ["-" if is_quick else str(plan.at_once), rate, compiling, total]
    cells = [name, state, per_client, cohort, f"{plan.flops / 1e9:.3g}", *speed]
    return table([""] * len(cells), [cells], least=_widths(names)).split("\n", 1)[1]


def common(plan: Plan) -> str:
    """The line with the values that are the same for all methods."""
    return f"{size(plan.data)} of data, {size(plan.limit)} of memory to use"


def _widths(names: Sequence[str]) -> list[int]:
    return [max(_WIDTHS[0], *map(len, names)), *_WIDTHS[1:], 10]
