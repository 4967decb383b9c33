"""What the host keeps of a run of many rounds and clients: no more than its metrics."""

import tracemalloc

import chex
import numpy as np
import pytest

import fljax
from fljax.files import read_arrays, save_arrays
from fljax.run import chunk, record
from fljax.run.progress import SilentProgress
from fljax.run.together import Runs, train_together
from fljax.run.train import train


class Recorder(SilentProgress):
    """A logger that keeps what it is told."""

    def __init__(self):
        self.chunks = []

    def chunk(self, done, metrics, rounds_per_second):
        self.chunks.append(metrics)


def bytes_held(array):
    """Bytes that an array keeps in memory, those that it is a view of among them."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


@pytest.mark.slow
def test_the_rounds_of_a_chunk_hold_no_more_than_themselves(averaging, federation, key):
    """A view of one round of a chunk would hold what the program has room for, 64 rounds."""
    progress = Recorder()
    run = train(averaging, fljax.fedavg.Hyper(), federation, key, 3, progress=progress, seconds_per_chunk=1e-9)
    assert [len(metrics["ids"]) for metrics in progress.chunks] == [1, 1, 1]  # the logger's own are left to it
    assert all(bytes_held(value) == value.nbytes for metrics in progress.chunks for value in metrics.values())
    concatenated = {name: np.concatenate([chunk[name] for chunk in progress.chunks]) for name in run.metrics}
    chex.assert_trees_all_equal(concatenated, run.metrics)


def test_rounds_that_are_in_the_folder_are_not_kept_beside_it(averaging, federation, key, tmp_path):
    n_parts = []

    class Watched(record.Record):
        def finished(self, state, rate):
            n_parts.append(len(self.parts))
            return super().finished(state, rate)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fljax.run.train.Record", Watched)
        for folder in (tmp_path, None):
            train(averaging, fljax.fedavg.Hyper(), federation, key, 3, folder=folder, seconds_per_chunk=1e-9)
    assert n_parts == [1, 3]


@pytest.mark.slow
def test_a_chunk_of_many_clients_has_fewer_rounds(averaging, federation, key, tmp_path):
    assert [chunk.most_rounds(n) for n in (1, 1 << 16, 1 << 17, 1 << 20, 1 << 23)] == [64, 64, 32, 4, 1]
    n_clients, hyper, progress = len(federation.train.size), fljax.fedavg.Hyper(), Recorder()
    expected = train(averaging, hyper, federation, key, 7)
    runs = Runs(averaging, hyper, [federation] * 2, [key] * 2, 7, [tmp_path / "0", tmp_path / "1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "MOST_ENTRIES", 2 * n_clients)
        chunked = train(averaging, hyper, federation, key, 7, seconds_per_chunk=60, progress=progress)
        together = train_together(runs)
    assert [len(metrics["ids"]) for metrics in progress.chunks] == [1, 1, 2, 2, 1]
    chex.assert_trees_all_equal((chunked.state, chunked.metrics), (expected.state, expected.metrics))
    for run in together:
        chex.assert_trees_all_close(run.metrics, expected.metrics, rtol=1e-5, atol=1e-6)


def test_arrays_are_held_once_while_they_are_written(tmp_path):
    arrays = {name: np.arange(1 << 19, dtype=np.float32) for name in "abcd"}
    save_arrays(tmp_path / "x.npz", {"a": np.zeros(2)})
    tracemalloc.start()
    crc = save_arrays(tmp_path / "x.npz", arrays)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * sum(array.nbytes for array in arrays.values())
    loaded, loaded_crc = read_arrays(tmp_path / "x.npz", "")
    assert loaded_crc == crc
    chex.assert_trees_all_equal(loaded, arrays)


def test_clients_of_rounds_that_were_not_tested_take_no_place_on_the_disk(tmp_path):
    tests = np.full((50, 4000), np.nan, np.float32)
    tests[[9, 49]] = np.random.default_rng(0).random((2, 4000))
    arrays = {"client_loss": tests, "ids": np.arange(50)}
    save_arrays(tmp_path / "x.npz", arrays)
    assert (tmp_path / "x.npz").stat().st_size < 1.2 * tests[[9, 49]].nbytes  # 25 times that before
    np.testing.assert_equal(read_arrays(tmp_path / "x.npz", "")[0], arrays)
    with np.load(tmp_path / "x.npz") as loaded:  # as anybody else reads it
        np.testing.assert_equal(dict(loaded), arrays)
