"""Comparisons over seeds as tables, of one data setting or several, as text, Markdown and LaTeX."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fljax.metrics.headline import direction, limits
from fljax.report.columns import decimals, table
from fljax.report.ranks import Ranked
from fljax.report.significance import Compared, Interval
from fljax.report.summary import Row

Cells = list[list[str]]


class Table(NamedTuple):
    """Cells as text, the first of each row the method's name; the best of a column are bold."""

    header: list[str]  # a head may have several lines
    cells: Cells
    bold: frozenset[tuple[int, int]] = frozenset()  # (row, column)

    @property
    def text(self) -> str:
        """The table for a terminal."""
        return table(self.header, self.cells, self.bold)

    @property
    def markdown(self) -> str:
        """A Markdown table."""
        lines = [self.flat_header, ["---", *["---:"] * (len(self.header) - 1)], *self._marked("**{}**", str)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"

    @property
    def latex(self) -> str:
        """A LaTeX table for the package booktabs."""
        columns = "l" + "r" * (len(self.header) - 1)
        rows = [" & ".join(row) for row in [[*map(_latex, self.flat_header)], *self._marked(r"\textbf{{{}}}", _latex)]]
        body = "\n".join([rf"{rows[0]} \\", r"\midrule", *(rf"{row} \\" for row in rows[1:])])
        return f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"

    @property
    def flat_header(self) -> list[str]:
        """The heads of the columns, each in one line."""
        return [cell.replace("\n", " ") for cell in self.header]

    def _marked(self, bold: str, letters: Callable[[str], str]) -> Cells:
        return [
            [bold.format(letters(cell)) if (i, j) in self.bold else letters(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(self.cells)
        ]


def as_rows(compared: Sequence[Compared], measure: str) -> list[Row]:
    """One row per method, of plain numbers, for a CSV file."""
    return [
        {
            "algorithm": method.algorithm,
            "measure": measure,
            "seeds": method.n_seeds,
            "mean": method.mean,
            "deviation": _number(method.deviation),
            "low": _number(method.interval.low),
            "high": _number(method.interval.high),
            "difference": None if method.difference is None else _number(method.difference.mean),
            "difference_low": None if method.difference is None else _number(method.difference.low),
            "difference_high": None if method.difference is None else _number(method.difference.high),
            "pairs": None if method.difference is None else method.n_pairs,
            "p_value": method.p_value,
            "p_holm": method.p_holm,
            "p_wilcoxon": method.p_wilcoxon,
        }
        for method in compared
    ]


def table_of(compared: Sequence[Compared], measure: str, baseline: str) -> Table:
    """The methods on one data setting: each one's mean, and its paired difference to the ``baseline``."""
    header = ["algorithm", f"{measure}\nmean ± deviation", f"minus {baseline}\n[95 %]", "p", "p\nHolm", "seeds"]
    digits = digits_of(compared, measure)
    cells = [
        [
            method.algorithm,
            _mean(method, digits),
            "-" if method.difference is None else _span(method.difference, digits),
            _p(method.p_value),
            _p(method.p_holm),
            str(method.n_seeds),
        ]
        for method in compared
    ]
    return Table(header, cells, frozenset((row, 1) for row in _best(compared, measure)))


def table_of_settings(settings: Mapping[str, Sequence[Compared]], measure: str, ranked: Ranked | None) -> Table:
    """Methods by data settings: mean and standard deviation, and the mean rank if methods are ``ranked``."""
    methods = list(dict.fromkeys(method.algorithm for compared in settings.values() for method in compared))
    columns = [{method.algorithm: method for method in compared} for compared in settings.values()]
    digits = [digits_of(compared, measure) for compared in settings.values()]
    cells = [
        [
            name,
            *(
                _mean(column[name], most) if name in column else "-"
                for column, most in zip(columns, digits, strict=True)
            ),
        ]
        for name in methods
    ]
    bold = set()
    for i, column in enumerate(columns):
        bold |= {(row, i + 1) for row in _best([column.get(name) for name in methods], measure)}
    if ranked is None:
        return Table(["algorithm", *settings], cells, frozenset(bold))
    ranks = [ranked.mean.get(name, math.nan) for name in methods]
    best_rank = min((round(rank, 2) for rank in ranks if not math.isnan(rank)), default=math.nan)
    bold |= {(row, len(columns) + 1) for row, rank in enumerate(ranks) if round(rank, 2) == best_rank}
    ranked_cells = [[*row, "-" if math.isnan(rank) else f"{rank:.2f}"] for row, rank in zip(cells, ranks, strict=True)]
    return Table(["algorithm", *settings, "mean\nrank"], ranked_cells, frozenset(bold))


def p_value(value: float) -> str:
    """``0.0123`` or ``< 0.0001``."""
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def digits_of(compared: Sequence[Compared | None], measure: str) -> int:
    """The largest number of decimals of a column: one for rounds, which are counts, else four; more for small errors
    and megabytes, so that the largest mean has three digits that are not 0."""
    if measure == "rounds":
        return 1
    largest = max((abs(method.mean) for method in compared if method and math.isfinite(method.mean)), default=0.0)
    is_small = 0 < largest < 0.1 and limits(measure) == (0.0, math.inf)
    return max(4, 2 - math.floor(math.log10(largest))) if is_small else 4


def _decimals(value: float, most: int) -> int:
    """At most ``most`` decimals, fewer for a large number."""
    return min(most, decimals(value)) if abs(value) > 1 else most


def _mean(method: Compared, digits: int) -> str:
    if not method.n_seeds:
        return "-"
    digits = _decimals(method.mean, digits)
    mean = f"{method.mean:.{digits}f}"
    return f"{mean} ± {method.deviation:.{digits}f}" if math.isfinite(method.deviation) else mean


def _span(difference: Interval, digits: int) -> str:
    digits = _decimals(difference.mean, digits)
    mean = f"{difference.mean:+.{digits}f}"
    ends = f"[{difference.low:+.{digits}f}, {difference.high:+.{digits}f}]"
    return f"{mean} {ends}" if math.isfinite(difference.low) else mean


def _p(value: float | None) -> str:
    return "-" if value is None else p_value(value)


def _best(compared: Sequence[Compared | None], measure: str) -> list[int]:
    """The rows with the best mean, to the digits that are shown; [] if the metric has no direction or no mean is
    finite. A mean over fewer seeds than another's is never the best, because it leaves out seeds that failed."""
    methods = [(i, method) for i, method in enumerate(compared) if method is not None]
    sign, most_seeds = direction(measure), max((method.n_seeds for _, method in methods), default=0)
    means = {i: method.mean for i, method in methods if method.n_seeds == most_seeds > 0}
    if not (sign and means):
        return []
    best = max(means.values(), key=lambda mean: sign * mean)
    digits = _decimals(best, digits_of(compared, measure))
    best = f"{best:.{digits}f}"
    return [i for i, mean in means.items() if f"{mean:.{digits}f}" == best]


def _latex(text: str) -> str:
    marks = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "±": r"$\pm$", "<": "$<$"}
    return "".join(marks.get(letter, letter) for letter in text)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
