"""Figures of tables: what is drawn where."""

import numpy as np
import pytest
from reporting import Result
from table_figures import against, bars, grid, maps, over_rounds
from tables import spread

ROWS = [
    {"method": "a", "attack": "none", "accuracy": spread([0.5, 0.7]), "epsilon": 2.0},
    {"method": "a", "attack": "flip", "accuracy": 0.25, "epsilon": 1.0},
    {"method": "b", "attack": "flip", "accuracy": 0.75, "epsilon": None},
]


def test_a_grid_has_the_mean_of_each_pair_and_nothing_where_there_is_none():
    axes = grid(ROWS, "method", "attack").axes[0]
    assert [text.get_text() for text in axes.texts] == ["0.60", "0.25", "", "0.75"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["none", "flip"]
    np.testing.assert_allclose(np.ma.filled(axes.images[0].get_array(), np.nan), [[0.6, 0.25], [np.nan, 0.75]])


def test_a_line_goes_from_the_least_to_the_most_and_leaves_out_what_has_no_number():
    (line,) = against(ROWS, "epsilon").axes[0].lines
    np.testing.assert_allclose(line.get_xydata(), [[1.0, 0.25], [2.0, 0.6]])


def test_a_band_goes_from_the_least_to_the_most_seed():
    (band,) = against(ROWS[:2], "epsilon").axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.25, 0.7)


def test_bars_stand_in_groups_side_by_side():
    axes = bars(ROWS, "attack", "method", "accuracy").axes[0]
    centers = [(round(bar.get_x() + bar.get_width() / 2, 3), bar.get_height()) for bar in axes.patches]
    assert centers == [(-0.2, pytest.approx(0.6)), (0.8, 0.25), (1.2, 0.75)]
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.5, 0.7], [0.25, 0.25], [0.75, 0.75]]


def test_a_curve_is_the_mean_over_seeds_where_all_were_tested():
    metrics = {0: [np.nan, 0.2, 0.4], 1: [0.1, 0.4, 0.8]}
    results = [Result("IID", "a", seed, {"accuracy": np.array(values)}, 1.0) for seed, values in metrics.items()]
    axes = over_rounds(results, "accuracy", "test accuracy").axes[0]
    np.testing.assert_allclose(axes.lines[0].get_xydata(), [[2, 0.3], [3, 0.6]])
    assert {round(y, 6) for y in axes.collections[0].get_paths()[0].vertices[:, 1]} == {0.2, 0.4, 0.8}
    named = over_rounds(results, "accuracy", "test accuracy", by_setting=True).axes[0]
    assert [line.get_label() for line in named.lines] == ["IID"]


def test_a_map_leaves_out_the_diagonal_and_has_a_scale_of_its_own():
    values = np.arange(9.0).reshape(3, 3)
    figure = maps([("a", values), ("a", 10 * values)], ["L2", "KLD"])
    shown = [np.ma.filled(axes.images[0].get_array(), np.nan) for axes in figure.axes[:2]]
    np.testing.assert_array_equal(np.isnan(shown[0]), np.eye(3, dtype=bool))
    assert [axes.images[0].get_clim() for axes in figure.axes[:2]] == [(1, 7), (10, 70)]
    whole = maps([("a", values)], ["L2"], without_diagonal=False).axes[0].images[0].get_array()
    np.testing.assert_array_equal(whole, values)
