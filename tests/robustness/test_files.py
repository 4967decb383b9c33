"""Runs that are cut off at every single operation on a file, under clocks that jump, and on disks that take nothing.

In this process, so that every operation can be tried; `tests.robustness.test_kills` has the real signals.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import serialization

import fljax
from fljax.folder.checkpoint import read_rounds
from fljax.run.train import train
from tests.robustness.tally import Tally

ROUNDS = 4
OPERATIONS = ("open", "os.rename", "os.mkdir", "os.remove", "os.truncate")


class Cut(BaseException):
    """The process is no more."""


class Knife:
    """Ends the process, so to speak, at the n-th operation on a file in a folder; an audit hook, which stays."""

    folder, last, n_seen = "", 0, 0

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.folder or event not in OPERATIONS or self.folder not in str(arguments[0]):
            return
        self.n_seen += 1
        if 0 < self.last <= self.n_seen:  # and everything after it: the thread that syncs folders ends too
            raise Cut(event)

    @contextlib.contextmanager
    def at(self, folder: Path, n: int) -> Iterator[None]:
        self.folder, self.last, self.n_seen = str(folder), n, 0
        try:
            yield
        finally:
            self.folder = ""


@pytest.fixture(scope="module")
def knife():
    hook = Knife()
    sys.addaudithook(hook)
    return hook


@pytest.fixture
def run_in(averaging, federation):
    def run(folder, n_rounds=ROUNDS, **options):
        options = {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 0.0, "devices": jax.devices()[:1]} | options
        return train(averaging, fljax.fedavg.Hyper(), federation, jax.random.key(0), n_rounds, folder=folder, **options)

    return run


def contents_of(folder):
    """All that a run leaves."""
    last = serialization.msgpack_restore((folder / "checkpoints/last.msgpack").read_bytes())
    state = [leaf.tobytes() for leaf in jax.tree.leaves(last["state"])]
    rounds = {name: value.tobytes() for name, value in read_rounds(folder).items()}
    with np.load(folder / "clients.npz") as arrays:
        clients = {name: arrays[name].tobytes() for name in arrays.files}
    return rounds, (folder / "metrics.jsonl").read_bytes(), state, last["round"], last["identity"], clients


@pytest.fixture
def expected(run_in, tmp_path):
    run_in(tmp_path / "whole")
    return contents_of(tmp_path / "whole")


@pytest.mark.slow
def test_cut_off_at_every_operation_it_goes_on(run_in, expected, knife, tmp_path, capsys):
    tally, n = Tally("cut at file operations"), 0
    while True:
        n, folder = n + 1, tmp_path / f"cut{n}"
        try:
            with knife.at(folder, n):
                run_in(folder)
        except Cut:
            pass
        else:
            break  # there are no more operations than that

        def resume(folder: Path = folder) -> tuple:
            run_in(folder)
            return contents_of(folder)

        tally.attempt(f"operation {n}", resume, lambda contents: contents == expected)
        shutil.rmtree(folder)
    assert tally.tried > 50
    assert not tally.refused
    tally.close(capsys)


def test_the_clock_changes_nothing(run_in, expected, tmp_path, monkeypatch, capsys):
    tally, clock_now, rng = Tally("clock jumps"), time.perf_counter, np.random.default_rng(0)
    clocks = {
        "stands still": lambda: 5.0,
        "runs backwards": lambda: -clock_now(),
        "jumps by hours": lambda: clock_now() + rng.normal(0, 1e4),
        "is years ahead": lambda: clock_now() + 1e9,
    }
    for name, clock in clocks.items():
        with monkeypatch.context() as patch:
            for function in ("perf_counter", "time"):
                patch.setattr(f"fljax.run.loop.time.{function}", clock)
            folder = tmp_path / name
            tally.attempt(
                name,
                lambda folder=folder: (run_in(folder, 2), run_in(folder), contents_of(folder))[-1],
                lambda contents: contents == expected,
            )
    tally.close(capsys)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write under ``folder``, not even whoever may write everywhere."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
            path.chmod(0o755)


@pytest.fixture
def disk():
    """A folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="fljax-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.filterwarnings("ignore")  # of a cache of compiled programs that cannot be written
def test_on_a_read_only_disk(run_in, expected, disk, capsys):
    tally = Tally("read-only")
    run_in(disk / "finished")
    run_in(disk / "begun", 2)
    times = {path: path.stat().st_mtime_ns for path in disk.rglob("*")}
    with read_only(disk):
        tally.attempt(
            "finished",
            lambda: (run_in(disk / "finished"), contents_of(disk / "finished"))[1],
            lambda contents: contents == expected,
        )
        tally.attempt("begun", lambda: run_in(disk / "begun"), lambda run: False, disk / "begun")
        tally.attempt("new", lambda: run_in(disk / "new"), lambda run: False, disk / "new")
    assert (tally.clean, tally.refused) == (1, 2)
    assert {path: path.stat().st_mtime_ns for path in disk.rglob("*")} == times
    tally.close(capsys)
