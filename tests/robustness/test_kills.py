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

from fljax.folder.checkpoint import read_rounds, rounds_done
from fljax.folder.writer import LOCK
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

    def start_run(folder, most_bytes=None, rounds=ROUNDS):
        arguments = [str(folder), str(place / "cache"), str(rounds), *([] if most_bytes is None else [str(most_bytes)])]
        command = [sys.executable, "-m", "tests.robustness.worker", *arguments]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    return start_run


@pytest.fixture(scope="module")
def undisturbed(place, start):
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
    _, err = (process := start(folder)).communicate()
    if process.returncode:
        raise ValueError(f"{folder}: {err}\nended with {process.returncode}")  # two lines: a fault
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

    def fork_run(folder):
        process = context.Process(target=worker.run, args=(str(folder), str(place / "cache"), str(ROUNDS)))
        process.start()
        return process

    return fork_run


@pytest.fixture(scope="module")
def seconds(place, fork, undisturbed):
    """How long a run takes from the lock on, its compiled programs being kept."""
    process = fork(place / "timed")
    until_it_holds(place / "timed", process)
    begin = time.perf_counter()
    process.join()
    assert content(place / "timed") == content(undisturbed)
    return time.perf_counter() - begin


def run_to_end(fork, folder):
    (process := fork(folder)).join()
    if process.exitcode:
        raise ValueError(f"{folder}:\nended with {process.exitcode}")  # two lines: a fault
    return content(folder)


@pytest.mark.parametrize("piece", range(PIECES))
def test_killed_at_random_times_it_ends_bit_identically(place, fork, undisturbed, seconds, capsys, piece):
    tally, rng, kills = Tally("ended after SIGKILLs"), np.random.default_rng(piece), cases(KILLS)
    folder, expected, n_killed = place / f"killed {piece}", content(undisturbed), 0
    while n_killed < kills:
        process = fork(folder)
        until_it_holds(folder, process)
        begin = time.perf_counter()
        process.join(rng.uniform(0, 1) * seconds)
        if process.exitcode is not None:  # other work on the machine has ended since it was timed
            seconds = min(seconds, time.perf_counter() - begin)
        process.kill()
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        n_killed += killed
        # After ten kills, or if it was faster, it runs to its end, and the next begins afresh.
        if not killed or n_killed % 10 == 0 or n_killed == kills:
            tally.attempt(f"{n_killed} kills", lambda: run_to_end(fork, folder), lambda contents: contents == expected)
            shutil.rmtree(folder)
    with capsys.disabled():
        print(f"\n{n_killed} SIGKILLs in {tally.tried} runs")
    tally.close(capsys)


@pytest.mark.parametrize("part", [0.6, 0.9])
def test_asked_to_end_it_keeps_what_it_has(place, start, undisturbed, part, capsys):
    folder = place / f"asked {part}"
    process = start(folder, rounds=100_000)
    while rounds_done(folder) < 20 * part:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    rows = (folder / "metrics.jsonl").read_text().count("\n")
    assert rounds_done(folder) == rows == len(read_rounds(folder)["ids"])  # nothing is left to cut off


def test_a_full_disk_loses_nothing(place, start, undisturbed, capsys):
    tally, folder, expected = Tally("disk full"), place / "full", content(undisturbed)
    sizes = (
        np.random.default_rng(0).integers(1, (undisturbed / "metrics.jsonl").stat().st_size, size=cases(10)).tolist()
    )
    for size in sizes:
        process = start(folder, most_bytes=size)
        err = process.communicate()[1]
        lines = [line for line in err.splitlines() if line.startswith("fljax: ")]
        assert process.returncode == 2, err[-2000:]
        assert len(lines) == 1, err[-2000:]
        assert str(folder) in lines[0]
        tally.attempt(f"{size} bytes", lambda: content(finish(start, folder)), lambda contents: contents == expected)
        shutil.rmtree(folder)
    tally.close(capsys)


def test_of_two_writers_the_second_is_refused(place, start, undisturbed, capsys):
    tally, folder, expected = Tally("two writers"), place / "two", content(undisturbed)
    for i in range(cases(5)):
        processes = [start(folder) for _ in range(2)]
        errors = [process.communicate()[1] for process in processes]
        assert sorted(process.returncode for process in processes) in ([0, 2], [0, 0])
        messages = [text for text, process in zip(errors, processes, strict=True) if process.returncode]
        assert all("is being written by process" in text and text.count("\n") == 1 for text in messages)
        tally.attempt(f"pair {i}", lambda: content(folder), lambda contents: contents == expected)
        shutil.rmtree(folder)
    tally.close(capsys)


def test_a_moved_folder_goes_on(place, start, undisturbed, capsys):
    tally, folder, expected = Tally("moved"), place / "moved", content(undisturbed)
    assert start(folder, rounds=30).communicate()[1] == ""
    new_folder = folder.rename(place / "to another place [x]")
    tally.attempt("moved", lambda: content(finish(start, new_folder)), lambda contents: contents == expected)
    tally.close(capsys)
