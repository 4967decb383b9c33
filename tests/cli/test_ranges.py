"""Numbers that no program can hold, or that a Hyper says are out of range: one line each, before anything is made."""

import warnings
from pathlib import Path

import pytest
from fljax.cli.ranges import _RANGE, MOST_FLOAT, check_number
from jax.errors import JaxRuntimeError

from fljax.algorithms import ALGORITHMS, method_named
from fljax.cli import correctable
from fljax.cli.job import algorithm_section, read_job

HUGE = "99999999999"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "99999999999999999999"], "--seed 99999999999999999999: choose at most 4294967295"),
        (["--seed", "4294967296"], "--seed 4294967296: choose at most 4294967295"),
        (["--rounds", HUGE], f"--rounds {HUGE}: choose at most 2147483647"),
        (["--evaluate-every", HUGE], f"--evaluate-every {HUGE}: choose at most"),
        (["--new-client-rounds", HUGE], f"--new-client-rounds {HUGE}: choose at most"),
        (["--epochs", HUGE], f"--fedavg.epochs {HUGE}: choose at most"),
        (["--batch-size", HUGE], f"--fedavg.batch-size {HUGE}: choose at most"),
        (["--at-once", HUGE], f"--fedavg.at-once {HUGE}: choose at most"),
        (["--n-clients", HUGE], f"--partition.n-clients {HUGE}: choose at most"),
        (["--hidden", "8", HUGE], f"--model.hidden {HUGE}: choose at most"),
        (["--epochs", "1000000000"], "--fedavg.epochs 1000000000: of 7 batches each; choose at most 306783378"),
        (["--lr", "-1"], "--fedavg.lr -1.0: give a number > 0"),
        (["--lr", "0"], "--fedavg.lr 0.0: give a number > 0"),
        (["--lr", "nan"], "--fedavg.lr nan: nan is no number"),
        (["--lr", "1e39"], "--fedavg.lr 1e+39: float32 ends at 3.4e+38"),
        (["--momentum", "1"], "--fedavg.momentum 1.0: give a number in [0, 1)"),
        (["--lr-decay", "0"], "--fedavg.lr-decay 0.0: give a number in (0, 1]"),
        (["--algorithm", "ditto", "--lam", "-5"], "--ditto.lam -5.0: give a number >= 0"),
        (["--algorithm", "robust_cfl", "--trim", "0.9"], "--robust-cfl.trim 0.9: give a number in [0, 0.5]"),
        (["--algorithm", "dcpfl", "--warmup", "0"], "--dcpfl.warmup 0.0: give a number >= 1"),
        (["--algorithm", "fedprox+adam", "--tau", "0"], "--fedprox+adam.tau 0.0: give a number > 0"),
        (["--dtype", "foo"], "dtype='foo': choose"),
        (["--dtype", "float64"], "dtype='float64': choose"),
    ],
)
def test_what_no_program_holds_is_refused_in_one_line(refused, arguments, message):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert message in refused("run", "--algorithm", "fedavg", *arguments)
    assert not said
    assert not Path("results").exists()


def test_the_ends_of_ranges_are_inside():
    arguments = ["--algorithm", "robust_cfl", "--trim", "0.5", "--momentum", "0", "--lr-decay", "1", "--lr", "3e38"]
    numbers = read_job([*arguments, "--seed", "4294967295", "--rounds", "2147483647"]).settings["robust_cfl"]
    assert (numbers["trim"], numbers["momentum"], numbers["lr_decay"]) == (0.5, 0.0, 1.0)
    check_number("--x inf", float("inf"))
    check_number(f"--x {MOST_FLOAT}", MOST_FLOAT)


def test_a_partition_is_drawn_with_the_same_checks(refused):
    assert "seed=-1 is negative" in refused("data", "show", "--seed", "-1")
    assert "--partition.n-clients" in refused("data", "show", "--n-clients", HUGE)


@pytest.mark.parametrize("name", [*ALGORITHMS, "fedprox+momentum", "ditto+yogi"])
def test_defaults_lie_in_the_ranges_that_docstrings_state(name):
    section = algorithm_section(name)
    for field in method_named(name).hyper._fields:
        if section[field].default is not None:
            check_number(field, section[field].default, section[field].help)
    for field in {"lr", "lr_decay", "momentum", "server_lr"} & set(section):
        assert _RANGE.search(section[field].help), f"{name}.{field}: {section[field].help}"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OverflowError("int too large"), "a number is too large (int too large); choose a smaller one"),
        (MemoryError("Unable to allocate 7 TiB"), "out of memory (Unable to allocate 7 TiB); choose smaller batches"),
        (MemoryError(), "out of memory (no more is there)"),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nBuffers: 1"), "g 9 bytes); choose"),
        (ValueError("lr=0"), "lr=0"),
    ],
)
def test_what_other_settings_avoid_is_said(fljax, monkeypatch, error, message):
    def fail(*_):
        raise error

    monkeypatch.setattr("fljax.cli.command", lambda name: fail)
    status, out, err = fljax("run")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_fault_of_the_program_keeps_its_traceback(fljax, monkeypatch):
    assert correctable(JaxRuntimeError("INTERNAL: x")) is None

    def fail(*_):
        raise JaxRuntimeError("INTERNAL: x")

    monkeypatch.setattr("fljax.cli.command", lambda name: fail)
    with pytest.raises(JaxRuntimeError, match="INTERNAL"):
        fljax("run")


def test_a_file_that_is_not_text_is_named(refused):
    Path("x.toml").write_bytes(b'dataset = "digits\xff"')
    assert "x.toml is not TOML: not UTF-8 text" in refused("run", "--config", "x.toml")
    Path("x").mkdir()
    Path("x.toml").rename("x/config.toml")
    assert "x/config.toml is not TOML" in refused("run", "--folder", "x")
