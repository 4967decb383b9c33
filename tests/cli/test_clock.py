"""``--clock``: simulated seconds in tables and files, going on, and clocks that do not fit the job."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import fljax as library
from fljax.jobs.assemble import with_stragglers
from fljax.jobs.job import read_job
from fljax.rounds import uniform
from fljax.types import Work

TINY = ("--rounds", "3", "--partition.n-clients", "6", "--epochs", "1", "--participation", "0.5")
TINY += ("--model", "logistic_regression")


def seconds_of(folder, name="fedavg"):
    return np.asarray(library.load_run(folder)[name].metrics["simulated_seconds"])


def test_seconds_are_shown_written_and_gone_on_with(fljax):
    clock = ("--clock", "deadline", "--clock.spread", "1", "--clock.in-time", "0.5", "--uplink", "top-k:0.1")
    clock += ("--sampling", "poisson")
    status, out, err = fljax("run", *TINY, "--algorithm", "fedavg", *clock, "--rounds", "2", "--folder", "a")
    assert (status, err) == (0, "")
    assert "simulated" in out
    assert 'name = "deadline"' in Path("a/config.toml").read_text()
    assert Path("a/plots/simulated_time.png").exists()
    assert fljax("run", "--folder", "a", "--rounds", "3")[0] == 0  # goes on with its clock
    seconds = seconds_of("a", "fedavg+top_k")
    assert seconds.shape == (3,)
    missing = library.load_run("a")["fedavg+top_k"].metrics["n_missing"]
    assert missing.min() == 0 < missing.max()  # so that not every round lasts until the deadline
    np.testing.assert_array_equal(seconds == seconds.max(), missing > 0)
    with Path("a/summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    np.testing.assert_allclose(float(row["simulated_seconds"]), seconds.sum(), rtol=1e-5)
    lines = [json.loads(line) for line in Path("a/fedavg+top_k/metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([line["simulated_seconds"] for line in lines], seconds, rtol=1e-5)
    assert "--clock.in-time" in fljax("list", "deadline")[1]


@pytest.mark.slow
def test_a_trace_without_waiting_is_the_same_from_its_stored_job(fljax, refused):
    rows = "\n".join(f"{speed},1e6,1e7" for speed in (10, 20, 30, 40, 50, 60))
    Path("trace.csv").write_text(f"speed,up,down\n{rows}\n")
    clock = ("--clock", "fedbuff", "--clock.buffer", "2", "--clock.devices", "trace.csv")
    status, out, err = fljax("run", *TINY, "--algorithm", "fedavg", *clock, "--folder", "a")
    assert (status, err) == (0, ""), out
    assert fljax("run", "--config", "a/config.toml", "--folder", "b")[0] == 0
    metrics = library.load_run("a")["fedavg"].metrics
    repeated = library.load_run("b")["fedavg"].metrics
    for name in ("simulated_seconds", "ids", "staleness", "accuracy_macro"):
        np.testing.assert_array_equal(metrics[name], repeated[name])
    assert metrics["ids"].shape == (3, 2)
    settings = Path("a/config.toml").read_bytes()
    assert (
        "--rounds 5: a holds a run of --rounds 3 without waiting (--clock fedbuff): its order is drawn for this number "
        "of rounds; choose --rounds 3 or another --folder"
    ) in refused("run", "--folder", "a", "--rounds", "5")
    assert Path("a/config.toml").read_bytes() == settings
    assert fljax("run", "--folder", "a")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--clock", "dedline"), "no clock 'dedline'; the nearest is 'deadline'"),
        (("--clock", "wait", "--clock.speed", "0"), "speed=0 is out of its range"),
        (
            ("--clock", "wait", "--clock.devices", "fast"),
            "devices='fast': choose one of lognormal, equal, or an existing",
        ),
        (("--clock", "wait", "--clock.devices", "zero.csv"), "speed=0 of client 1 is not a speed"),
        (("--clock", "wait", "--clock.devices", "few.csv"), "2 devices for 6 clients"),
        (("--clock", "deadline", "--clock.limit", "1e-4"), "the fastest client takes"),
        (("--clock", "fedbuff", "--clock.buffer", "7"), "buffer=7: there are 6 clients"),
        (("--clock", "fedbuff", "--sampling", "poisson"), "it draws the participants itself"),
        (
            ("--clock", "fedasync", "--clock.available", "0.5"),
            "asynchronous rounds need devices that are always available",
        ),
        (
            ("--clock", "tiered"),
            "a tier of 3 has 2; choose participation up to 0.33",
        ),
        (("--clock", "tiered", "--clock.n-tiers", "7"), "n_tiers=7 of 6 clients; choose 1 to 6"),
        (("--clock", "wait", "--clock.buffer", "2"), "no setting --clock.buffer"),
        (("--clock", "fedbuff", "--algorithm", "ifca"), "ifca: its clients cannot start from a past model"),
        (("--clock", "wait", "--stragglers", "0.5"), "--clock wait and --stragglers both set the work of slow clients"),
        (("--stragglers", "1.5"), "stragglers=1.5 is out of its range; choose stragglers in [0, 1], or None"),
        (("--least-effort", "0.5"), "there are no stragglers; give --stragglers"),
    ],
)
def test_clocks_that_do_not_fit_are_one_line(refused, words, message):
    Path("zero.csv").write_text("speed,up,down\n" + "1,1,1\n0,1,1\n" + "1,1,1\n" * 4)
    Path("few.csv").write_text("speed,up,down\n1,1,1\n1,1,1\n")
    assert message in refused("run", *TINY, "--algorithm", "fedavg", *words)


def test_stragglers_of_several_epochs_do_whole_ones():
    job = read_job(["--stragglers", "0.5"])
    abouts = [dict(with_stragglers(job, uniform(), Work(epochs, 8)).about) for epochs in (1, 2, 4)]
    assert [about["whole_epochs"] for about in abouts] == [None, 2, 4]


@pytest.mark.slow
def test_stragglers_do_whole_epochs_of_each_method_and_are_gone_on_with(fljax, refused):
    words = (*TINY, "--algorithm", "fedavg", "fednova", "--stragglers", "1", "--fednova.epochs", "4")
    assert fljax("run", *words, "--rounds", "2", "--folder", "a")[0] == 0
    assert fljax("run", "--folder", "a", "--rounds", "3")[0] == 0
    assert fljax("run", *words, "--rounds", "3", "--folder", "whole")[0] == 0
    resumed, expected = (library.load_run(folder) for folder in ("a", "whole"))
    effort = resumed["fednova"].metrics["effort"]
    assert set((4 * effort).ravel()) <= {1, 2, 3, 4}
    assert effort.min() < 1
    assert (resumed["fedavg"].metrics["effort"] % 0.25 != 0).any()  # of one epoch any part
    for name in resumed:
        np.testing.assert_array_equal(resumed[name].metrics["effort"], expected[name].metrics["effort"])
        np.testing.assert_array_equal(resumed[name].metrics["loss"], expected[name].metrics["loss"])
    assert "holds results with --stragglers 1.0, not 0.5" in refused("run", "--folder", "a", "--stragglers", "0.5")


@pytest.mark.slow
def test_who_would_miss_the_deadline_sends_what_it_has_made(fljax):
    clock = ("--clock", "deadline", "--clock.spread", "1", "--clock.in-time", "0.4")
    for policy in ("dropped", "partial"):
        assert fljax("run", *TINY, "--algorithm", "fedavg", *clock, "--clock.late", policy, "--folder", policy)[0] == 0
    dropped, partial = (library.load_run(policy)["fedavg"].metrics for policy in ("dropped", "partial"))
    assert dropped["n_missing"].sum() > partial["n_missing"].sum()
    assert "effort" not in dropped
    assert partial["effort"].min() < 1


@pytest.mark.slow
def test_a_plan_counts_attackers_drift_and_clock(fljax):
    options = ("--algorithm", "fedavg", "--attack", "sign_flip", "--drift", "leave", "--drift.start", "1")
    status, out, _ = fljax("plan", *TINY, *options, "--clock", "fedbuff", "--clock.spread", "2", "--clock.buffer", "2")
    (line,) = (line for line in out.splitlines() if line.startswith("fedavg"))
    assert status == 0
    megabytes = float(line.split()[1])
    _, plain_out, _ = fljax("plan", *TINY, "--algorithm", "fedavg")
    (line,) = (line for line in plain_out.splitlines() if line.startswith("fedavg"))
    assert megabytes >= 2 * float(line.split()[1])  # a model and its past versions


@pytest.mark.slow
def test_seeds_and_sweeps_have_a_clock(fljax):
    clock = ("--clock", "over_select", "--clock.spread", "1")
    arguments = (*TINY, "--algorithm", "fedavg", "fedprox", *clock, "--seeds", "2")
    status, out, _ = fljax("compare", *arguments, "--folder", "c")
    assert status == 0
    bars = [f"{name}, seed {seed} " for seed in (0, 1) for name in ("fedavg", "fedprox")]  # one after another
    assert [line[: len(bar)] for bar, line in zip(bars, out.splitlines()[3:], strict=False)] == bars
    first, second = (seconds_of(f"c/seed_{s}") for s in (0, 1))
    assert first.shape == second.shape == (3,)
    assert not np.array_equal(first, second)  # other cohorts
    assert fljax("sweep", *TINY, "--algorithm", "fedavg", "--lr", "0.1", "0.2", *clock, "--folder", "s")[0] == 0


def test_what_a_method_refuses_is_said_of_the_method_and_not_of_the_clock(refused):
    """As without a clock, which is the first to run a round of it."""
    options = ("--partition.n-public", "8", "--algorithm", "fedavg", "fedtsdp", "--clock", "wait")
    message = refused("run", "--rounds", "1", *options, "--model", "logistic_regression", "--compile", "fast")
    assert message == "fljax: --algorithm fedtsdp: public has 8 images; choose public_batch at most that, not 50\n"
