"""What a folder's runs were made of, in hand: methods, clients and numbers as they were."""

import csv
import shutil

import jax
import numpy as np
import pytest

import fljax
from fljax.cli import main
from tests.cli.conftest import leave_figures_empty

pytestmark = pytest.mark.usefixtures("one_device")  # as many as the commands' runs
FEW = ("--model", "logistic_regression", "--epochs", "1", "--batch-size", "8", "--lr", "0.1", "--rounds", "2")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run of two methods on a table of costs, with clients held out for the end, and the table."""
    folder, rng = tmp_path_factory.mktemp("remake"), np.random.default_rng(0)
    age, cost = rng.uniform(20, 80, 160), rng.normal(size=160)
    rows = [(f"h{i % 8}", age[i], 1000 + 50 * age[i] + 100 * cost[i]) for i in range(160)]
    with (folder / "d.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("hospital", "age", "cost"), *rows])
    options = ["--data", str(folder / "d.csv"), "--client-column", "hospital", "--label-column", "cost", *FEW]
    options += ["--algorithm", "fedavg", "ditto", "--new-clients", "0.25", "--folder", str(folder / "out")]
    with pytest.MonkeyPatch.context() as patch:
        leave_figures_empty(patch)
        assert main(["run", *options]) == 0
    return folder / "out", fljax.load_run(folder / "out"), fljax.remake(folder / "out")


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_a_trained_model_predicts_from_a_tables_own_numbers(finished_run, name):
    _, run, remade = finished_run
    test = remade.federation.test
    rows = np.asarray(test.index)[3, : int(test.size[3])]
    x, y = (np.asarray(array)[rows] for array in test.pool)
    assert x.mean() > 20  # years, as in the file
    predicted = remade.runs[name]["algorithm"].predict(run[name].client_model(run[name].clients[3]), x)
    error = np.square(np.asarray(predicted)[:, 0] - y).mean()
    assert error == pytest.approx(float(run[name].metrics["client_mse"][-1, 3]), rel=1e-4)
    assert error > 1  # in units of the file


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_the_final_state_comes_back_without_training_and_new_clients_meet_it(finished_run, name, monkeypatch):
    folder, run, remade = finished_run
    state, metrics = fljax.train(**remade.runs[name], folder=folder / name)[:2]
    np.testing.assert_array_equal(metrics["client_loss"], run[name].metrics["client_loss"])
    arguments = remade.runs[name]
    metrics_new = fljax.evaluate_new_clients(
        arguments["algorithm"], arguments["hyper"], state, remade.newcomers, arguments["key"]
    )
    with np.load(folder / name / "new_clients.npz") as expected:
        np.testing.assert_allclose(metrics_new["client_mse"], expected["client_mse"], rtol=1e-5)


def test_a_run_goes_on_in_python(finished_run, tmp_path):
    folder, run, remade = finished_run
    for copy in ("out", "other"):
        shutil.copytree(folder, tmp_path / copy)
    assert main(["run", "--folder", str(tmp_path / "out"), "--rounds", "3"]) == 0
    in_python = fljax.train(**remade.runs["ditto"] | {"n_rounds": 3}, folder=tmp_path / "other" / "ditto")
    by_command = fljax.load_run(tmp_path / "out")["ditto"]
    np.testing.assert_array_equal(in_python.metrics["client_loss"], by_command.metrics["client_loss"])
    assert len(in_python.metrics["loss"]) == len(run["ditto"].metrics["loss"]) + 1


@pytest.mark.slow
def test_attackers_and_seeds_of_a_comparison_are_made_again(tmp_path):
    options = ["--partition.n-clients", "4", *FEW, "--algorithm", "fedavg", "--attack", "label_flip"]
    assert main(["compare", *options, "--seeds", "2", "--folder", str(tmp_path / "both")]) == 0
    remade = fljax.remake(tmp_path / "both" / "seed_1")
    _, metrics = fljax.simulate(
        **{name: remade.runs["fedavg"][name] for name in ("algorithm", "hyper", "federation")},
        key=jax.random.key(1),
        n_rounds=2,
    )
    expected = fljax.load_run(tmp_path / "both" / "seed_1")["fedavg"].metrics
    np.testing.assert_allclose(metrics["client_loss"], expected["client_loss"], rtol=1e-5)
    with pytest.raises(ValueError, match="both holds a comparison; choose one of its seeds: seed_0, seed_1"):
        fljax.remake(tmp_path / "both")


def test_a_folder_without_settings_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"there is no .*config.toml; fljax run writes one, and fljax compare for each"
    ):
        fljax.remake(tmp_path)


def test_the_folder_of_one_method_is_refused_as_such(finished_run):
    folder, *_ = finished_run
    name = next(iter(fljax.load_run(folder)))
    with pytest.raises(ValueError, match=f"{name} is the folder of one method; give .*, and --method {name}"):
        fljax.remake(folder / name)


def test_changed_data_is_refused_as_such(finished_run, tmp_path, monkeypatch, capsys):
    folder, *_ = finished_run
    shutil.copytree(folder, tmp_path / "out")
    table = folder.parent / "d.csv"
    content = table.read_text()
    try:
        table.write_text(content.replace("h0,", "h0,1", 1))  # an age
        assert main(["run", "--folder", str(tmp_path / "out"), "--rounds", "3"]) == 2
    finally:
        table.write_text(content)
    assert "fedavg holds a run on other examples; use another folder, or restore the data" in capsys.readouterr().err


def test_of_several_methods_the_one_that_cannot_run_is_named(finished_run, tmp_path, capsys):
    words = [
        "--data",
        str(finished_run[0].parent / "d.csv"),
        "--client-column",
        "hospital",
        "--label-column",
        "cost",
        *FEW,
    ]
    for command in ("run", "compare"):
        assert main([command, *words, "--algorithm", "fedavg", "fedem", "--folder", str(tmp_path / "x")]) == 2
        assert "fljax: --algorithm fedem: labels are float32 of shape (160,), not classes" in capsys.readouterr().err
