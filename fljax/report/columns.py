"""Tables as plain text."""

import math
import sys
from collections.abc import Container, Sequence


def decimals(value: float) -> int:
    """Number of decimals: four, or fewer for a large number, which has six digits in total."""
    is_large = math.isfinite(value) and abs(value) > 1
    return min(4, max(0, 5 - math.floor(math.log10(abs(value))))) if is_large else 4


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    bold: Container[tuple[int, int]] = (),
    least: Sequence[int] | None = None,
) -> str:
    """Cells in columns, the first flush left, the others flush right; "\\n" in a header begins a new line.

    On a terminal the cells (row, column) of ``bold`` are bold. ``least`` are minimal widths of the columns, for a table
    that is printed row by row.
    """
    heads = [cell.split("\n") for cell in header]
    height = max(map(len, heads))
    lines = [[([""] * (height - len(head)) + head)[i] for head in heads] for i in range(height)]
    widths = [max(len(row[i]) for row in (*lines, *rows)) for i in range(len(header))]
    widths = list(map(max, widths, least or widths))

    def aligned(cells: Sequence[str], row: int) -> str:
        parts = [cell.rjust(widths[i]) if i else cell.ljust(widths[i]) for i, cell in enumerate(cells)]
        shown = (f"\x1b[1m{part}\x1b[0m" if (row, i) in bold else part for i, part in enumerate(parts))
        return "  ".join(shown if sys.stdout.isatty() else parts).rstrip()

    return "\n".join([*(aligned(cells, -1) for cells in lines), *(aligned(row, i) for i, row in enumerate(rows))])
