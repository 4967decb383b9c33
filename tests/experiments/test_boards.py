"""The scripts of the two leaderboards: how they deal examples out, and what they read off a run."""

import itertools
from types import SimpleNamespace

import authors_steps
import leaderboard
import numpy as np
import pfllib
import pfllib_cases
import pfllib_steps
import pytest
import same_steps
import sensitivity
from authors import clusterfl, fesem
from authors.case import altered
from outcomes import RESULTS, file_of, read

import fljax
from fljax import tree
from fljax.data.federation import on_host
from fljax.data.partition import iid

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 700))


@pytest.mark.parametrize("deal", [pfllib.two_labels, pfllib.dirichlet])
def test_every_example_has_one_owner(deal):
    rows_by_client = deal(np.random.RandomState(1), LABELS)
    assert len(rows_by_client) == 20
    np.testing.assert_array_equal(np.sort(np.concatenate(rows_by_client)), np.arange(len(LABELS)))
    assert min(map(len, rows_by_client)) >= 40
    labels = [set(LABELS[rows]) for rows in rows_by_client]
    if deal is pfllib.two_labels:
        assert all(len(client_labels) == 2 for client_labels in labels)
        shares = [len(rows) for rows in rows_by_client]
        assert max(shares) > 1.2 * min(shares)
    else:
        assert min(map(len, labels)) < max(map(len, labels))


def test_dirichlet_clients_are_those_that_pfllib_gives_out():
    # Images of each digit by client, as its dataset/MNIST/config.json has them: made with its seed 1.
    zeros = [140, 5, 3, 155, 71, 0, 0, 0, 1, 633, 920, 0, 8, 0, 0, 31, 3628, 0, 998, 310]
    ones = [890, 0, 0, 0, 13, 38, 873, 21, 3599, 1997, 2, 0, 180, 237, 0, 0, 0, 26, 0, 1]
    nines = [184, 107, 23, 0, 451, 6086, 106, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    images = np.repeat(np.arange(10), [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958])
    rows_by_client = pfllib.dirichlet(np.random.RandomState(pfllib.DRAW), images)
    counts = np.array([np.bincount(images[rows], minlength=10) for rows in rows_by_client])
    np.testing.assert_array_equal(counts[:, [0, 1, 9]].T, [zeros, ones, nines])
    np.testing.assert_array_equal(counts.sum(1)[:5], [2630, 499, 1630, 2541, 1917])


def test_dirichlet_clients_of_fashion_mnist_are_those_of_its_authors():
    # dataset/fmnist-0.1/config.json of github.com/TsingZ0/DBE: images of each class of the first and the last but one.
    images = np.repeat(np.arange(10), 7000)
    rows_by_client = pfllib.dirichlet(np.random.RandomState(pfllib.DRAW), images)
    counts = np.array([np.bincount(images[rows], minlength=10) for rows in rows_by_client])
    np.testing.assert_array_equal(counts[0], [67, 1, 0, 0, 0, 0, 2, 0, 5, 7])
    np.testing.assert_array_equal(counts[18], [403, 0, 0, 7, 477, 2, 38, 4163, 0, 0])


def test_how_much_the_draws_of_dirichlet_clients_differ():
    # The numbers that pfllib.py and the leaderboards' page give: what share of all images is of their clients' classes.
    images = np.repeat(np.arange(10), 7000)
    draws = [pfllib.dirichlet(np.random.RandomState(draw), images) for draw in range(40)]
    largest = [
        sum(np.bincount(images[rows]).max() for rows in rows_by_client) / len(images) for rows_by_client in draws
    ]
    assert [f"{share:.2f}" for share in (largest[pfllib.DRAW], min(largest), max(largest))] == ["0.77", "0.60", "0.81"]


def test_every_method_of_the_tables_is_made_with_numbers_that_it_takes():
    for method, choice in pfllib.METHODS.items():
        factory = fljax.ALGORITHMS[choice.name]
        assert set(choice.choices) <= set(factory.static), method
        factory.Hyper(**{"lr": pfllib.LR, **choice.numbers})
    assert set(pfllib.METHODS) == set(pfllib.PUBLISHED)
    for entry in leaderboard.ENTRIES.values():
        for value in entry.candidates:
            leaderboard.method_and_hyper(entry, value)
    assert len({len(entry.candidates) for entry in leaderboard.ENTRIES.values()}) == 1  # the same budget for each


def test_every_clustered_method_is_on_the_board():
    clustered = {name for name, factory in fljax.ALGORITHMS.items() if factory.kind == "clustered"}
    others = {"feddrift", "hierfavg"}  # for clients that change; clusters by edge servers, which are given
    assert clustered - {entry.name for entry in leaderboard.ENTRIES.values()} == others


@pytest.mark.parametrize(
    "around", dict.fromkeys(case.around for case in pfllib_cases.CASES.values()), ids=lambda around: around.__name__
)
def test_what_steps_beside_pfllibs_code_set_alike_here_is_there(around):
    """Names of fljax's files that a case replaces."""
    try:
        with around():
            pass
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "cvxpy"):
            raise
        pytest.skip(f"{error.name} is not installed")


def test_steps_beside_pfllibs_code_begin_alike_and_go_on():
    """The side of `pfllib_steps.py` that is ours; PFLlib's needs its clone, and PyTorch."""
    model, federation = same_steps.small_network(), same_steps.clients(pfllib_cases.N_CLIENTS)
    state, outputs = pfllib_steps.ours(pfllib_cases.CASES["FedPer"], model, federation)
    x, y = same_steps.examples(federation, 2, is_train=False)
    assert (x.shape, set(y.tolist())) == ((same_steps.N_TESTS, same_steps.N_INPUTS), {4, 5})
    theta = state.server | tree.row(state.clients, 2)
    np.testing.assert_allclose(outputs[0][2], model.apply(theta, x, None)[0], rtol=1e-5, atol=1e-6)
    assert all(np.abs(after - before).max() > 1e-3 for before, after in itertools.pairwise(outputs))


def test_steps_need_a_clone(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["authors_steps.py", str(tmp_path), "--only", "IFCA"])
    with pytest.raises(SystemExit) as stopped:
        authors_steps.main()
    assert stopped.value.code == 2
    assert f"{tmp_path} has no clone of https://github.com/jichan3751/ifca" in capsys.readouterr().err


def test_steps_leave_out_code_whose_modules_are_not_there(monkeypatch, capsys, tmp_path):
    case = authors_steps.CASES["FeSEM"]._replace(needs=("no_such_module",))
    monkeypatch.setitem(authors_steps.CASES, "FeSEM", case)
    monkeypatch.setattr(authors_steps, "pytorch", lambda parser: None)
    file = tmp_path / case.clone / case.file
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setattr("sys.argv", ["authors_steps.py", str(tmp_path), "--only", "FeSEM", "IFCA"])
    authors_steps.main()
    output = capsys.readouterr().out
    assert "not compared: FeSEM, whose code needs no_such_module" in output
    assert "not there, so not compared: https://github.com/jichan3751/ifca" in output


def test_code_is_altered_where_it_has_a_place_once():
    assert altered("a = 1\nb = 1", {"a = 1": "a = 2", r"b = \d": "b = 3"}) == "a = 2\nb = 3"
    with pytest.raises(ValueError, match="2 times; it should be there once"):
        altered("a = 1\nb = 1", {"= 1": "= 2"})


def test_clusterfls_f_takes_models_to_the_means_of_their_clusters():
    models = np.repeat([[0.0, 1.0], [9.0, 5.0]], [3, 4], axis=0) + np.arange(7)[:, None] / 10
    indicator = clusterfl.indicator(models)
    means = np.repeat([models[:3].mean(0), models[3:].mean(0)], [3, 4], axis=0)
    np.testing.assert_allclose(indicator @ (indicator.T @ models), means)


def test_fesems_clients_begin_with_one_near_each_center():
    kernel = lambda values: {"fc2": {"kernel": np.array(values, np.float32)[:, None, None]}}  # noqa: E731
    kept = SimpleNamespace(models=kernel([0.0, 1.0, 1.2, 5.0, 5.6]))
    server = SimpleNamespace(centers=kernel([0.9, 5.2]), label=np.array([0, 0, 0, 1, 1]), kept=kept)
    order = fesem.order_of(SimpleNamespace(server=server))  # pyright: ignore[reportArgumentType]
    assert (order[:2], sorted(order)) == ([1, 3], [0, 1, 2, 3, 4])


def test_hidden_groups_differ_by_their_labels_alone():
    federation, grouped = same_steps.clients(4), same_steps.clients(4, n_groups=2)
    for i in range(4):
        (x, y), (grouped_x, grouped_y) = (
            same_steps.examples(clients, i, is_train=True) for clients in (federation, grouped)
        )
        np.testing.assert_array_equal(x, grouped_x)
        np.testing.assert_array_equal((y + i % 2) % same_steps.N_CLASSES, grouped_y)


def test_the_settings_of_the_steps_have_absent_clients_and_unequal_ones():
    half_setting = pfllib_cases.Setting("half", "unequal")
    assert half_setting.name == "5 rounds, half of the clients, unequal sizes"
    assert len({setting.name for setting in pfllib_cases.SETTINGS}) == 6
    for i in range(pfllib_cases.N_CLIENTS):
        takes_part = [i in row for row in half_setting.joined[:-1]]
        first_round = takes_part.index(True)
        assert (False, True) in itertools.pairwise(takes_part[first_round:]), "each comes back"
    federation = same_steps.clients(pfllib_cases.N_CLIENTS, sizes=half_setting.examples)
    split = pfllib_steps.with_val(federation)
    assert (federation.train.size.tolist(), split.val.size.tolist()) == ([8, 16, 24, 40], [1, 3, 4, 8])
    for i in range(pfllib_cases.N_CLIENTS):
        x, _ = same_steps.examples(federation, i, is_train=True)
        x_of_splits = [
            same_steps.examples(split._replace(train=data), i, is_train=True)[0] for data in (split.train, split.val)
        ]
        np.testing.assert_array_equal(np.concatenate(x_of_splits), x)


@pytest.mark.slow
def test_absent_clients_keep_their_heads_in_the_steps():
    model, setting = same_steps.small_network(), pfllib_cases.Setting("half", "unequal")
    federation = same_steps.clients(pfllib_cases.N_CLIENTS, sizes=setting.examples)
    _, outputs = pfllib_steps.ours(pfllib_cases.CASES["Local"], model, federation, setting)
    for row, (before, after) in zip(setting.joined, itertools.pairwise(outputs), strict=False):
        has_moved = [bool(np.abs(a - b).max() > 1e-3) for a, b in zip(after, before, strict=True)]
        assert has_moved == [i in row for i in range(pfllib_cases.N_CLIENTS)]


@pytest.mark.parametrize(
    ("paper", "cases", "setting"),
    [
        *(("PFLlib", pfllib_cases.CASES, setting) for setting in pfllib_cases.SETTINGS),
        ("authors", authors_steps.CASES, None),
    ],
)
def test_the_kept_steps_are_those_of_others_code(paper, cases, setting):
    kept_lines = read(file_of(RESULTS, paper, "steps", "synthetic", small=False))
    lines = {
        (line["method"], line["metric"]): line for line in kept_lines if not setting or line["setting"] == setting.name
    }
    assert {method for method, _ in lines} == set(cases)
    for method, case in cases.items():
        n_rounds = setting.n_rounds if setting else case.n_rounds
        metrics = ["difference after 1", f"difference after {n_rounds}", "largest output"]
        if setting not in (None, pfllib_cases.PLAIN):
            metrics.insert(0, "largest difference")
        *differences, largest = (float(lines[method, metric]["value"]) for metric in metrics)
        # PFLlib's FedCP in float32 is 4e-5 from itself in float64 where all examples of a client are alike.
        allowed = 2e-5 if method == "FedCP" and setting and setting.sizes == "steps" else 2e-6
        assert max(differences) < allowed * max(largest, 1), method


def test_permuted_labels_tell_four_groups_apart():
    rng = np.random.default_rng(2)
    x, y = rng.integers(256, size=(800, 2, 2, 1), dtype=np.uint8), np.arange(800) % 10
    federation = iid(on_host(x[:640], y[:640]), on_host(x[640:], y[640:]), 8, seed=0, val_fraction=0.2)
    permuted = leaderboard.permuted(federation, 3)
    np.testing.assert_array_equal(permuted.group, np.arange(8) % 4)
    names = {}
    for i in range(8):
        rows, new_rows = (
            np.asarray(clients.train.index[i, : int(clients.train.size[i])]) for clients in (federation, permuted)
        )
        np.testing.assert_array_equal(
            np.asarray(permuted.train.pool.x)[new_rows], np.asarray(federation.train.pool.x)[rows]
        )
        pairs = zip(np.asarray(federation.train.pool.y)[rows], np.asarray(permuted.train.pool.y)[new_rows], strict=True)
        for old_label, new_label in pairs:
            assert names.setdefault((i % 4, int(old_label)), int(new_label)) == new_label
    assert len({tuple(names[g, c] for c in range(10)) for g in range(4)}) == 4


def test_columns_of_a_run():
    metrics = {
        "accuracy_macro": np.array([0.2, 0.77, 0.8, 0.8]),
        "accuracy_p10": np.array([0.1, 0.5, 0.6, 0.7]),
        "uplink": np.full((4, 3), 10.0),
        "downlink": np.full((4, 3), 20.0),
        "ids": np.zeros((4, 3)),
        "ari": np.array([0.0, 0.5, 1.0, 0.25]),
    }
    columns = leaderboard.measured(metrics, 2.0)
    expected = {"accuracy": 80.0, "p10": 70.0, "rounds to 95 %": 2.0, "megabytes": 4 * 3 * 30 * 4 / 1e6, "seconds": 2.0}
    assert columns == pytest.approx(expected | {"ARI": 0.25, "best ARI": 1.0})
    metrics_of_counts = metrics | {"uplink": np.full(4, 10.0), "downlink": np.full(4, 20.0)}
    assert leaderboard.measured(metrics_of_counts, 2.0)["megabytes"] == pytest.approx(expected["megabytes"])


def test_points_of_sensitivity_are_counts_of_clusters_or_thresholds_in_their_range():
    points_of = {method: list(sensitivity.points(entry)) for method, entry in leaderboard.ENTRIES.items()}
    assert [point.entry.choices["n_clusters"] for point in points_of["IFCA"]] == list(sensitivity.COUNTS)
    assert [point.entry.choices["n_learners"] for point in points_of["FedEM"]] == list(sensitivity.COUNTS)
    assert [point.entry.choices["n_groups"] for point in points_of["Group-PFL (later)"]] == list(sensitivity.COUNTS)
    assert [point.value for point in points_of["FL+HC"]] == pytest.approx([0.225, 0.45, 0.9, 1.8, 3.6])
    assert max(point.value for point in points_of["CFL"]) <= 1 < max(sensitivity.FACTORS) * 0.6  # a share
    assert not any(points_of[method] for method in ("FedAvg", "Ditto", "FedAvg-FT", "standalone"))
    for points in points_of.values():
        for point in points:
            leaderboard.method_and_hyper(point.entry, point.value)


def test_curves_of_sensitivity_are_means_over_seeds():
    def line(method, seed, n, value, name="accuracy"):
        metric = f"{name} at {sensitivity.CLUSTERS} {n}"
        return {"method": method, "seed": seed, "metric": metric, "value": str(value)}

    lines = [
        line("IFCA", "0", 8, 80),
        line("IFCA", "0", 2, 70),
        line("IFCA", "1", 2, 60),
        line("IFCA", "0", 2, 1, "ARI"),
    ]
    ((counts, values),) = sensitivity.curves_of(lines, sensitivity.CLUSTERS).values()
    np.testing.assert_array_equal(counts, [2, 8])
    np.testing.assert_array_equal(values, [65, 80])
    assert not sensitivity.curves_of(lines, sensitivity.THRESHOLD)
