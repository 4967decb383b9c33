"""`fljax run` from words to files: every way it can end."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from fljax.algorithms import ALGORITHMS
from fljax.folder.checkpoint import read_rounds, rounds_done
from fljax.jobs.assemble import make_algorithm
from fljax.jobs.config import as_toml, new_folder
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_model, make_parts
from fljax.numbers import as_dict
from fljax.report.comparison import COLUMNS, as_table, cell
from fljax.results.run_figures import groups_of
from tests.cli.conftest import leave_figures_empty

pytestmark = pytest.mark.xdist_group("small run")  # of the program of test_going_on.py

SMALL = ("--algorithm", "fedavg", "--rounds", "2", "--partition.n-clients", "4", "--epochs", "1")
SMALL += ("--model", "logistic_regression")


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open() as file:
        return list(csv.DictReader(file))


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


def test_a_run_leaves_its_results(fljax, drawn, monkeypatch):
    status, out, err = fljax("run", *SMALL, "--algorithm", "fedavg", "ifca", "--folder", "x")
    assert (status, err) == (0, "")
    assert "4 clients in 4 groups" in out
    assert "accuracy" in out
    folder = Path("x")
    assert [row["algorithm"] for row in table(folder)] == ["fedavg", "ifca"]
    assert {path.name for path in (folder / "plots").iterdir()} == {
        "clients.png",
        "clusters_ifca.png",
        "clusters_over_time_ifca.png",
        "learning_curves.png",
        "losses.png",
        "models_ifca.png",
    }
    assert fljax("show", "x", "--out", "paper")[0] == 0
    contents = {path.name: path.read_bytes() for path in Path("paper", "plots").iterdir()}
    for path in (folder / "plots").iterdir():
        assert contents[f"{path.stem}.pdf"].startswith(b"%PDF")
        is_equal = contents[path.name] == path.read_bytes()
        assert is_equal is (path.stem != "learning_curves"), path.name  # whose label is the measure that is compared
    leave_figures_empty(monkeypatch)
    lines = folder.joinpath("clients.csv").read_text().splitlines(keepends=True)
    assert "ifca cluster" in lines[0]
    assert "client_row" not in lines[0]  # which says the same
    folder.joinpath("clients.csv").write_text("".join(lines[:-1]))
    status, _, err = fljax("show", "x", "--out", "paper")
    assert (status, err.count("\n")) == (2, 1)
    assert "clients.csv" in err
    assert "restore it from a copy, or delete .clients.csv.crc to take it as it is" in err
    folder.joinpath(".clients.csv.crc").unlink()  # as in a folder from before there were checksums
    status, _, err = fljax("show", "x", "--out", "paper")
    assert (status, err.count("\n")) == (2, 1)
    assert "clients.csv has 3 clients, the models 4; restore the file" in err
    shutil.rmtree("paper")
    group_column = lines[0].split(",").index("group")
    for word in ("-9", "a", "4", "900000000000"):
        cells = lines[1].split(",")
        cells[group_column] = word
        folder.joinpath("clients.csv").write_text("".join([lines[0], ",".join(cells), *lines[2:]]))
        status, _, err = fljax("show", "x", "--out", "paper")
        assert (status, err.count("\n")) == (2, 1)
        shown_word = word if word.lstrip("-").isdecimal() else repr(word)
        assert f"clients.csv: client 0 has group {shown_word}; groups are 0 to 3; restore the file" in err
        assert Path("paper", "comparison.md").exists()  # which needs no groups
    rows = (folder / "ifca" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["round"] for row in rows] == [0, 1]
    accuracy = float(table(folder)[1]["accuracy_macro"])
    assert accuracy == pytest.approx(np.load(folder / "ifca" / "clients.npz")["client_accuracy"].mean(), abs=1e-6)


@pytest.mark.slow
def test_new_clients_are_tested_at_the_end(fljax):
    status, out, err = fljax(
        "run", *SMALL, "--rounds", "1", "--algorithm", "fedper", "--new-clients", "0.3", "--folder", "x"
    )
    assert (status, err) == (0, "")
    assert "3 clients in 3 groups, 323 to 324 training examples each; 1 new clients at the end" in out
    assert out.count("    new") == 2
    arrays = np.load("x/fedper/new_clients.npz")
    assert arrays["client_accuracy"].shape == arrays["group"].shape == (1,)
    (row,) = table(Path("x"))
    assert float(row["new_accuracy_macro"]) == pytest.approx(arrays["client_accuracy"].mean(), abs=1e-6)
    assert tomllib.loads(Path("x/config.toml").read_text())["new_clients"] == 0.3
    (held_out_group,) = arrays["group"]
    groups = np.genfromtxt("x/clients.csv", delimiter=",", names=True)["group"]
    assert sorted([*groups, held_out_group]) == [0, 1, 2, 3]
    assert fljax("show", "x", "--out", "paper")[0] == 0


def test_groups_are_numbered_before_clients_are_held_out():
    rows = [{"group": 0}, {"group": 2}]
    assert list(groups_of(Path("clients.csv"), rows, 2, 3)) == [0, 2]
    with pytest.raises(ValueError, match=r"clients.csv: client 1 has group 2; groups are 0 to 1; restore the file"):
        groups_of(Path("clients.csv"), rows, 2, 2)


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
    names = [name for name in config if name not in ("versions", "machine")]
    assert [tomllib.loads(Path("b/config.toml").read_text())[name] for name in names] == [config[n] for n in names]


def test_a_folder_is_gone_on_with(fljax, refused):
    assert fljax("run", *SMALL, "--folder", "x")[0] == 0
    (first_row,) = table(Path("x"))
    assert fljax("run", "--folder", "x")[0] == 0  # finished: only shown
    assert table(Path("x")) == [first_row]
    assert fljax("run", "--folder", "x", "--rounds", "4")[0] == 0
    (longer_row,) = table(Path("x"))
    assert all(float(longer_row[name]) > float(first_row[name]) > 0 for name in ("seconds", "compile_seconds"))
    assert len(Path("x/fedavg/metrics.jsonl").read_text().splitlines()) == 4
    assert "--fedavg.lr 0.1, not 0.2; choose another --folder" in refused("run", "--folder", "x", "--lr", "0.2")
    assert tomllib.loads(Path("x/config.toml").read_text())["fedavg"]["lr"] == 0.1


def test_without_a_folder_results_are_named_by_the_time(fljax):
    status, out, _ = fljax("run", *SMALL, "--rounds", "1")
    (folder,) = Path("results").iterdir()
    assert status == 0
    assert str(folder) in out


def test_an_aborted_start_does_not_bind_the_folder(fljax, refused):
    assert "n_clients=5000" in refused("run", *SMALL, "--partition.n-clients", "5000", "--folder", "x")
    assert fljax("run", *SMALL, "--rounds", "1", "--folder", "x")[0] == 0


def test_none_is_written_where_it_is_not_the_default(tmp_path):
    job = read_job(["--algorithm", "dcpfl", "fedavg", "--participation", "0.25"])
    document = as_toml(job)
    assert document["dcpfl"]["unset"] == ["momentum"]
    assert not {"unset", "momentum"} & set(document["fedavg"])
    path = tmp_path / "x.toml"
    path.write_text(tomli_w.dumps(document))
    assert '"None"' not in path.read_text()
    assert read_job(["--config", str(path)]).settings == job._replace(settings=job.settings).settings | {
        "": job.settings[""] | {"config": str(path)}
    }
    assert read_job(["--config", str(path), "--momentum", "0.5"]).settings["dcpfl"]["momentum"] == 0.5


def test_no_method_writes_none_and_each_reads_its_numbers_again(tmp_path):
    job, path = read_job(["--algorithm", *ALGORITHMS]), tmp_path / "x.toml"
    path.write_text(tomli_w.dumps(as_toml(job)))
    assert '"None"' not in path.read_text()
    settings = read_job(["--config", str(path)]).settings
    assert {name: settings[name] for name in ALGORITHMS} == {name: job.settings[name] for name in ALGORITHMS}
    assert settings["fedavg"]["momentum"] is None


def test_every_none_of_the_command_line_is_read_again(tmp_path):
    """Also where the library's default is None and the main job has another, as for the number of clusters."""
    default_job, path = read_job(["--algorithm", *ALGORITHMS]), tmp_path / "x.toml"
    may_be_none = [
        f"{section}.{name}"
        for section in ALGORITHMS
        for name, parameter in default_job.schema[section].items()
        if ("none",) in parameter.kind
    ]
    job = read_job(["--algorithm", *ALGORITHMS, *(word for full in may_be_none for word in (f"--{full}", "None"))])
    path.write_text(tomli_w.dumps(as_toml(job)))
    settings = read_job(["--config", str(path)]).settings
    changed = {full for full in may_be_none if settings[full.partition(".")[0]][full.partition(".")[2]] is not None}
    assert "pacfl.n_clusters" in may_be_none
    assert not changed


def test_what_an_algorithm_says_of_itself_is_in_the_config(tmp_path):
    job = read_job(["--algorithm", "fedper+prox", "--n-personal", "0", "--lr", "0.3", "--optimizer", "adamw"])
    federation, _ = make_parts(job)
    algorithm, hyper, _ = make_algorithm("fedper+prox", job, make_model(job, federation), 12)
    path = tmp_path / "x.toml"
    path.write_text(tomli_w.dumps(as_toml(job)))
    job_read_back = read_job(["--config", str(path)])
    repeated, numbers, _ = make_algorithm("fedper+prox", job_read_back, make_model(job_read_back, federation), 12)
    assert (repeated.about, numbers) == (algorithm.about, hyper)
    assert algorithm.about.name == "fedper+prox"
    stored = tomllib.loads(path.read_text())["fedper+prox"]
    about = {**dict(algorithm.about.choices), **as_dict(hyper), **algorithm.about.work._asdict()}
    assert {name: stored.get(name) for name in about if name != "terms"} == {n: about[n] for n in about if n != "terms"}


def test_folders_of_the_same_second_are_two(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda pattern: "now")
    assert [new_folder().name for _ in range(3)] == ["now", "now-2", "now-3"]


def test_a_folder_may_have_any_name(fljax):
    status, out, err = fljax("run", *SMALL, "--rounds", "1", "--folder", "a[/x]")
    assert (status, err) == (0, "")
    assert "results in a[/x]: " in out


def test_a_folder_that_is_a_file_is_refused(refused):
    Path("x").touch()
    assert "File exists" in refused("run", *SMALL, "--folder", "x")


def test_help_shows_the_defaults_of_what_is_named(fljax):
    status, out, _ = fljax("run", "--algorithm", "fesem", "--partition", "dirichlet", "--help")
    assert status == 0
    for text in ("--fesem.mu FLOAT", "--partition.beta FLOAT", "(default: 0.5)", "--folder"):
        assert text in out
    assert "--ifca.epochs" not in out


HEARS = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
"""A shell has the jobs that it starts in the background ignore Ctrl-C, and their children with them."""


@pytest.mark.slow
@pytest.mark.parametrize(("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_an_interrupted_run_goes_on(tmp_path, signal_number, status):
    run = [sys.executable, "-m", "fljax", "run", *SMALL, "--rounds", "100000", "--folder", "x"]
    command = [sys.executable, "-c", HEARS, *run]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("x/fedavg/rounds/*.npz")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal_number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert "stopped; resume with: fljax run --folder x\n" in out
    n_done = rounds_done(tmp_path / "x" / "fedavg")
    assert n_done == (tmp_path / "x" / "fedavg" / "metrics.jsonl").read_text().count("\n") > 1  # nothing is lost


def test_a_narrow_terminal_goes_without_columns_not_digits():
    row = dict.fromkeys(COLUMNS) | {"algorithm": "lg_fedavg", "accuracy_macro": 0.5, "best_accuracy": 0.75}
    row |= {"best_round": 9, "new_accuracy_macro": 0.25, "ari": 1.0, "megabytes_up": 12.5, "seconds": 3.0}
    for width in (200, 60, 40):
        text = as_table([row], width)
        assert max(map(len, text.splitlines())) <= width
        assert "lg_fedavg" in text
        assert ("0.7500 (9)" in text) == (width > 40)
        assert ("no room for best macro (round)" in text) == (width == 40)
    assert text.replace("\n", " ").endswith(": see summary.csv")
    assert "0.7500 (9)" in as_table([row])
    assert "no room" not in as_table([row])
    assert as_table([row], 0) == as_table([row], 20)


def test_a_file_has_room_for_all_columns(fljax, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    arguments = ("run", *SMALL, "--folder", "x")
    assert all(name in fljax(*arguments)[1] for name in ("best macro", "MB down", "compile s"))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "no room for " in fljax(*arguments)[1]


@pytest.mark.parametrize(("file", "expected_status"), [(None, 0), ("/dev/full", 2)])
def test_standard_output_that_cannot_be_written_stops_nothing(fljax, monkeypatch, file, expected_status):
    with Path(file or "/dev/null").open("w") as output, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", file and output)
        status, _, err = fljax("run", *SMALL, "--folder", "x")
    assert status == expected_status
    assert err == ("fljax: standard output cannot be written: No space left on device\n" if expected_status else "")
    assert all(Path("x", name).exists() for name in ("summary.csv", "clients.csv", "plots/losses.png"))


@pytest.mark.parametrize("name", ["summary.csv", "clients.csv"])
def test_a_file_that_a_full_disk_does_not_take_is_named(refused, name):
    Path("x").mkdir()
    Path("x", f"{name}.part").symlink_to("/dev/full")
    assert f"No space left on device: 'x/{name}'" in refused("run", *SMALL, "--rounds", "1", "--folder", "x")


def test_a_working_directory_that_is_gone_is_said(refused, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "the working directory does not exist any more" in refused("run", *SMALL)


def test_traffic_of_a_small_model_is_a_number():
    texts = {
        value: cell("megabytes_up", {"megabytes_up": value}) for value in (0.0, 0.00002346, 0.0123, 0.5, 1.0, 123.456)
    }
    assert [*texts.values()] == ["0.00", "0.0000235", "0.0123", "0.500", "1.00", "123.46"]
