"""`fljax run` from words to files: every way it can end."""

import csv
import json
import signal
import subprocess
import sys
import time
import tomllib
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fljax.cli.config import as_toml
from fljax.cli.job import read_job
from fljax.cli.run import COLUMNS, as_table
from fljax.run.checkpoint import read_rounds

SMALL = ("--algorithm", "fedavg", "--rounds", "2", "--model.hidden", "8", "--partition.n-clients", "4", "--epochs", "1")


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_main_job_is_the_default():
    settings = read_job([]).settings
    five = ("fedtsdp", "layercfl", "dcpfl", "fedcps", "fesem")
    assert settings[""]["algorithm"] == ("standalone", "fedavg", *five)
    assert settings["partition"]["n_groups"] == settings["fesem"]["n_clusters"] == 4
    assert settings["dcpfl"]["momentum"] is settings["fedcps"]["identity_examples"] is None
    assert {settings[name]["lr"] for name in five} == {0.1}
    assert {settings[name]["batch_size"] for name in five} == {16}


@pytest.mark.slow
def test_the_main_job_finds_the_hidden_groups(fljax):
    status, out, err = fljax("run", "--folder", "x")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 120
    rows = {row["algorithm"]: row for row in table(Path("x"))}
    fedavg = float(rows["fedavg"]["accuracy_macro"])
    for name in ("fedtsdp", "layercfl", "dcpfl", "fedcps", "fesem"):
        assert float(rows[name]["ari"]) == 1, name
        assert float(rows[name]["accuracy_macro"]) > fedavg + 0.02, name


def test_a_run_leaves_its_results(fljax):
    status, out, err = fljax("run", *SMALL, "--algorithm", "fedavg", "ifca", "--folder", "x")
    assert (status, err) == (0, "")
    assert "4 clients in 4 groups" in out
    assert "accuracy" in out
    folder = Path("x")
    assert [row["algorithm"] for row in table(folder)] == ["fedavg", "ifca"]
    assert {path.name for path in (folder / "plots").iterdir()} == {
        "clusters_ifca.png",
        "learning_curves.png",
        "models_ifca.png",
    }
    rows = (folder / "ifca" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [0, 1]
    accuracy = float(table(folder)[1]["accuracy_macro"])
    assert accuracy == pytest.approx(np.load(folder / "ifca" / "clients.npz")["client_accuracy"].mean(), abs=1e-6)


def test_new_clients_are_tested_at_the_end(fljax):
    status, out, err = fljax(
        "run", *SMALL, "--rounds", "1", "--algorithm", "fedper", "--new-clients", "0.3", "--folder", "x"
    )
    assert (status, err) == (0, "")
    assert "3 clients in 3 groups, 323 to 324 training examples each; 1 new clients at the end" in out
    assert "(round)  macro    p10" in out.partition(" new    new ")[2]
    arrays = np.load("x/fedper/new_clients.npz")
    assert arrays["client_accuracy"].shape == arrays["group"].shape == (1,)
    (row,) = table(Path("x"))
    assert float(row["new_accuracy_macro"]) == pytest.approx(arrays["client_accuracy"].mean(), abs=1e-6)
    assert tomllib.loads(Path("x/config.toml").read_text())["new_clients"] == 0.3


def test_config_repeats_the_run_exactly(fljax):
    assert fljax("run", *SMALL, "--lr", "0.3", "--participation", "0.5", "--dropout", "0.5", "--folder", "a")[0] == 0
    assert fljax("run", "--config", "a/config.toml", "--folder", "b")[0] == 0
    first, second = read_rounds(Path("a/fedavg")), read_rounds(Path("b/fedavg"))
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    config = tomllib.loads(Path("a/config.toml").read_text())
    assert config["fedavg"]["lr"] == 0.3
    assert config["versions"]["jax"]
    assert config["machine"]["devices"]
    without = [name for name in config if name not in ("versions", "machine")]
    assert [tomllib.loads(Path("b/config.toml").read_text())[name] for name in without] == [config[n] for n in without]


def test_a_folder_is_gone_on_with(fljax, refused):
    assert fljax("run", *SMALL, "--folder", "x")[0] == 0
    assert fljax("run", "--folder", "x", "--rounds", "4")[0] == 0
    assert len(Path("x/fedavg/metrics.jsonl").read_text().splitlines()) == 4
    assert "--fedavg.lr 0.1, not 0.2; choose another --folder" in refused("run", "--folder", "x", "--lr", "0.2")
    assert tomllib.loads(Path("x/config.toml").read_text())["fedavg"]["lr"] == 0.1


def test_without_a_folder_results_are_named_by_the_time(fljax):
    status, out, _ = fljax("run", *SMALL, "--rounds", "1")
    (folder,) = Path("results").iterdir()
    assert status == 0
    assert str(folder) in out


def test_an_aborted_start_does_not_bind_the_folder(fljax, refused):
    assert "optimizer='adamw' is unknown" in refused("run", *SMALL, "--optimizer", "adamw", "--folder", "x")
    assert fljax("run", *SMALL, "--rounds", "1", "--folder", "x")[0] == 0


def test_toml_sets_what_the_command_line_can(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('algorithm = "fesem"\nlr = 0.5\n[partition]\nname = "iid"\nn_clients = 3\npublic = false\n')
    settings = read_job(["--config", str(path), "--fesem.mu", "0"]).settings
    assert settings[""]["algorithm"] == ("fesem",)
    assert (settings["fesem"]["lr"], settings["fesem"]["mu"]) == (0.5, 0.0)
    assert settings["partition"] == {"n_clients": 3, "val_fraction": 0.0, "test_fraction": 0.2, "public": False}


def test_another_partition_or_model_starts_from_its_own_defaults():
    settings = read_job(["--partition", "dirichlet", "--model", "cnn"]).settings
    assert settings["partition"]["n_clients"] == 12
    assert settings["partition"]["min_size"] == 10
    assert settings["model"]["hidden"] == (512,)


def test_none_is_kept_where_it_is_not_the_default(tmp_path):
    job = read_job(["--algorithm", "fedavg"])
    job.settings["fedavg"]["lr"] = None
    assert as_toml(job)["fedavg"]["lr"] == "None"
    assert "momentum" not in as_toml(job)["fedavg"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "ifcaa"], "no algorithm 'ifcaa'; the nearest is 'ifca'"),
        (["--algorithm"], "--algorithm: give at least one"),
        (["--partition", "rotated"], "the nearest is 'rotated_groups'"),
        (["--model", "nlp"], "the nearest is 'mlp'"),
        (["--dataset", "digit"], "no data set 'digit'"),
        (["--algoritm", "ifca"], "no setting --algoritm; the nearest is --algorithm"),
        (["--fesem.n-cluster", "3"], "the nearest is --fesem.n-clusters"),
        (["--algorithm", "fedavg", "--ifca.lr", "1"], "ifca is not run; add it to --algorithm"),
        (["--lr", "abc"], "abc: give float"),
        (["--rounds", "2.5"], "--rounds 2.5: give int"),
        (["ifca"], "'ifca' comes without a name"),
        (["--rounds", "0"], "n_rounds=0"),
        (["--seed", "-1"], "seed=-1"),
        (["--participation", "0"], "participation=0.0"),
        (["--participation", "1.5"], "participation=1.5"),
        (["--dropout", "1"], "dropout=1.0"),
        (["--evaluate-every", "0"], "evaluate_every=0"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--fedavg.epochs", "0"], "fedavg.epochs=0"),
        (["--at-once", "0"], "at_once=0"),
        (["--weighting", "fair"], "weighting='fair'"),
        (["--n-clusters", "0"], "n_clusters=0"),
        (["--n-clients", "5000"], "n_clients=5000"),
        (["--new-clients", "0"], "new_clients=0.0"),
        (["--new-clients", "1"], "new_clients=1.0"),
        (["--new-clients", "0.01"], "new_clients=0.01 of 12 clients leaves no new client"),
        (["--new-clients", "0.99"], "new_clients=0.99 of 12 clients leaves no client to train"),
        (["--new-client-rounds", "-1"], "new_client_rounds=-1"),
        (["--algorithm", "fedsgd", "--epochs", "2"], "epochs=1"),
        (["--config", "nowhere.toml"], "cannot read nowhere.toml: No such file"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(refused, arguments, message):
    assert message in refused("run", *arguments)
    assert not Path("results").exists()


def test_config_files_are_checked(refused):
    Path("x.toml").write_text("rounds = [")
    assert "x.toml is not TOML" in refused("run", "--config", "x.toml")
    Path("x.toml").write_text("[fedavg]\nlearning_rate = 1\n")
    assert "no setting --fedavg.learning-rate" in refused("run", "--config", "x.toml")
    Path("x.toml").write_text("rounds = true\n")
    assert "--rounds True: give int" in refused("run", "--config", "x.toml")


def test_a_folder_that_is_a_file_is_refused(refused):
    Path("x").touch()
    assert "File exists" in refused("run", *SMALL, "--folder", "x")


def test_help_shows_the_defaults_of_what_is_named(fljax):
    status, out, _ = fljax("run", "--algorithm", "fesem", "--partition", "dirichlet", "--help")
    assert status == 0
    for text in ("--fesem.mu FLOAT", "--partition.beta FLOAT", "(default: 0.5)", "--folder"):
        assert text in out
    assert "--ifca.epochs" not in out


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path):
    command = [sys.executable, "-m", "fljax", "run", *SMALL, "--rounds", "100000", "--folder", "x"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("x/fedavg/rounds/*.npz")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "fljax run --folder x goes on" in out


def test_a_narrow_terminal_goes_without_columns_not_digits():
    row = dict.fromkeys(COLUMNS) | {"algorithm": "lg_fedavg", "accuracy_macro": 0.5, "best_accuracy": 0.75}
    row |= {"best_round": 9, "new_accuracy_macro": 0.25, "ari": 1.0, "megabytes_up": 12.5, "seconds": 3.0}
    for width in (200, 60, 40):
        text = StringIO()
        Console(width=width, file=text).print(as_table([row], width))
        assert "\u2026" not in text.getvalue()
        assert "lg_fedavg" in text.getvalue()
        assert ("0.7500 (9)" in text.getvalue()) == (width > 40)
