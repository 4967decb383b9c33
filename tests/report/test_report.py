"""The final table by hand and against scikit-learn; the figures by what they draw."""

import csv
import re

import jax.numpy as jnp
import numpy as np
import pytest
import scipy
from matplotlib.colors import to_hex
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from fljax.data.synthetic import linear_groups
from fljax.metrics.agreement import agreement, cross_table
from fljax.report import plots, summary
from fljax.report.comparison import as_table, clusters_found, left_out
from fljax.report.summary import (
    Outcome,
    client_table,
    curve,
    final_label,
    final_table,
    finite,
    labels_over_time,
    principal_components,
    save_table,
)
from fljax.types import ModelTable

GROUP = np.array([0, 0, 1, 1])


def outcome(*, clustered: bool, label=(0, 0, 1, 1)) -> Outcome:
    """Four clients, three rounds, the second not tested, client 3 absent from the last."""
    accuracy = np.array([0.5, np.nan, 0.25], np.float32)
    metrics = {name: accuracy for name in ("accuracy_macro", "accuracy_micro", "accuracy_p10", "f1_macro")}
    metrics |= {"ids": np.array([[0, 1, 2]] * 3), "active": np.ones((3, 3), bool)}
    metrics["ok"] = metrics["active"]
    metrics |= {"uplink": np.full(3, 1e6), "downlink": np.full(3, 2e6)}
    if clustered:
        metrics["label"] = np.array([[0, 0, 0], [0, 0, 0], [0, 1, 1]])
    rows = jnp.arange(8.0).reshape(4, 2)
    return Outcome(metrics, ModelTable({"fc1": rows}, jnp.asarray(label)), 1.5)


def test_table_by_hand():
    unclustered_row, clustered_row = final_table(
        {"fedavg": outcome(clustered=False), "ifca": outcome(clustered=True)}, GROUP
    )
    assert (unclustered_row["algorithm"], unclustered_row["rounds"]) == ("fedavg", 3)
    assert unclustered_row["accuracy_macro"] == 0.25  # the last round is the headline
    assert (unclustered_row["best_accuracy"], unclustered_row["best_round"]) == (0.5, 1)
    assert unclustered_row["ari"] is unclustered_row["n_clusters"] is None
    # Three of four clients sent 3 times 10^6 floats, 4 bytes each: 12 MB each, 9 MB in the mean.
    assert unclustered_row["megabytes_up"] == 9.0
    assert unclustered_row["megabytes_down"] == 18.0
    assert (clustered_row["ari"], clustered_row["n_clusters"]) == (1.0, 2)


def test_what_edges_send_to_the_cloud_stands_beside_what_clients_send():
    """10^6 floats in the first round and 2 x 10^6 in the third, 4 bytes each, by four clients; another has none."""
    result = outcome(clustered=False)
    result.metrics["edge_uplink"] = np.array([1e6, 0, 2e6], np.float32)
    result.metrics["edge_downlink"] = np.array([2e6, 0, 2e6], np.float32)
    row, plain_row = final_table({"hierfavg": result, "fedavg": outcome(clustered=False)})
    assert (row["edge_megabytes_up"], row["edge_megabytes_down"]) == (3.0, 4.0)
    assert (row["megabytes_up"], row["megabytes_down"]) == (9.0, 18.0)
    assert plain_row["edge_megabytes_up"] is plain_row["edge_megabytes_down"] is None
    head, heads, *cells = as_table([row, plain_row], 200).splitlines()
    assert head.split()[-2:] == ["edge", "edge"]
    ends = heads.index("MB down") + 7, len(heads.split("  run s")[0])
    assert [line[ends[0] : ends[1]].split() for line in cells] == [["3.00", "4.00"], ["-", "-"]]
    assert "edge" not in as_table([plain_row], 200)
    of_a_method = outcome(clustered=False)
    of_a_method.metrics["edge_uplink"] = np.ones((3, 3))  # of a user's own method, for each participant
    assert final_table({"own": of_a_method})[0]["edge_megabytes_up"] is None


def test_a_row_tells_how_the_headline_is_spread_over_the_clients():
    rng = np.random.default_rng(0)
    result, accuracy = outcome(clustered=False), rng.random((3, 25)).astype(np.float32)
    accuracy[-1, [3, 7]] = np.nan  # not tested
    result.metrics["client_accuracy"] = accuracy
    (row,) = final_table({"a": result})
    sorted_accuracy = np.sort(np.delete(accuracy[-1], [3, 7]).astype(np.float64))
    assert row["accuracy_worst10"] == pytest.approx(sorted_accuracy[:3].mean(), rel=1e-12)  # 2.3 of 23
    assert row["accuracy_deviation"] == pytest.approx(sorted_accuracy.std(), rel=1e-12)
    result.metrics["client_accuracy"] = np.full((3, 25), np.nan, np.float32)
    (row,) = final_table({"a": result})
    assert row["accuracy_worst10"] is row["accuracy_deviation"] is None
    newcomers = {"accuracy_macro": 0.5, "accuracy_micro": 0.25, "accuracy_p10": 0.125}
    (row,) = final_table({"a": result._replace(newcomers=newcomers, compile_seconds=4.0)})
    assert [row[f"new_{name}"] for name in newcomers] == list(newcomers.values())
    assert (row["seconds"], row["compile_seconds"]) == (1.5, 4.0)


def test_clients_are_told_by_their_sizes_clusters_and_last_test():
    data = linear_groups(4, 2, examples=20, ragged=0.5)
    unclustered, clustered_outcome = outcome(clustered=False), outcome(clustered=True, label=(1, 0, 1, 1))
    for i, result in enumerate((unclustered, clustered_outcome)):
        result.metrics["client_accuracy"] = np.linspace(i, i + 0.5, 12).reshape(3, 4)
    rows = client_table({"a": unclustered, "b": clustered_outcome}, data, ["w", "x", "y", "z"])
    assert [row["client"] for row in rows] == ["w", "x", "y", "z"]
    expected = {
        "group": np.asarray(data.group),
        "n_train": np.asarray(data.train.size),
        "n_test": np.asarray(data.test.size),
        "b cluster": [1, 0, 1, 1],
        "a client_accuracy": np.linspace(0, 0.5, 12)[8:],
        "b client_accuracy": np.linspace(1, 1.5, 12)[8:],
    }
    assert rows[0].keys() == {"client", *expected}
    for name, values in expected.items():
        np.testing.assert_allclose([row[name] for row in rows], values, err_msg=name)
    assert [row["client"] for row in client_table({"a": unclustered}, data._replace(group=None))] == [0, 1, 2, 3]


def test_labels_over_time_are_those_last_reported():
    result = outcome(clustered=True)
    result.metrics["ids"] = np.array([[0, 2], [1, 2], [0, 3]])
    result.metrics["active"] = np.array([[True, True], [True, False], [True, True]])
    result.metrics["label"] = np.array([[4, 5], [6, 7], [8, 9]])
    np.testing.assert_array_equal(labels_over_time(result), [[4, -1, 5, -1], [4, 6, 5, -1], [8, 6, 5, 9]])


def test_what_privacy_attackers_and_a_clock_cost_stands_beside_accuracy():
    result = outcome(clustered=False)
    costs = {"epsilon": [1.0, 1.5, 1.75], "attack_success": [0.1, np.nan, 0.75], "simulated_seconds": [2.0, 1.0, 4.0]}
    result.metrics.update({name: np.asarray(values, np.float32) for name, values in costs.items()})
    row, plain_row = final_table({"private": result, "plain": outcome(clustered=False)})
    assert (row["epsilon"], row["attack_success"], row["simulated_seconds"]) == (1.75, 0.75, 7.0)
    assert plain_row["epsilon"] is plain_row["attack_success"] is plain_row["simulated_seconds"] is None
    text = as_table([row, plain_row], 200)
    assert all(word in text for word in ("epsilon", "success", "simulated", "1.75", "0.7500", "7.00"))
    ends, values = curve(result.metrics, seconds=True)
    np.testing.assert_array_equal(ends, [2.0, 7.0])
    np.testing.assert_array_equal(values, [0.5, 0.25])


def test_results_that_were_left_out_are_counted_and_said():
    """Of participants: one that dropped out has no result."""
    result = outcome(clustered=False)
    result.metrics["ok"] = np.array([[True, False, False], [True, True, True], [True, True, False]])
    result.metrics["active"] = np.array([[True] * 3, [True] * 3, [True, True, False]])
    row, other_row = final_table({"a": result, "b": outcome(clustered=False)})
    assert (row["n_not_finite"], other_row["n_not_finite"]) == (2, 0)
    message = "clients' results that were not finite were left out: a in 2 of 6 rounds of 2 seeds"
    assert left_out({"a": [result.metrics] * 2, "b": [outcome(clustered=False).metrics]}) == [message]
    assert left_out({"b": [outcome(clustered=False).metrics]}) == []


def test_a_clustered_method_that_ended_with_one_model_is_reported():
    """Clusters are those that clients were last said to be in; -1 is a client in none."""
    first, second, third = (outcome(clustered=True).metrics for _ in range(3))
    first["label"] = np.array([[0, 1, 2], [0, 0, 0], [5, 5, 5]])
    second["ids"] = np.array([[0, 1, 2], [0, 1, 2], [3, 4, 5]])  # who is away in the last round counts
    third["label"] = np.array([[0, 0, 0], [0, 0, 0], [0, -1, 1]])
    message = "clusters of clients at the end: a 1 (one model for all), b 1 to 3, c 2"
    second["label"] = np.array([[0, 0, 0], [0, 0, 1], [1, 1, 2]])
    runs = {"a": [first, first], "b": [first, second], "c": [third], "fedavg": [outcome(clustered=False).metrics]}
    assert clusters_found(runs) == [message]
    assert clusters_found({"fedavg": runs["fedavg"]}) == []


def test_the_best_is_bold_though_the_first_is_not_finite(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    values = {"a": float("nan"), "b": 0.5, "c": 0.75}
    rows = [{"algorithm": name, "accuracy_macro": value, "ari": None} for name, value in values.items()]
    bold = [line for line in as_table(rows).splitlines() if "\x1b[1m" in line]
    assert [line.split()[0] for line in bold] == ["c"]
    rows = [{"algorithm": "a", "accuracy_macro": float("nan")}, {"algorithm": "b", "accuracy_macro": None}]
    assert "\x1b" not in as_table(rows)


def test_each_kind_of_number_has_its_digits_and_its_place(monkeypatch):
    """Errors of standardised targets are small. Scores of one's own come before the best round."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    row = {"algorithm": "a", "r2_micro": 0.5, "mae_macro": 0.0123, "rmse_macro": 0.25, "rmse_micro": 0.3, "ari": 1.0}
    row |= {"best_r2": 0.75, "best_round": 3, "r2_at_best_val": 0.625, "best_val_round": 2, "epsilon": 0.01234}
    row |= {"megabytes_up": 12.345, "megabytes_down": 0.0005, "seconds": 0.123, "n_clusters": 2}
    row |= {"new_rmse_macro": 123.45678, "new_r2_macro": 0.5}  # of new clients, R2 is shown as a micro average
    lower = row | {"algorithm": "b", "mae_macro": 12345.678, "rmse_macro": 0.125, "new_rmse_macro": None, "ari": None}
    lines = [
        re.sub(r"\x1b\[1m *(\S*)\x1b\[0m", r"*\1", line).split("  ") for line in as_table([row, lower]).split("\n")
    ]
    above, heads, first, second = ([part.strip() for part in line if part.strip()] for line in lines)
    assert above == ["mean", "new", "best R2", "R2 at best"]
    names = ["R2", "abs. error", "rmse", "rmse", "(round)", "validation (round)", "ARI", "clusters", "epsilon"]
    assert heads == ["algorithm", *names, "MB up", "MB down", "run s"]
    rounds, costs = ["0.7500 (3)", "0.6250 (2)"], ["2", "0.0123", "12.35", "0.000500", "0.12"]
    assert first == ["a", "*0.5000", "0.0123", "0.2500", "*123.457", *rounds, "*1.00", *costs]
    assert second == ["b", "*0.5000", "12345.7", "*0.1250", "-", *rounds, "-", *costs]
    assert "\x1b" not in as_table([row])  # one method is not the best of any


def test_a_time_that_is_not_known_is_an_empty_cell():
    """Of a folder that an older version began."""
    row = final_table({"old": outcome(clustered=False)._replace(seconds=float("nan"))})[0]
    assert row["seconds"] is row["compile_seconds"] is None
    assert "compile s" not in as_table([row], 200)


def test_a_place_of_the_last_round_that_nobody_took_says_nothing():
    personal = outcome(clustered=True, label=(0, 1, 2, 3))
    personal.metrics["active"] = np.array([[True] * 3, [True] * 3, [True, False, True]])
    np.testing.assert_array_equal(final_label(personal), [0, -1, 1, -1])


def test_labels_of_personal_models_are_those_last_reported():
    personal = outcome(clustered=True, label=(0, 1, 2, 3))
    np.testing.assert_array_equal(final_label(personal), [0, 1, 1, -1])
    assert final_label(outcome(clustered=False)) is None


def test_labels_of_clients_with_one_model_for_all_are_those_last_reported():
    shared = ModelTable({"fc1": jnp.ones((1, 2))}, jnp.zeros(4, int))
    np.testing.assert_array_equal(final_label(outcome(clustered=True)._replace(deployed=shared)), [0, 1, 1, -1])


def test_one_model_for_all_has_no_components_whatever_the_rows_are():
    coordinates, share = principal_components(ModelTable({"fc1": jnp.ones((1, 2))}, jnp.array([0, 2, 1])))
    np.testing.assert_array_equal(coordinates, np.zeros((3, 2)))
    np.testing.assert_array_equal(share, 0)


def test_a_federation_without_groups_has_no_ari():
    assert final_table({"ifca": outcome(clustered=True)})[0]["ari"] is None


def test_never_finite_accuracy_is_reported_as_such():
    result = outcome(clustered=False)
    result.metrics["accuracy_macro"][:] = np.nan
    row = final_table({"fedavg": result})[0]
    assert np.isnan(row["accuracy_macro"])
    assert row["best_round"] == 3


def test_saved_table_reads_back(tmp_path):
    rows = final_table({"fedavg": outcome(clustered=False)}, GROUP)
    save_table(tmp_path / "summary.csv", rows)
    with (tmp_path / "summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["best_accuracy"]) == 0.5
    assert row["ari"] == ""


def test_a_figure_that_a_full_disk_does_not_take_is_named(tmp_path):
    (tmp_path / "x.png").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*x\.png'"):
        plots.save(plots.learning_curves({"a": (np.arange(2), np.ones(2))}), tmp_path / "x.png")


def test_a_name_in_letters_that_the_font_lacks_is_drawn_without_a_warning(tmp_path):
    plots.save(plots.over_clients({"结果": np.ones(2)}, "accuracy"), tmp_path / "x.png", pdf=True)
    assert (tmp_path / "x.pdf").exists()


def test_curve_has_the_tested_rounds_counted_from_one():
    rounds, values = curve(outcome(clustered=False).metrics)
    np.testing.assert_array_equal(rounds, [1, 3])
    np.testing.assert_array_equal(values, [0.5, 0.25])


def test_cross_table_counts_known_clients():
    np.testing.assert_array_equal(cross_table(np.array([4, 4, -1, 2]), GROUP), [[0, 1], [2, 0]])


def test_agreement_is_scikit_learns_adjusted_rand_index():
    rng = np.random.default_rng(0)
    for n, n_clusters, n_groups in ((4, 0, 2), (1, 1, 1), (9, 1, 3), (9, 9, 9), (40, 3, 4), (40, 7, 2), (300, 5, 5)):
        label, group = rng.integers(-1, n_clusters, n), rng.integers(0, n_groups, n)
        is_known = label >= 0
        assert agreement(label, group) == pytest.approx(
            adjusted_rand_score(group[is_known], label[is_known]), abs=1e-12
        )
    assert agreement(np.array([3, 3, 1]), np.array([0, 0, 5])) == 1
    group = np.arange(200_000) % 2  # many pairs: their products are beyond int64
    label = np.where(np.arange(200_000) < 100_000, group, 1)
    assert agreement(label, group) == pytest.approx(adjusted_rand_score(group, label), abs=1e-12)


def test_clusters_of_one_known_client_agree_with_nothing():
    metrics = {"label": np.full((1, 3), -1), "ids": np.arange(3)[None], "active": np.ones((1, 3), bool)}
    metrics |= {"ok": metrics["active"], "uplink": np.ones((1, 3)), "downlink": np.ones((1, 3))}
    metrics |= {name: np.zeros(1) for name in ("accuracy_macro", "accuracy_micro", "accuracy_p10", "f1_macro")}
    metrics |= {"client_accuracy": np.zeros((1, 3)), "client_f1": np.zeros((1, 3)), "client_loss": np.zeros((1, 3))}
    for row, expected in (([-1, -1, -1], None), ([0, -1, -1], None), ([0, 0, -1], 1.0)):
        outcome = Outcome(metrics, ModelTable({"w": np.zeros((2, 1))}, np.array(row)), 1.0)
        assert final_table({"x": outcome}, np.zeros(3, int))[0]["ari"] == expected


def test_principal_components_are_scikit_learns_without_running_statistics():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3, 5)).astype(np.float32)
    noise = rng.normal(size=(3, 7)).astype(np.float32)
    models = ModelTable({"fc1": jnp.asarray(rows), "batch_stats": jnp.asarray(noise)}, jnp.asarray([0, 1, 1, 2]))
    coordinates, share = principal_components(models)
    pca = PCA(2, svd_solver="full").fit(rows[[0, 1, 1, 2]])
    np.testing.assert_allclose(np.abs(coordinates), np.abs(pca.transform(rows[[0, 1, 1, 2]])), atol=1e-5)
    np.testing.assert_allclose(share, pca.explained_variance_ratio_, rtol=1e-5)


@pytest.mark.parametrize("shape", [(300, 40), (40, 300)])
def test_principal_components_of_many_are_found_without_all_the_others(shape, monkeypatch):
    monkeypatch.setattr(summary, "_AT_ONCE", 1 << 11)  # six parts
    rows = np.random.default_rng(0).normal(size=shape) * np.r_[9, 5, np.ones(shape[1] - 2)] + 1
    models = ModelTable({"fc1": jnp.asarray(rows, jnp.float32)}, jnp.arange(shape[0]))
    calls, eigh = [], scipy.linalg.eigh

    def spy(matrix, subset_by_index):
        calls.append((matrix.shape, subset_by_index))
        return eigh(matrix, subset_by_index=subset_by_index)

    monkeypatch.setattr(scipy.linalg, "eigh", spy)
    monkeypatch.setattr(np.linalg, "svd", None)
    coordinates, share = principal_components(models)
    monkeypatch.undo()
    assert calls == [((40, 40), (38, 39))]  # of the fewer, and two of them
    pca = PCA(2, svd_solver="full").fit(rows)
    np.testing.assert_allclose(np.abs(coordinates), np.abs(pca.transform(rows)), atol=2e-3)
    np.testing.assert_allclose(share, pca.explained_variance_ratio_, rtol=1e-5)


def test_models_that_are_not_finite_are_known():
    assert finite(ModelTable({"fc1": jnp.ones((2, 3))}, jnp.arange(2)))
    assert not finite(ModelTable({"fc1": jnp.ones((2, 3)).at[1, 2].set(jnp.inf)}, jnp.arange(2)))


@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 3)])
def test_few_or_thin_models_have_coordinates(shape):
    models = ModelTable({"fc1": jnp.arange(np.prod(shape), dtype=jnp.float32).reshape(shape)}, jnp.arange(shape[0]))
    coordinates, share = principal_components(models)
    assert coordinates.shape == (shape[0], 2)
    assert np.isfinite(coordinates).all()
    assert share.sum() <= 1 + 1e-6
    coordinates, share = principal_components(models._replace(row=jnp.zeros(4, int)))  # all have the first
    assert not coordinates.any()
    assert not share.any()


def test_learning_curves_draw_each_method(tmp_path):
    figure = plots.learning_curves(
        {"a": (np.array([1, 2]), np.array([0.1, 0.9])), "b": (np.array([2]), np.array([0.9]))}
    )
    lines = figure.axes[0].lines
    np.testing.assert_array_equal(lines[0].get_ydata(), [0.1, 0.9])
    heights = [text.xyann[1] for text in figure.axes[0].texts]
    assert abs(heights[0] - heights[1]) > 0.01  # equal ends, names apart
    plots.save(figure, tmp_path / "curves.png")
    assert figure._repr_png_()[:8] == (tmp_path / "curves.png").read_bytes()[:8]  # in a notebook
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_cluster_table_writes_the_counts():
    figure = plots.cluster_table(np.array([[3, 0], [0, 12]]), "ifca")
    assert [text.get_text() for text in figure.axes[0].texts] == ["3", "·", "·", "12"]


def test_model_map_merges_equal_models_of_a_group():
    coordinates = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    figure = plots.model_map(coordinates, np.array([1.0, 0.0]), np.array([0, 0, 1, -1]), np.array([0, 0, 1, 1]))
    marks = {mark.get_label(): mark for mark in figure.axes[0].collections}
    assert set(marks) == {"cluster 0, group 0", "cluster 1, group 1", "no cluster, group 1"}
    assert len(marks["cluster 0, group 0"].get_offsets()) == 1
    assert to_hex(marks["cluster 1, group 1"].get_facecolor()[0]) == plots.COLORS[1].lower()
    assert [text.get_text() for text in figure.axes[0].texts] == ["2 clients"]


def test_a_curve_without_values_is_left_out(tmp_path):
    empty = np.zeros(0, int), np.zeros(0)
    figure = plots.learning_curves({"a": empty, "b": (np.arange(1, 3), np.ones(2))})
    (text,) = figure.axes[0].texts
    assert text.get_text() == "b  1.000"
    assert text.get_color() == figure.axes[0].lines[0].get_color() == plots.COLORS[1]
    plots.save(plots.learning_curves({"a": empty}), tmp_path / "empty.png", pdf=True)
