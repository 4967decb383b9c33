"""Processes that are killed, asked to end, refused room or joined by a second one: what is left is gone on with.

The 100 SIGKILLs come in five pieces, each with runs of its own; ``FLJAX_CASES`` sets how many a piece has.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from flax import serialization

from fljax.run.checkpoint import read_rounds, rounds_done
from fljax.run.writer import LOCK
from tests.robustness import worker
from tests.robustness.tally import Tally, cases

pytestmark = pytest.mark.slow
ROUNDS = 60
PIECES, KILLS = 5, 20


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def start(place):
    """(folder, most bytes a file) -> the process of a run."""

    def begin(folder, most=None, rounds=ROUNDS):
        words = [str(folder), str(place / "cache"), str(rounds), *([] if most is None else [str(most)])]
        command = [sys.executable, "-m", "tests.robustness.worker", *words]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    return begin


@pytest.fixture(scope="module")
def whole(place, start):
    """The folder of a run that nobody disturbed."""
    process = start(place / "whole")
    assert process.communicate()[1] == ""
    return place / "whole"


def content(folder):
    """All that a run leaves, but how its rounds were put in files."""
    last = serialization.msgpack_restore((folder / "checkpoints/last.msgpack").read_bytes())
    state = [leaf.tobytes() for leaf in jax.tree.leaves(last["state"])]
    rounds = {name: value.tobytes() for name, value in read_rounds(folder).items()}
    return rounds, (folder / "metrics.jsonl").read_bytes(), state, last["round"], last["identity"], last["history"]


def finish(start, folder):
    _, said = (process := start(folder)).communicate()
    if process.returncode:
        raise ValueError(f"{folder}: {said}\nended with {process.returncode}")  # two lines: a fault
    return folder


def until_it_holds(folder, process):
    """Waits until the process has the folder's lock: it has been started, and begins to read and write."""
    lock = folder / LOCK
    while process.exitcode is None and not (lock.exists() and lock.read_text().startswith(f"{process.pid} ")):
        time.sleep(0.005)


@pytest.fixture(scope="module")
def fork(place):
    """folder -> the process of a run, which a server that has imported everything forks off before JAX begins."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker.__name__])

    def begin(folder):
        process = context.Process(target=worker.run, args=(str(folder), str(place / "cache"), str(ROUNDS)))
        process.start()
        return process

    return begin


@pytest.fixture(scope="module")
def seconds(place, fork, whole):
    """How long a run takes from the lock on, its compiled programs being kept."""
    process = fork(place / "timed")
    until_it_holds(place / "timed", process)
    began = time.perf_counter()
    process.join()
    assert content(place / "timed") == content(whole)
    return time.perf_counter() - began


def ended(fork, folder):
    (process := fork(folder)).join()
    if process.exitcode:
        raise ValueError(f"{folder}:\nended with {process.exitcode}")  # two lines: a fault
    return content(folder)


@pytest.mark.parametrize("piece", range(PIECES))
def test_killed_at_random_times_it_ends_bit_identically(place, fork, whole, seconds, capsys, piece):
    tally, rng, kills = Tally("ended after SIGKILLs"), np.random.default_rng(piece), cases(KILLS)
    folder, expected, begun = place / f"killed {piece}", content(whole), 0
    while begun < kills:
        process = fork(folder)
        until_it_holds(folder, process)
        since = time.perf_counter()
        process.join(rng.uniform(0, 1) * seconds)
        if process.exitcode is not None:  # other work on the machine has ended since it was timed
            seconds = min(seconds, time.perf_counter() - since)
        process.kill()
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        begun += killed
        if not killed or begun % 10 == 0 or begun == kills:  # ten kills, or it was faster: to its end, and afresh
            tally.attempt(f"{begun} kills", lambda: ended(fork, folder), lambda found: found == expected)
            shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\n{begun} SIGKILLs in {tally.tried} runs")
    tally.close(capsys)


@pytest.mark.parametrize("late", [0.6, 0.9])
def test_asked_to_end_it_keeps_what_it_has(place, start, whole, late, capsys):
    folder = place / f"asked {late}"
    process = start(folder, rounds=100_000)
    while rounds_done(folder) < 20 * late:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    rows = (folder / "metrics.jsonl").read_text().count("\n")
    assert rounds_done(folder) == rows == len(read_rounds(folder)["ids"])  # nothing is left to cut off


def test_a_full_disk_loses_nothing(place, start, whole, capsys):
    tally, folder, expected = Tally("disk full"), place / "full", content(whole)
    sizes = np.random.default_rng(0).integers(1, (whole / "metrics.jsonl").stat().st_size, size=cases(10)).tolist()
    for size in sizes:
        process = start(folder, most=size)
        said = process.communicate()[1]
        lines = [line for line in said.splitlines() if line.startswith("fljax: ")]
        assert process.returncode == 2, said[-2000:]
        assert len(lines) == 1, said[-2000:]
        assert str(folder) in lines[0]
        tally.attempt(f"{size} bytes", lambda: content(finish(start, folder)), lambda found: found == expected)
        shutil.rmtree(folder)
    tally.close(capsys)


def test_of_two_writers_the_second_is_refused(place, start, whole, capsys):
    tally, folder, expected = Tally("two writers"), place / "two", content(whole)
    for i in range(cases(5)):
        processes = [start(folder) for _ in range(2)]
        said = [process.communicate()[1] for process in processes]
        assert sorted(process.returncode for process in processes) in ([0, 2], [0, 0])
        refused = [text for text, process in zip(said, processes, strict=True) if process.returncode]
        assert all("is being written by process" in text and text.count("\n") == 1 for text in refused)
        tally.attempt(f"pair {i}", lambda: content(folder), lambda found: found == expected)
        shutil.rmtree(folder)
    tally.close(capsys)


def test_a_moved_folder_goes_on(place, start, whole, capsys):
    tally, folder, expected = Tally("moved"), place / "moved", content(whole)
    assert start(folder, rounds=30).communicate()[1] == ""
    moved = folder.rename(place / "to another place [x]")
    tally.attempt("moved", lambda: content(finish(start, moved)), lambda found: found == expected)
    tally.close(capsys)
