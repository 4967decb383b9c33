"""``--drift``: what is written of the changes, and drifts, and attacks over rounds, that do not fit the job."""

import csv
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("two_devices")
TINY = ("--rounds", "3", "--model", "logistic_regression", "--partition.n-clients", "4", "--epochs", "1")


def test_changes_are_shown_and_written(fljax):
    drift = ("--drift", "leave", "--drift.start", "2", "--drift.share", "0.5")
    status, out, err = fljax("run", *TINY, "--algorithm", "fedavg", *drift, "--folder", "a")
    assert (status, err) == (0, "")
    assert "on 2 cpu devices" in out
    assert "Cost of the changes" in out
    with Path("a/changes.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["algorithm"], row["round"], row["ari_before"]) == ("fedavg", "3", "")
    with Path("a/clients.csv").open() as file:
        accuracies = [client["fedavg client_accuracy"] for client in csv.DictReader(file)]
    assert accuracies.count("nan") == 2
    assert fljax("run", "--folder", "a")[0] == 0  # and goes on with its drift
    assert "--drift.share" in fljax("list", "leave")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--drift", "leave"), "round 10 is beyond --rounds 3; choose more rounds, or an earlier --drift.start"),
        (("--drift", "leaves"), "no drift 'leaves'; the nearest is 'leave'"),
        (("--drift", "leave", "--drift.share", "1", "--drift.start", "1"), "no client would be present"),
        (
            ("--drift", "swap_labels", "--drift.classes", "1", "1", "--drift.start", "1"),
            "give two different whole numbers",
        ),
        (("--drift", "rotate_images", "--drift.degrees", "720"), "out of its range"),
        (("--attack", "sign_flip", "--attack.start", "3"), "--attack sign_flip: round 3 is beyond --rounds 3"),
        (("--attack", "backdoor", "--attack.start", "9"), "--attack backdoor: round 9 is beyond --rounds 3"),
    ],
)
def test_drifts_that_do_not_fit_are_one_line(refused, words, message):
    assert message in refused("run", *TINY, "--algorithm", "fedavg", *words)
