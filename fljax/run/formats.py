"""A comparison over seeds as rows, and those as text, Markdown and LaTeX."""

import math
from collections.abc import Sequence

from fljax.run.columns import table
from fljax.run.headline import direction
from fljax.run.report import Row
from fljax.run.significance import Compared, Interval

Cells = list[list[str]]


def as_rows(compared: Sequence[Compared], measure: str) -> list[Row]:
    """One row per method, of plain numbers, for a CSV file."""
    return [
        {
            "algorithm": one.algorithm,
            "measure": measure,
            "seeds": one.n_seeds,
            "mean": one.mean,
            "deviation": _number(one.deviation),
            "low": _number(one.interval.low),
            "high": _number(one.interval.high),
            "difference": None if one.difference is None else _number(one.difference.mean),
            "difference_low": None if one.difference is None else _number(one.difference.low),
            "difference_high": None if one.difference is None else _number(one.difference.high),
            "p_value": one.p_value,
            "p_holm": one.p_holm,
            "p_wilcoxon": one.p_wilcoxon,
        }
        for one in compared
    ]


def as_text(compared: Sequence[Compared], header: Sequence[str], measure: str) -> str:
    """For a terminal; the best mean is bold."""
    return table(header, cells(compared), {(row, 1) for row in _best(compared, measure)})


def as_markdown(compared: Sequence[Compared], header: Sequence[str], measure: str) -> str:
    """A Markdown table; the best mean is bold."""
    rows = cells(compared)
    for best in _best(compared, measure):
        rows[best][1] = f"**{rows[best][1]}**"
    lines = [_flat(header), ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def as_latex(compared: Sequence[Compared], header: Sequence[str], measure: str) -> str:
    """A LaTeX table in the lines of the package booktabs; the best mean is bold."""
    rows = [[_latex(cell) for cell in row] for row in cells(compared)]
    for best in _best(compared, measure):
        rows[best][1] = rf"\textbf{{{rows[best][1]}}}"
    columns = "l" + "r" * (len(header) - 1)
    lines = [" & ".join(_latex(cell) for cell in _flat(header)), *(" & ".join(row) for row in rows)]
    inside = "\n".join([rf"{lines[0]} \\", r"\midrule", *(rf"{line} \\" for line in lines[1:])])
    return f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{inside}\n\\bottomrule\n\\end{{tabular}}\n"


def header_of(measure: str, baseline: str) -> list[str]:
    """The heads of the columns."""
    return ["algorithm", f"{measure}\nmean ± deviation", f"minus {baseline}\n[95 %]", "p", "p\nHolm", "seeds"]


def cells(compared: Sequence[Compared]) -> Cells:
    """The table's entries as text."""
    return [
        [
            one.algorithm,
            f"{one.mean:.4f} ± {one.deviation:.4f}" if math.isfinite(one.deviation) else f"{one.mean:.4f}",
            "-" if one.difference is None else _span(one.difference),
            _p(one.p_value),
            _p(one.p_holm),
            str(one.n_seeds),
        ]
        for one in compared
    ]


def _span(difference: Interval) -> str:
    mean = f"{difference.mean:+.4f}"
    return f"{mean} [{difference.low:+.4f}, {difference.high:+.4f}]" if math.isfinite(difference.low) else mean


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _best(compared: Sequence[Compared], measure: str) -> list[int]:
    """The rows of the best mean, to the digits that are shown; none where neither more nor less of the measure is
    better, or no mean is a number."""
    sign, known = direction(measure), [one.mean for one in compared if not math.isnan(one.mean)]
    if not (sign and known):
        return []
    best = f"{max(known, key=lambda mean: sign * mean):.4f}"
    return [i for i, one in enumerate(compared) if f"{one.mean:.4f}" == best]


def _flat(header: Sequence[str]) -> list[str]:
    return [cell.replace("\n", " ") for cell in header]


def _latex(text: str) -> str:
    marks = {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "±": r"$\pm$", "<": "$<$"}
    return "".join(marks.get(letter, letter) for letter in text)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
