"""`fljax plan`: the table, and what it refuses."""

import numpy as np
import pytest

from fljax.devices.programs import Compiler
from fljax.jobs import assemble

pytestmark = pytest.mark.usefixtures("two_devices")  # each has one client, and no half of one is compiled
SMALL = ("plan", "--algorithm", "fedavg", "ditto", "--partition", "iid", "--partition.n-clients", "2", "--epochs", "1")
SMALL += ("--model", "logistic_regression", "--at-once", "1", "--compile", "fast")  # one program a method


def test_a_row_for_each_method(fljax):
    status, out, _ = fljax(*SMALL)
    assert status == 0
    assert "logistic_regression of 650 parameters" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(("fedavg", "ditto"))}
    assert rows["fedavg"][1:3] == ["2.6", "kB"]  # one model of 650 floats
    assert rows["ditto"][1:3] == ["7.8", "kB"]  # and one a client
    assert float(rows["fedavg"][-5]) > 0


def test_what_does_not_fit_is_said(fljax):
    _, out, _ = fljax(*SMALL, "--algorithm", "fedavg", "--memory", "1000")
    assert "do not fit" in out


def test_devices_are_those_of_the_run_whose_clients_change(refused, monkeypatch):
    """An absent client is not tested, which is less work."""
    n_test = []

    def count_examples(model, federation, *arguments, **options):
        n_test.append(int(np.asarray(federation.test.size).sum()))
        raise ValueError("this is all that is asked")

    monkeypatch.setattr(assemble, "enough_devices", count_examples)
    for command in ("plan", "run"):
        refused(command, *SMALL[1:], "--rounds", "2", "--drift", "arrive", "--drift.start", "1")
    assert n_test[0] == n_test[1] < 360


def test_help_and_errors(fljax, refused):
    help_text = " ".join(fljax("plan", "--help")[1].split())
    assert "--memory" in help_text
    assert "results folder whose settings and devices are used; nothing is written" in help_text
    assert "memory" in refused("plan", "--memory", "much")
    assert "memory=-1" in refused(*SMALL, "--memory", "-1")
    for memory in ("inf", "nan", "1e400"):
        assert f"--memory {memory}: give a finite number" in refused("plan", "--memory", memory)


def test_a_quick_plan_compiles_nothing_and_keeps_to_what_is_measured(fljax, monkeypatch):
    """Of what both tell the same; its seconds are a forecast, and marked."""
    rounds = ("--rounds", "50")
    measured = {line.split()[0]: line.split() for line in fljax(*SMALL, *rounds)[1].splitlines()[-2:]}

    def fail_if_compiled(*arguments):
        raise AssertionError("something was compiled")

    monkeypatch.setattr(Compiler, "program", fail_if_compiled)
    status, out, _ = fljax(*SMALL, *rounds, "--quick")
    assert status == 0
    quick = {line.split()[0]: line.split() for line in out.splitlines()[-2:]}
    assert [*quick] == [*measured] == ["fedavg", "ditto"]
    for name, row in quick.items():
        assert row[:3] == measured[name][:3]  # what is kept
        assert row[3:5] == ["-", "-"]
        assert row[5] == measured[name][6]  # the arithmetic; that of the other row stands behind a size of two words
        assert row[6] == "-"
        assert row[7].startswith("~")
        assert row[8].startswith("~")
        assert row[10].startswith("~")
