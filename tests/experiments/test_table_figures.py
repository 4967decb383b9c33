"""Figures of tables: what is drawn where."""

import numpy as np
from table_figures import against, grid
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
