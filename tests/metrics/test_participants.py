"""Means over participants, counted by hand."""

import numpy as np

from fljax.metrics.participants import means_of_participants


def test_means_are_of_those_who_count():
    """Losses of results that are used, traffic of all who came; of a round of nobody there is no loss."""
    means = means_of_participants(
        {
            "active": np.array([[True, True, True, False], [True, True, False, False], [False] * 4]),
            "ok": np.array([[True, False, True, True], [False, False, True, True], [True] * 4]),
            "loss": np.array([[1.0, np.nan, 3.0, 9.0], [np.nan, np.inf, 9.0, 9.0], [9.0] * 4]),
            "uplink": np.array([[1.0, 2.0, 6.0, 9.0], [1.0, 3.0, 9.0, 9.0], [9.0] * 4]),
            "downlink": np.array([[4.0, 4.0, 4.0, 9.0], [0.0, 1.0, 9.0, 9.0], [9.0] * 4]),
        }
    )
    np.testing.assert_array_equal(means.pop("loss"), [2, np.nan, np.nan])
    assert {name: values.tolist() for name, values in means.items()} == {
        "uplink": [3, 2, 0],
        "downlink": [4, 0.5, 0],
        "n_not_finite": [1, 2, 0],
    }
