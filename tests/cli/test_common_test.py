"""`--common-test`: the partition splits the training images alone, and all clients are tested on the test images."""

import csv
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fljax import compare_runs, load, load_run, remake
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_parts
from fljax.report import plots
from fljax.results.comparison import save_plots
from fljax.results.run_figures import save_figures_of

SMALL = ("--partition", "dirichlet", "--n-clients", "5", "--model", "logistic_regression", "--epochs", "1")
SMALL += ("--lr", "0.5", "--rounds", "2")


def accuracy(params, test):
    """The accuracy of a logistic regression on the digits' images, by NumPy in double precision."""
    layer = params["fc1"]
    logits = test.x.reshape(len(test.y), -1) / 255.0 @ np.asarray(layer["kernel"], float) + np.asarray(layer["bias"])
    return (logits.argmax(1) == test.y).mean()


def test_clients_share_the_training_images_and_the_server_has_none():
    """With the partition's rows: those that would be a client's own tests are in its training."""
    words = [*SMALL, "--partition.val-fraction", "0.1"]
    common, own = (make_parts(read_job([*words, *extra]))[0] for extra in (["--common-test"], []))
    train, test = load("digits")
    np.testing.assert_array_equal(common.train.pool.x, train.x)
    np.testing.assert_array_equal(common.test.pool.x, test.x)
    np.testing.assert_array_equal(common.test.index, np.arange(360)[None])
    assert common.test.size.tolist() == [360] * 5
    assert own.public is not None
    assert common.public is None
    for i in range(5):
        rows = [np.asarray(part.index[i, : part.size[i]]) for part in (own.train, own.test, common.train)]
        np.testing.assert_array_equal(np.concatenate(rows[:2]), rows[2])
    rows = [np.asarray(part.index[i, : part.size[i]]) for part in (common.train, common.val) for i in range(5)]
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(1437))


@pytest.mark.parametrize("partition", ["dirichlet_prior", "few_shot"])
def test_partitions_of_all_images_get_the_training_images_alone(partition):
    """Else clients would train on what they are tested on."""
    federation, _ = make_parts(read_job(["--partition", partition, "--n-clients", "4", "--common-test"]))
    (train, _), (index, size) = load("digits"), map(np.asarray, federation.train[1:])
    used = index[np.arange(index.shape[1]) < size[:, None]]
    assert {x.tobytes() for x in np.asarray(federation.train.pool.x)[used]} <= {x.tobytes() for x in train.x}


@pytest.mark.slow
def test_every_client_is_tested_on_the_test_images_of_which_it_has_none(fljax):
    """Of a global and a personal method, with a validation split, new clients, an attack with a trigger and a score."""
    options = ("--validate", "--partition.val-fraction", "0.1", "--new-clients", "0.2", "--score", "auc")
    attack = ("--attack", "backdoor", "--attack.share", "0.25", "--attack.target", "3")
    methods = ("--algorithm", "fedavg", "standalone")
    status, out, err = fljax("run", *methods, *SMALL, *options, *attack, "--common-test", "--folder", "x")
    assert (status, err) == (0, "")
    assert " training examples each, tested on the same 360; 1 new clients at the end" in out
    assert "Accuracy on one test set for all; MB per client over the whole run" in out
    assert tomllib.loads(Path("x/config.toml").read_text())["common_test"] is True
    (_, test), run, remade = load("digits"), load_run("x"), remake("x")
    federation, newcomers = remade.federation, remade.newcomers
    splits = (federation.train, federation.val, newcomers.train, newcomers.val)
    assert sum(int(np.asarray(split.size).sum()) for split in splits) == 1437  # all training images
    assert remade.federation.public is None
    for name in run:
        result = run[name]
        attacker = int(np.flatnonzero(np.isnan(result.metrics["client_accuracy"][-1]))[0])
        for client in set(range(4)) - {attacker}:
            params, last = result.client_model(client), result.metrics["client_accuracy"][-1, client]
            assert last == pytest.approx(accuracy(params, test), abs=1e-6), name
        new_tests = np.load(f"x/{name}/new_clients.npz")
        assert new_tests["client_accuracy"].shape == new_tests["client_auc"].shape == (1,)
        assert {"val_accuracy_macro", "auc_macro", "attack_success"} <= {*result.metrics}
    (fedavg, standalone) = (result.metrics["client_accuracy"][-1] for result in map(run.__getitem__, run))
    assert len(np.unique(fedavg[~np.isnan(fedavg)])) == 1
    assert len(np.unique(standalone[~np.isnan(standalone)])) == 3
    check_predictions(fljax, test, run)


def check_predictions(fljax, test, run):
    """The files of `fljax predict` have all test images for each client that is tested, in their order."""
    assert "2,160 predictions written to x/predictions_test.csv" in fljax("predict", "x")[1]  # 2 methods, 3 clients
    with Path("x/predictions_test.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["method"] == "standalone"]
    for client in dict.fromkeys(line["client"] for line in lines):
        own = [line for line in lines if line["client"] == client]
        assert [int(line["example"]) for line in own] == list(range(360))
        np.testing.assert_array_equal([int(line["label"]) for line in own], test.y)
        share = np.mean([line["label"] == line["predicted"] for line in own])
        assert share == pytest.approx(run["standalone"].metrics["client_accuracy"][-1, int(client)], abs=1e-6)


@pytest.mark.slow
def test_a_folder_keeps_its_tests(fljax, refused, monkeypatch):
    arguments, labels = ("run", "--algorithm", "fedavg", *SMALL), {}
    monkeypatch.setattr(
        plots, "save", lambda figure, file, **_: labels.update({file.stem: figure.axes[0].get_ylabel()})
    )
    assert fljax(*arguments, "--common-test", "--folder", "x")[0] == 0
    assert labels == {
        "learning_curves": "accuracy on one test set for all",
        "losses": "loss on one test set for all",
        "clients": "client's accuracy on one test set for all",
    }
    assert "tested on the same 360" in fljax("run", "--folder", "x", "--rounds", "3")[1]
    assert len(load_run("x")["fedavg"].metrics["loss"]) == 3
    assert fljax("show", "x")[1].splitlines()[-1] == "all clients are tested on one set (--common-test)"
    message = refused("run", "--folder", "x", "--common-test", "false")
    assert "x holds results with --common-test true, not false; choose another --folder" in message


@pytest.mark.slow
def test_show_tells_runs_with_one_test_set_apart(fljax, monkeypatch):
    arguments = ("run", "--algorithm", "fedavg", *SMALL)
    for folder, words in (("x", ("--common-test",)), ("y", ())):
        assert fljax(*arguments, *words, "--folder", folder)[0] == 0
    config = Path("y/config.toml")
    assert "common_test = false\n" in config.read_text()
    shown = fljax("show", "x", "y")[1]
    assert "runs differ in common-test" in shown
    assert "common-test true\n" in shown  # the head of a table of its own
    assert shown.count("all clients are tested on one set") == 1
    labels = []
    monkeypatch.setattr(plots, "save", lambda figure, file, **_: labels.append(figure.axes[0].get_ylabel()))
    for folder in ("x", "y"):
        save_figures_of(Path(folder), Path("figures"))
    assert [label for label in labels if "loss" in label] == ["loss on one test set for all", "test loss"]


@pytest.mark.slow
def test_all_commands_take_it(fljax, monkeypatch):
    """A comparison's seeds are single runs; a sweep judges by it; a plan tells it."""
    words, labels = ("--algorithm", "fedavg", *SMALL, "--common-test"), {}
    assert "tested on the same 360" in fljax("compare", *words, "--seeds", "2", "--folder", "c")[1]
    assert fljax("run", *words, "--seed", "1", "--folder", "x")[0] == 0
    of_compare, of_run = (load_run(folder)["fedavg"].metrics for folder in ("c/seed_1", "x"))
    np.testing.assert_array_equal(of_compare["client_accuracy"], of_run["client_accuracy"])
    assert "tested on the same 360" in fljax("plan", *words, "--quick")[1]
    assert fljax("sweep", *words, "--lr", "0.5", "0.05", "--folder", "s")[0] == 0
    assert tomllib.loads(Path("s/config.toml").read_text())["common_test"] is True
    with Path("s/table.csv").open() as file:
        scores = [float(row["accuracy_macro"]) * 360 for row in csv.DictReader(file)]
    assert len(set(scores)) == 2
    np.testing.assert_allclose(scores, np.round(scores), atol=1e-3)  # of 360 images, the same for all clients
    assert "all clients are tested on one set (--common-test)\n" in fljax("show", "s")[1]
    words = ("--algorithm", "fedavg", *SMALL, "--outer.common-test", "true", "false")
    out = fljax("sweep", *words, "--lr", "0.5", "0.05", "--folder", "both")[1]
    assert re.findall("best with common_test=(true|false): lr=", out) == ["true", "false"]  # a test is not a choice
    assert "all clients are tested" not in fljax("show", "both")[1]
    monkeypatch.setattr(
        plots, "save", lambda figure, file, **_: labels.update({file.stem: figure.axes[0].get_ylabel()})
    )
    save_plots(compare_runs("c"), Path("figures"))
    assert labels == {
        "learning_curves": "accuracy macro on one test set for all",
        "clients": "client's accuracy on one test set for all",
    }


def test_the_picture_of_a_partition_is_of_the_training_images(fljax, monkeypatch):
    drawn = []
    monkeypatch.setattr("fljax.data.draw.draw", lambda federation, *_: drawn.append(federation))
    out = fljax("data", "show", "--partition", "iid", "--n-clients", "3", "--common-test", "--file", "x.png")[1]
    assert out == "3 clients, 479 to 479 training examples each, tested on the same 360; drawn in x.png\n"
    assert drawn[0].test.is_common


def test_own_data_is_tested_on_what_its_split_column_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = np.random.default_rng(0).normal(size=(80, 2)).round(3)
    with Path("d.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "sick", "part"])
        for i, (a, b) in enumerate(table):
            writer.writerow([a, b, "yes" if a > b else "no", "test" if i % 4 == 0 else "train"])
    words = (
        "--data",
        "d.csv",
        "--label-column",
        "sick",
        "--split-column",
        "part",
        "--partition",
        "iid",
        "--n-clients",
        "3",
    )
    federation, _ = make_parts(read_job([*words, "--common-test"]))
    assert (federation.train.size.tolist(), federation.test.size.tolist()) == ([20] * 3, [20] * 3)
    np.testing.assert_allclose(federation.test.pool.x.reshape(20, 2), table[::4], rtol=1e-6)


OTHER = "choose a partition of the training examples alone, such as iid or dirichlet"
NAMED = "the clients that the data set names"
SPLIT = f"the test examples go to clients, as it has no test_fraction; {OTHER}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", f"--common-test with --partition rotated_groups: {SPLIT}"),
        (
            "--partition primary_secondary",
            f"--common-test with --partition primary_secondary: {SPLIT}",
        ),
        (
            "--dataset synthetic_1_1 --partition natural",
            f"--common-test with --partition natural: the test examples go to {NAMED}; {OTHER}",
        ),
        (
            "--partition iid --drift swap_labels",
            "--common-test with --drift swap_labels: it changes the clients' tests; leave one of them out",
        ),
        (
            "--partition iid --partition.test-fraction 0.3",
            "--partition.test-fraction 0.3: with --common-test no client has test examples of its own; leave one of",
        ),
        (
            "--partition writers --partition.n-public 5",
            "--partition.n-public 5: with --common-test the server has no public examples; leave one of them out",
        ),
        ("--partition iid --algorithm fedtsdp", "public is None but fedtsdp compares clients on public data"),
        ("--common-test maybe", "--common-test maybe: give"),
    ],
)
def test_what_cannot_have_one_test_set_is_refused(refused, arguments, message):
    assert f"fljax: {message}" in refused("run", "--common-test", "--folder", "x", *arguments.split())
    assert not Path("x").exists()
