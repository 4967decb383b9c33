"""Methods with a server optimiser, `fedprox+adam`, from words to files."""

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fljax.folder.checkpoint import read_rounds
from fljax.jobs.job import read_job
from fljax.jobs.sweep import read_sweep
from tests.slow import slow

TINY = ("--rounds", "1", "--model", "logistic_regression", "--partition.n-clients", "4", "--epochs", "1")


@pytest.mark.parametrize("methods", slow(("fedprox+adam",), ("fedprox", "fedprox+adam")))
def test_a_composed_method_runs_and_is_repeated(fljax, methods):
    options = ("--algorithm", *methods, "--server-lr", "0.02", "--fedprox+adam.mu", "0.3")
    status, _, err = fljax("run", *TINY, *options, "--folder", "a")
    assert (status, err) == (0, "")
    with Path("a/summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["algorithm"] for row in rows] == list(methods)
    assert len({row["accuracy_macro"] for row in rows}) == len(methods)
    stored = tomllib.loads(Path("a/config.toml").read_text())
    assert (stored["fedprox+adam"]["server_lr"], stored["fedprox+adam"]["mu"]) == (0.02, 0.3)
    assert "server_lr" not in stored.get("fedprox", ())

    assert fljax("run", "--config", "a/config.toml", "--folder", "b")[0] == 0
    first, second = read_rounds(Path("a/fedprox+adam")), read_rounds(Path("b/fedprox+adam"))
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])
    assert fljax("run", "--folder", "a")[0] == 0  # and goes on
    job = read_job(["--config", "a/config.toml", "--algorithm", "fedprox"])
    assert "fedprox+adam" not in job.settings
    assert "server_lr" not in job.settings["fedprox"]


SWEPT = (*TINY, "--algorithm", "fedprox+adam", "--server-lr", "0.01", "0.1", "--outer.batch-size", "16")


def test_a_servers_numbers_are_points():
    sweep = read_sweep(SWEPT)
    np.testing.assert_allclose(sweep.hypers(sweep.job).server_lr, [0.01, 0.1], rtol=1e-6)
    assert sweep.labels == {"batch_size": "fedprox+adam.batch_size"}


@pytest.mark.slow
def test_a_server_is_swept(fljax):
    status, out, err = fljax("sweep", *SWEPT, "--folder", "x")
    assert (status, err) == (0, "")
    assert "2 points x 1 seed of fedprox+adam" in out
    with Path("x/table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["batch_size"], row["server_lr"]) for row in rows] == [("16", "0.01"), ("16", "0.1")]
    resumed = read_sweep(["--folder", "x", "--resume"])
    assert resumed.axes["server_lr"].words == ["0.01", "0.1"]
    assert resumed.labels == {"batch_size": "fedprox+adam.batch_size"}
    np.testing.assert_allclose(resumed.hypers(resumed.job).server_lr, [0.01, 0.1], rtol=1e-6)


@pytest.mark.parametrize("command", ["run", "sweep", "plan", "list"])
def test_what_is_not_composed_is_refused(refused, command):
    for name, message in (
        ("standalone+adam", "has no slot 'server'"),
        ("fedprox+adm", "no brick 'adm'; the nearest is 'adam'; bricks that fit"),
    ):
        assert message in refused(command, *(["--algorithm"] * (command != "list")), name)


def test_a_composed_method_is_listed_and_helped(fljax):
    status, out, _ = fljax("list", "ditto+yogi")
    assert status == 0
    for text in ("--ditto+yogi.lam", "--ditto+yogi.server-lr", "--ditto+yogi.tau", "learning rate of the server"):
        assert text in out
    for command in ("run", "sweep", "plan"):
        _, out, _ = fljax(command, "--algorithm", "fedprox+adam", "--help")
        assert "--fedprox+adam.server-lr" in out
        assert "--fedprox+adam.mu" in out


@pytest.mark.slow
def test_a_composed_method_is_planned(fljax):
    status, out, _ = fljax("plan", "--algorithm", "fedprox+adam", "--model", "logistic_regression", "--epochs", "1")
    assert status == 0
    (row,) = (line.split() for line in out.splitlines() if line.startswith("fedprox+adam"))
    assert row[1:3] == ["7.8", "kB"]  # the model of 650 floats, two moments of it and a counter
