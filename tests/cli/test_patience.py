"""Early stopping and validation on the command line."""

import csv
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fljax.results.load import load_run

SMALL = ("--algorithm", "fedavg", "--epochs", "1", "--partition", "iid", "--n-clients", "3", "--lr", "0.5")
SMALL += ("--model", "logistic_regression")
VALIDATED = ("--partition.val-fraction", "0.2", "--validate")


@pytest.mark.slow
def test_a_run_ends_early_says_so_and_goes_on_with_more_patience(fljax, tmp_path):
    status, out, err = fljax("run", *SMALL, *VALIDATED, "--rounds", "60", "--patience", "2", "--folder", "x")
    assert (status, err) == (0, "")
    metrics = load_run("x")["fedavg"].metrics
    n_rounds, best = len(metrics["loss"]), int(metrics["val_accuracy_macro"].argmax())
    assert n_rounds == best + 3 < 60
    assert f"fedavg ended after {n_rounds} of 60 rounds: val_accuracy_macro was best after {best + 1}" in out
    with Path("x/summary.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["rounds"] == str(n_rounds)
    assert (row["best_val_round"], float(row["accuracy_at_best_val"])) == (
        str(best + 1),
        metrics["accuracy_macro"][best],
    )
    assert f"{metrics['accuracy_macro'][best]:.4f} ({best + 1})" in out
    accuracy = metrics["accuracy_macro"][best]
    shown_text = fljax("show", "x", "--measure", "accuracy_at_best_val")[1]
    assert f"fedavg                   {accuracy:.4f}" in shown_text
    assert f"ended early: fedavg {n_rounds} of 60" in shown_text
    out = fljax("run", "--folder", "x")[1]  # with the patience that it had
    assert f"fedavg ended after {n_rounds} of 60 rounds" in out
    assert f"{metrics['accuracy_macro'][-1]:.4f}" in fljax("show", "x")[1]
    longer_out = fljax("run", "--folder", "x", "--patience", "4")[1]
    longer_metrics = load_run("x")["fedavg"].metrics
    np.testing.assert_array_equal(longer_metrics["val_accuracy_macro"][:n_rounds], metrics["val_accuracy_macro"])
    assert len(longer_metrics["loss"]) == int(longer_metrics["val_accuracy_macro"].argmax()) + 5
    assert "fedavg ended after" in longer_out
    stored = tomllib.loads(Path("x/config.toml").read_text())
    assert (stored["patience"], stored["validate"]) == (4, True)


@pytest.mark.slow
def test_less_patience_than_a_run_was_made_with_is_refused(fljax, refused):
    """Its settings would say that it ended where it did not."""
    assert fljax("run", *SMALL, "--rounds", "12", "--folder", "x")[0] == 0
    accuracy = load_run("x")["fedavg"].metrics["accuracy_macro"]
    best = np.maximum.accumulate(accuracy)
    rounds_since_best = np.arange(12) - [int(np.argmax(accuracy[: i + 1] == best[i])) for i in range(12)]
    expected_end = int(np.argmax(rounds_since_best >= 1)) + 1
    assert 1 < expected_end < 12
    message = refused("run", "--folder", "x", "--patience", "1")
    assert f"--patience 1: x holds 12 rounds of fedavg, but this patience ends it after {expected_end}; " in message
    assert "patience" not in tomllib.loads(Path("x/config.toml").read_text())
    assert fljax("run", "--folder", "x", "--patience", "30")[0] == 0


@pytest.mark.slow
def test_a_run_that_ended_between_tests_is_shown_again(fljax):
    """Its patience is over a round before the test that ends it."""
    arguments = ("run", *SMALL, "--rounds", "40", "--evaluate-every", "3", "--patience", "4", "--folder", "x")
    assert fljax(*arguments)[::2] == (0, "")
    n_rounds = len(load_run("x")["fedavg"].metrics["loss"])
    assert n_rounds < 40
    assert fljax("run", "--folder", "x")[::2] == (0, "")
    assert len(load_run("x")["fedavg"].metrics["loss"]) == n_rounds


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run --patience 0", "patience=0 is not positive"),
        ("run --validate", "no validation split; make one with val_fraction above 0 (--partition.val-fraction 0.1)"),
        ("run --patience 2 --drift swap_labels", "patience=2: the clients change over the rounds"),
        ("compare --patience 2", "no setting --patience"),
        (
            "compare --patience 3",
            "no setting --patience here: only fljax run stops runs early (fljax show compares several seeds); leave it",
        ),
        (
            "compare --new-clients 0.2",
            "only fljax run tests new clients (fljax show compares several seeds); leave it out",
        ),
        (
            "compare --config job.toml",
            "the file sets patience: only fljax run stops runs early (fljax show compares several seeds); leave it",
        ),
        ("sweep --patience 2", "--patience 2: all runs of a sweep end together; --halving stops bad points early"),
        ("sweep --validate", "--judge val chooses the validation split"),
    ],
)
def test_patience_that_cannot_be_is_refused_in_one_line(refused, arguments, message):
    Path("job.toml").write_text("patience = 3\n")
    command, *options = arguments.split()
    numbers = ("--lr", "0.1", "0.2") if command == "sweep" else ()
    assert message in refused(command, *SMALL, *numbers, *options)
    assert not Path("results").exists()
