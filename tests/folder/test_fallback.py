"""A damaged checkpoint, or damage before it: the one before is gone on from, bit for bit; and what is never noticed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import chex
import jax
import numpy as np
import pytest

import fljax
from fljax.folder import checkpoint, resume, rounds, surroundings
from fljax.folder.checkpoint import NAMES, read_rounds, rounds_done, standing_of
from fljax.run.progress import SilentProgress
from fljax.run.train import train

pytestmark = pytest.mark.usefixtures("one_device")

EVERY_ROUND = {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 0.0}
LAST, BEFORE = (f"checkpoints/{name}" for name in NAMES)


@pytest.fixture(scope="module")
def finished_run(averaging, federation, tmp_path_factory):
    """A run of four rounds in as many chunks and checkpoints."""
    folder = tmp_path_factory.mktemp("finished")
    run = train(averaging, fljax.fedavg.Hyper(), federation, jax.random.key(0), 4, folder=folder, **EVERY_ROUND)
    return folder, run


@pytest.fixture
def folder(finished_run, tmp_path):
    return shutil.copytree(finished_run[0], tmp_path / "run")


@pytest.fixture
def go_on(key, averaging, federation, folder):
    return lambda n_rounds=4, **options: train(
        averaging, fljax.fedavg.Hyper(), federation, key, n_rounds, folder=folder, **EVERY_ROUND, **options
    )


def flip(path, byte, bit=0):
    content = bytearray(path.read_bytes())
    content[byte] ^= 1 << bit
    path.write_bytes(content)


def test_two_checkpoints_are_kept(folder):
    assert sorted(path.name for path in folder.glob("checkpoints/*")) == sorted(NAMES)
    assert [checkpoint._content(folder / name)["round"] for name in (LAST, BEFORE)] == [4, 3]
    assert rounds_done(folder) == 4


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        (LAST, 0.5, "last.msgpack is not a whole checkpoint"),
        ("metrics.jsonl", 0.99, "metrics.jsonl has changed since it was written"),
        ("rounds/00000003.npz", 0.5, "00000003.npz cannot be read"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_damage_after_the_last_but_one_is_computed_again(go_on, folder, finished_run, name, place, message):
    flip(folder / name, int(place * (folder / name).stat().st_size))
    with pytest.warns(UserWarning, match=rf"{message}.*resuming from last-1.msgpack, after 3 rounds"):
        run = go_on()
    chex.assert_trees_all_equal(run.state, finished_run[1].state)
    chex.assert_trees_all_equal(run.metrics, finished_run[1].metrics)
    for path in ("metrics.jsonl", "rounds/00000003.npz", LAST):
        assert (folder / path).read_bytes() == (finished_run[0] / path).read_bytes()
    go_on()  # whole again, without a warning


def test_damage_to_both_checkpoints_is_refused(go_on, folder):
    for name in (LAST, BEFORE):
        flip(folder / name, 40)
    with pytest.raises(ValueError, match=r"last.msgpack is not a whole checkpoint .* restore it from a copy") as error:
        go_on()
    assert "\n" not in str(error.value)
    assert rounds_done(folder) == 0
    assert len(read_rounds(folder)["ids"]) == 4  # nothing was cut off


def test_where_a_run_stands_is_read_once(go_on, monkeypatch):
    read_names, read_at_begin, read_content, begin = [], [], checkpoint._content, resume.begin

    def begin_counted(*arguments):
        n_read = len(read_names)
        standing = begin(*arguments)
        read_at_begin.extend(read_names[n_read:])
        return standing

    monkeypatch.setattr(checkpoint, "_content", lambda path: read_names.append(path.name) or read_content(path))
    monkeypatch.setattr("fljax.run.train.begin", begin_counted)
    go_on(6)
    assert read_at_begin == ["last.msgpack"]


def test_killed_between_the_two_renames_of_a_checkpoint_it_goes_on(go_on, folder, finished_run):
    (folder / LAST).rename(folder / BEFORE)
    chex.assert_trees_all_equal(go_on().state, finished_run[1].state)


@pytest.mark.parametrize("name", [LAST, "metrics.jsonl", "rounds/00000001.npz"])
def test_every_flipped_bit_is_noticed(averaging, federation, key, folder, name):
    (folder / BEFORE).unlink()
    state_shapes = jax.eval_shape(averaging.init, key, fljax.fedavg.Hyper(), federation.train)
    content = (folder / name).read_bytes()
    positions = np.random.default_rng(0).choice(8 * len(content), 150, replace=False)

    def read_rounds_of(standing):
        return rounds.read_whole(folder, standing.round, standing.written)

    assert checkpoint.newest(folder, state_shapes, read_rounds_of) is not None
    for position in positions.tolist():
        flip(folder / name, position // 8, position % 8)
        with pytest.raises(ValueError, match=name.rpartition("/")[2]):
            checkpoint.newest(folder, state_shapes, read_rounds_of)
        (folder / name).write_bytes(content)


def test_chunks_that_changed_places_are_noticed(go_on, folder):
    (folder / BEFORE).unlink()
    first, second = (folder / "rounds" / f"0000000{i}.npz" for i in (1, 2))
    first.rename(folder / "aside")
    second.rename(first)
    (folder / "aside").rename(second)
    with pytest.raises(ValueError, match="rounds has files of another run or in another order"):
        go_on()


@pytest.mark.parametrize(("name", "value"), [("jax", "0.0.1"), ("fljax", "9.9"), ("devices", 64), ("cores", 1000)])
def test_other_surroundings_are_named_and_can_be_forced(
    go_on, folder, finished_run, monkeypatch, no_programs, name, value
):
    current = surroundings.surroundings(1)
    monkeypatch.setattr("fljax.run.arguments.surroundings", lambda n_devices: current | {name: value})
    before = (folder / LAST).read_bytes()
    with (
        no_programs(),
        pytest.raises(ValueError, match=rf"made with {name} {current[name]!r} \(now {value!r}\).*force_resume"),
    ):
        go_on(5)
    assert (folder / LAST).read_bytes() == before
    go_on()  # finished: nothing is computed
    go_on(5, force_resume=True)
    history = standing_of(folder).history
    assert [(entry["round"], entry[name]) for entry in history] == [(0, current[name]), (4, value)]
    go_on(6)
    assert standing_of(folder).history == history


def test_sigterm_is_sent_on_after_the_checkpoint(go_on, folder, averaging, federation, key, monkeypatch):
    shutil.rmtree(folder)
    sent, old_handler = [], signal.signal(signal.SIGTERM, signal.SIG_DFL)

    class Ask(SilentProgress):
        def chunk(self, done, metrics, rounds_per_second):
            if done == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    def end(number):
        sent.append((number, signal.getsignal(number)))
        raise SystemExit

    monkeypatch.setattr(signal, "raise_signal", end)
    rarely = {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 1e9}
    try:
        with pytest.raises(SystemExit):
            train(averaging, fljax.fedavg.Hyper(), federation, key, 4, folder=folder, progress=Ask(), **rarely)
    finally:
        signal.signal(signal.SIGTERM, old_handler)
    assert sent == [(signal.SIGTERM, signal.SIG_DFL)]
    assert rounds_done(folder) == 3  # asked after the second; the third was finished and kept
    rows = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows == [0, 1, 2]


@pytest.mark.slow
def test_sigterm_ends_a_process_after_the_checkpoint(tmp_path, finished_run):
    script = """
import os, signal, sys
from fljax.algorithms.fedavg import fedavg
from fljax.data.synthetic import linear_groups
from fljax.models import logistic_regression
from fljax.numbers import LocalHyper
from fljax.types import Work
import jax
from fljax.run.train import train
class Ask:
    def prepare(self): ...

    def start(self, done, n_rounds): ...
    def stop(self): print("stopped", flush=True)
    def chunk(self, done, metrics, rate):
        if done == 2: os.kill(os.getpid(), signal.SIGTERM)
train(fedavg(logistic_regression((4, 4, 1), 4), Work(epochs=1, batch_size=8)), LocalHyper(),
      linear_groups(9, 3, examples=30, ragged=0.5), jax.random.key(0), 4, folder=sys.argv[1], seconds_per_chunk=1e-9,
      seconds_per_checkpoint=1e9, progress=Ask())
"""
    folder = tmp_path / "run"
    process = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGTERM, process.stderr
    assert process.stdout == "stopped\n"
    assert rounds_done(folder) == 3  # asked after the second; the third was finished and kept
    rows = [json.loads(line)["round"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert rows == [0, 1, 2]


def test_a_handler_that_comes_back_lets_the_run_go_on(go_on, folder, finished_run):
    shutil.rmtree(folder)
    received = []
    old_handler = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))

    class AskToStop:
        def prepare(self): ...

        def start(self, done, n_rounds): ...
        def stop(self): ...
        def chunk(self, done, metrics, rate):
            if done in (1, 4):
                signal.raise_signal(signal.SIGTERM)
                assert len(received) == (done == 4)

    try:
        handler = signal.getsignal(signal.SIGTERM)
        run = go_on(progress=AskToStop())
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, old_handler)
    assert received == [signal.SIGTERM] * 2
    chex.assert_trees_all_equal(run.state, finished_run[1].state)


class Interrupt(SilentProgress):
    """Presses Ctrl-C ``times`` after the second round."""

    def __init__(self, times):
        self.times, self.done = times, 0

    def chunk(self, done, metrics, rounds_per_second):
        self.done = done
        if done == 2:
            for _ in range(self.times):
                signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("times", "n_kept"), [(1, 3), (2, 0)])
def test_ctrl_c_ends_after_the_checkpoint_and_again_at_once(
    go_on, folder, finished_run, averaging, federation, key, with_ctrl_c, capsys, times, n_kept
):
    shutil.rmtree(folder)
    rarely = {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 1e9}
    with pytest.raises(KeyboardInterrupt):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 4, folder=folder, progress=Interrupt(times), **rarely)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "Ctrl-C again stops at once" in capsys.readouterr().err
    assert rounds_done(folder) == n_kept
    chex.assert_trees_all_equal(go_on().state, finished_run[1].state)


def test_without_a_folder_ctrl_c_stops_at_once(averaging, federation, key, with_ctrl_c):
    progress = Interrupt(1)
    with pytest.raises(KeyboardInterrupt):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 4, progress=progress, seconds_per_chunk=1e-9)
    assert progress.done == 2


def test_off_the_main_thread_signals_are_left_alone(go_on, finished_run):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(go_on()))
    thread.start()
    thread.join()
    chex.assert_trees_all_equal(runs[0].state, finished_run[1].state)
