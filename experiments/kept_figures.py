"""Figures that are kept beside the lines of the results: what they are called, what stands above them, how large.

``results/<paper>/<figure>-<dataset>.png`` and ``...-smoke.png``: named as the lines, see `outcomes.file_of`.
"""

import textwrap
from pathlib import Path

from matplotlib.figure import Figure
from outcomes import file_of
from PIL import Image

from fljax.report.plots import save

Place = tuple[str, str, str]
"""Paper, figure or table, and data set: what files of the results are named by."""

N_COLORS = 256
"""Of a kept file. Smoothed edges have a thousand; with so few a file is a third as large.

The palette covers the range of colours: one of the commonest colours leaves steps in maps.
"""

LETTERS_AN_INCH = 15
"""Of the heading, at its size."""


def headed(figure: Figure, title: str, about: str = "") -> None:
    """Writes above the figure what it shows and, in lines below, of what: data, clients, rounds, seeds."""
    lines = [title, *textwrap.wrap(about, int(LETTERS_AN_INCH * figure.get_size_inches()[0]))]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=9)


def keep_figure(folder: Path, place: Place, small: bool, figure: Figure) -> Path:
    """Writes the figure beside the lines of that place; its file.

    Args:
        folder: `outcomes.RESULTS`, or another one.
        place: paper, figure and data set.
        small: whether it is of smoke scale.
        figure: to be kept.
    """
    file = file_of(folder, *place, small, ending="png")
    file.parent.mkdir(parents=True, exist_ok=True)
    save(figure, file)
    with_few_colors(file)
    return file


def with_few_colors(file: Path) -> None:
    """Replaces a picture by one with a palette."""
    with Image.open(file) as image:
        palette_image = image.convert("RGB").quantize(N_COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette_image.save(file, optimize=True)
