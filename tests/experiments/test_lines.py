"""Lines of runs and numbers, and the small computations that experiments make of their runs."""

import csv
import importlib

import comparison
import dcpfl_methods
import dcpfl_parts
import fedcps_figures
import fedtsdp_parts
import numpy as np
import pytest
import slow_clients
import tuning
from lines import keep_curves, keep_numbers, keep_runs
from outcomes import RESULTS, file_of, is_complete, read
from reach import HOURS
from reporting import Result, Scale
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from tables import last, spread

from fljax.data.divergence import symmetric_kld
from fljax.data.federation import build
from fljax.run.sweep.table import Spread
from fljax.types import Examples

from .conftest import FOLDER


@pytest.fixture
def scale(tmp_path):
    return Scale(False, 3, tmp_path / "made", results=tmp_path)


def result(**metrics):
    all_metrics = {"ids": np.zeros((3, 2), int)} | {name: np.asarray(values) for name, values in metrics.items()}
    return Result("writers", "FeSEM(4)", 1, all_metrics, 2.5)


def test_a_line_a_run_and_number_those_not_finite_left_out(scale):
    columns = {"accuracy_micro": last("accuracy_micro"), "ari": last("ari")}
    runs = [result(accuracy_micro=[0.1, 0.2, 0.5], ari=[0, 0, np.nan])]
    published = {("writers", "FeSEM(4)", "accuracy_micro"): 0.6}
    keep_runs(scale, ("FeSEM", "T2", "proxy"), runs, columns, 4, published, epochs=5)
    (line,) = read(file_of(scale.results, "FeSEM", "T2", "proxy", small=True))
    assert [line[name] for name in ("seed", "metric", "value", "published", "round", "seconds")] == [
        "1", "accuracy_micro", "0.5", "0.6", "3", "2.5",
    ]  # fmt: skip
    assert line["settings"] == "scale=smoke; rounds=3 of 4; epochs=5"


def test_numbers_of_the_papers_size_are_complete(scale):
    numbers = {("LayerCFL vs FMTL", "average", 0, "compute_reduction_x"): 80.0}
    keep_numbers(scale._replace(paper=True), ("LayerCFL", "text", "both"), numbers, (0,), clients=20)
    (line,) = read(file_of(scale.results, "LayerCFL", "text", "both", small=False))
    assert is_complete(line["settings"])
    assert line["settings"].endswith("clients=20")


def test_ten_points_of_a_curve_where_it_was_measured_are_kept(scale):
    loss = np.where(np.arange(40) % 2, np.arange(40.0), np.nan)[:, None] + np.array([-1, 1])
    run = result(loss=loss)
    keep_curves(scale, ("DC-PFL", "period", "FMNIST"), [run], ["loss"], 40)
    lines = read(file_of(scale.results, "DC-PFL", "period", "FMNIST", small=True))
    values = {int(line["metric"].removeprefix("loss after ")): float(line["value"]) for line in lines}
    assert len(values) == 10
    assert {2, 40} <= set(values)
    assert all(value == n - 1 for n, value in values.items()), "the mean over participants"


@pytest.mark.parametrize(
    ("rounds_behind", "expected"),
    [
        ([], 5.0),  # ahead from the first round that five rounds give
        ([0], 5.0 + 1),
        (range(10), np.nan),
    ],
)
def test_round_from_which_a_curve_stays_ahead(rounds_behind, expected):
    rival = np.full(14, 0.5)
    curve = np.full(14, 0.6)
    for window in rounds_behind:  # a mean of five rounds from `window` on falls below
        curve[window] = -1 if window == 0 else 0.0
    assert fedtsdp_parts.best_from(curve, [rival, rival - 0.1]) == pytest.approx(expected, nan_ok=True)
    assert np.isnan(fedtsdp_parts.best_from(curve, [curve, rival])), "as good as another is not above"


def test_wrong_labels_are_the_chosen_clients_training_labels_only():
    y = np.arange(40) % 10
    pool = Examples(np.zeros((40, 2, 2, 1), np.uint8), y)
    federation = build(pool, [np.arange(10 * i, 10 * i + 10) for i in range(4)], (0.5, 0.0, 0.5))
    relabelled, is_hostile = fedcps_figures.with_wrong_labels(federation, 0.5, seed=0)
    assert is_hostile.sum() == 2
    for client in range(4):
        train_rows = np.asarray(federation.train.index)[client, : int(federation.train.size[client])]
        expected = 9 - y[train_rows] if is_hostile[client] else y[train_rows]
        np.testing.assert_array_equal(np.asarray(relabelled.train.pool.y)[train_rows], expected)
        test_rows = np.asarray(federation.test.index)[client, : int(federation.test.size[client])]
        np.testing.assert_array_equal(np.asarray(relabelled.test.pool.y)[test_rows], y[test_rows])


def test_honest_accuracy_leaves_out_the_hostile():
    accuracy = np.array([[np.nan] * 3, [0.2, 0.8, 0.6]])
    is_hostile = {("writers", 1): np.array([True, False, False])}
    assert fedcps_figures.honest_accuracy(result(client_accuracy=accuracy), is_hostile) == pytest.approx(70)
    every_second = np.repeat([[np.nan] * 3, [0.0] * 3], 4, axis=0)[[0, 4] * 8]  # 16 rounds; those before the last ten
    every_second[7::2, 1:] = 0.6
    assert fedcps_figures.honest_accuracy(result(client_accuracy=every_second), is_hostile) == pytest.approx(60)


def test_methods_of_one_model_are_held_against_fedavg_alone():
    accuracy = {"fedavg": 0.5, "standalone": 0.9, "moon": 0.4, "dpsgd": 0.6, "ditto": 0.7}
    rows = [{"setting": "two classes", "method": name, "accuracy_macro": spread([v])} for name, v in accuracy.items()]
    gaps = {(row["method"], row["behind"]): row["by"] for row in comparison.misses(rows)}
    assert gaps == {("moon", "fedavg"): pytest.approx(0.1), ("ditto", "standalone"): pytest.approx(0.2)}


def test_the_kept_claims_of_the_comparison_are_those_of_its_lines(tmp_path, monkeypatch):
    shown_rows = []
    monkeypatch.setattr(comparison, "show", lambda scale, name, title, rows, figure=None: shown_rows.append(rows))
    monkeypatch.setattr(comparison, "chart", lambda *_: None)
    monkeypatch.setattr(comparison, "keep_misses", lambda *_: None)
    comparison.rankings(Scale(False, 3, tmp_path))
    with (RESULTS / "comparison" / "claims.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == shown_rows[-1]


def test_lines_of_the_comparison_tell_choices(scale, monkeypatch):
    choices = {}

    def record_choices(scale, place, results, columns, planned, **options):
        choices[methods_so_far[-1]] = options

    methods_so_far = []
    monkeypatch.setattr(comparison, "compare", lambda methods, *_: methods_so_far.extend(methods) or [])
    monkeypatch.setattr(comparison, "keep_runs", record_choices)
    monkeypatch.setattr(comparison, "federations", lambda *_: [])
    monkeypatch.setattr(comparison, "same_shapes", list)
    monkeypatch.setattr(comparison, "rankings", lambda _: None)
    comparison.everything(scale._replace(only=("ifca", "fedrc", "pacfl")))
    assert [choices[name]["n_clusters"] for name in ("ifca", "fedrc", "pacfl")] == [4, 3, None]


def test_highest_merge_is_where_scipys_tree_becomes_one_group():
    table = np.random.default_rng(0).dirichlet(np.ones(10), 12)
    height = dcpfl_parts.highest_merge(table, 1e-4)
    tree = linkage(squareform(symmetric_kld(table, 1e-4), checks=False), "average")
    assert fcluster(tree, height + 1e-9, "distance").max() == 1
    assert fcluster(tree, height - 1e-9, "distance").max() == 2


def test_convergence_is_the_first_round_near_the_best_mean_of_five():
    curve = np.concatenate([np.linspace(0.1, 0.8, 20), np.full(10, 0.8)])
    run = result(accuracy_macro=curve)
    smooth = [curve[i : i + 5].mean() for i in range(len(curve) - 4)]
    expected = next(i for i, value in enumerate(smooth) if value >= max(smooth) - 0.005) + 5
    assert dcpfl_methods.converged(run) == expected


def test_scripts_that_are_named_exist():
    assert all((FOLDER / command.split()[0]).exists() for command in HOURS)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.stem)
def test_every_script_can_be_imported(file):
    assert importlib.import_module(file.stem).__doc__


def test_rounds_are_run_until_the_time_is_over(monkeypatch):
    numbers_of_rounds = []

    def run_by_clock(scale, clock, seconds, seed):
        numbers_of_rounds.append(clock.n_rounds)
        ends = 2.0 * np.arange(1, clock.n_rounds + 1)
        return slow_clients.Line(ends, ends / 100, np.ones_like(ends))

    monkeypatch.setattr(slow_clients, "run", run_by_clock)
    clock = slow_clients.Clock(None, None, 3)  # pyright: ignore[reportArgumentType]
    line = slow_clients.filled(None, clock, np.ones(4), 20.0, 0)  # pyright: ignore[reportArgumentType]
    assert (numbers_of_rounds, line.seconds[-1], len(line.seconds)) == ([3, 6, 12], 20.0, 10)


def test_versions_fill_the_time(scale):
    seconds = np.full(30, 0.001)  # so quick that there are 10,000 versions a second
    clock = slow_clients.stale(scale, seconds, 1, 0.5, 0)
    assert clock.n_rounds == len(clock.ends) > 60 * 30
    assert clock.ends[-1] == pytest.approx(0.5, abs=0.001)


def test_what_fits_the_time_is_counted_and_no_more():
    line = slow_clients.Line(np.array([2.0, 3.0, 7.0]), np.array([0.1, 0.9, 0.95]), np.array([4, 5, 6]))
    part = slow_clients.within(line, 3.0)
    np.testing.assert_array_equal(part.accuracy, [0.1, 0.9])
    row = slow_clients.row_of("some", [part])
    assert row["accuracy at the end"].mean == 0.9
    assert row["updates"].mean == 9
    assert row["seconds to 0.8"] == "3 (1 of 1)"


def test_a_tuned_score_of_one_seed_has_no_interval():
    two = Spread({}, 0.6, 0.4729, 0.7271, 2, 0, 3)
    assert tuning.written(two) == "0.6000 (0.4729 to 0.7271)"
    assert tuning.written(two._replace(low=np.nan, high=np.nan, n_seeds=1)) == "0.6000"
