"""Figures kept beside the lines of the results: their names, when they are kept, and how large they are."""

import numpy as np
import pytest
from kept_figures import N_COLORS, headed, keep_figure
from outcomes import RESULTS
from PIL import Image
from reporting import Scale
from tables import show

from fljax.report.plots import learning_curves

PLACE = ("DC-PFL", "T5/text", "FMNIST")


@pytest.fixture
def figure():
    return learning_curves({name: (np.arange(5), np.arange(5) * i) for i, name in enumerate("abc")})


def test_a_figure_is_named_as_its_lines_and_has_few_colors(figure, tmp_path):
    headed(figure, "a title", "12 clients")
    file = keep_figure(tmp_path, PLACE, True, figure)
    assert file == tmp_path / "dc-pfl" / "T5_text-FMNIST-smoke.png"
    assert keep_figure(tmp_path, PLACE, False, figure).name == "T5_text-FMNIST.png"
    with Image.open(file) as image:
        assert image.mode == "P"
        assert len(image.getcolors()) <= N_COLORS
        darkest = np.asarray(image.convert("L"))
    assert darkest[: len(darkest) // 10].min() < 100, "the heading stands on top"


@pytest.mark.parametrize(("part", "is_kept"), [({}, True), ({"rounds": 3}, False), ({"only": ("FedAvg",)}, False)])
def test_a_figure_of_a_part_is_drawn_but_not_kept(part, is_kept, figure, tmp_path):
    scale = Scale(False, 3, tmp_path / "made", results=tmp_path / "kept")._replace(**part)
    show(scale, "curves", "Curves", [{"method": "a"}], figure, PLACE, "3 seeds")
    assert (scale.folder / "curves.png").exists()
    assert (tmp_path / "kept" / "dc-pfl" / "T5_text-FMNIST-smoke.png").exists() == is_kept
    assert figure.get_suptitle() == "Curves\n3 seeds"


def test_a_long_heading_has_as_many_lines_as_it_needs(figure):
    headed(figure, "a title", "many words " * 20)
    title, *lines = figure.get_suptitle().splitlines()
    assert title == "a title"
    assert len(lines) == 3
    assert " ".join(lines) == ("many words " * 20).strip()


FIGURES = sorted(file for file in RESULTS.glob("*/*.png"))


def test_kept_figures_are_small_and_their_numbers_are_kept_beside_them():
    assert len(FIGURES) >= 25
    assert [file.name for file in FIGURES if file.stat().st_size > 60_000] == []
    without_lines = [file for file in FIGURES if not any(lines_of(file))]
    assert without_lines == []


def lines_of(file):
    """Files of lines whose name, without its data set, begins the figure's: "amount" is that of "amount-rotation"."""
    table, *_ = file.stem.split("-")
    return file.parent.glob(f"{table}-*.csv")


def test_a_printed_table_with_more_columns_than_fit_loses_no_letter(tmp_path, capsys):
    row = {"method": "FedAvg", **{f"published_metric_{i}": 0.125 for i in range(18)}}
    show(Scale(False, 1, tmp_path), "wide", "Wide", [row])
    output = capsys.readouterr().out
    assert "…" not in output
    letters = [sum(word.count(letter) for word in (*row, *map(str, row.values()), "Wide")) for letter in "dFg5"]
    assert [output.count(letter) for letter in "dFg5"] == letters
