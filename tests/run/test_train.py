"""The host loop: files, and a resume that is bit-identical however often the run is killed."""

import json
import time

import chex
import jax
import numpy as np
import pytest

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.files import write_atomically
from fljax.folder.checkpoint import read_rounds, rounds_done
from fljax.folder.round_seconds import spent_of
from fljax.models import logistic_regression
from fljax.run.progress import SilentProgress
from fljax.run.simulate import simulate
from fljax.run.train import train
from fljax.types import Work

ROUNDS = 12


def test_equals_simulate(key, averaging, federation):
    options = {"participation": 0.5, "dropout": 0.2, "evaluate_every": 5}
    run = train(averaging, fljax.fedavg.Hyper(), federation, key, ROUNDS, **options)
    state, metrics = simulate(averaging, fljax.fedavg.Hyper(), federation, key, ROUNDS, **options)
    chex.assert_trees_all_close(run.state, state, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(run.metrics, jax.device_get(metrics), rtol=1e-4, atol=1e-6)  # 12 rounds of rounding


def test_files(key, averaging, federation, tmp_path):
    run = train(averaging, fljax.fedavg.Hyper(), federation, key, ROUNDS, folder=tmp_path, evaluate_every=5)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(ROUNDS))
    assert ["accuracy_macro" in row for row in rows] == [(r + 1) % 5 == 0 or r == ROUNDS - 1 for r in range(ROUNDS)]
    np.testing.assert_allclose(rows[-1]["accuracy_macro"], run.metrics["accuracy_macro"][-1])
    clients = np.load(tmp_path / "clients.npz")
    np.testing.assert_array_equal(clients["client_accuracy"], run.metrics["client_accuracy"][-1])
    chex.assert_trees_all_equal(read_rounds(tmp_path), run.metrics)
    assert not list(tmp_path.rglob("*.part"))


def test_the_clients_last_results_are_those_of_the_last_round_after_any_end(key, averaging, federation, tmp_path):
    class Fails(SilentProgress):
        def stop(self):
            raise KeyboardInterrupt  # after the last checkpoint, before the clients' results are written

    arguments = averaging, fljax.fedavg.Hyper(lr=0.3), federation, key
    train(*arguments, 1, folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(*arguments, 4, folder=tmp_path, progress=Fails())
    run = train(*arguments, 4, folder=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "clients.npz")["client_loss"], run.metrics["client_loss"][-1])


def test_a_run_that_fails_leaves_no_checkpoint_half_written(key, averaging, federation, tmp_path, monkeypatch):
    class Fails(SilentProgress):
        def chunk(self, done, metrics, rounds_per_second):
            if done > 1:
                raise KeyboardInterrupt

    def write_slowly(*arguments, **options):
        time.sleep(0.3)
        write_atomically(*arguments, **options)

    monkeypatch.setattr("fljax.folder.checkpoint.write_atomically", write_slowly)
    options = {"folder": tmp_path, "seconds_per_chunk": 0.0, "seconds_per_checkpoint": 0.0}
    with pytest.raises(KeyboardInterrupt):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 3, progress=Fails(), **options)
    assert rounds_done(tmp_path) == 1


@pytest.mark.parametrize("stops", [(5,), (1, 2, 11)])
def test_an_interrupted_run_goes_on_bit_identically(key, averaging, federation, tmp_path, stops):
    class Stop(Exception):
        pass

    class StopAfter:
        def __init__(self, round):
            self.round, self.stopped = round, False

        def prepare(self): ...

        def start(self, done, n_rounds): ...
        def stop(self):
            self.stopped = True

        def chunk(self, done, metrics, rounds_per_second):
            if done >= self.round:
                raise Stop

    def run(folder, progress=None):
        options = {"participation": 0.5, "dropout": 0.2, "seconds_per_checkpoint": 0.0, "seconds_per_chunk": 1e-3}
        return train(
            averaging, fljax.fedavg.Hyper(), federation, key, ROUNDS, folder=folder, progress=progress, **options
        )

    for stop in stops:
        progress = StopAfter(stop)
        with pytest.raises(Stop):
            run(tmp_path / "stopped", progress)
        assert progress.stopped  # or a live bar would stay on the screen
    resumed, expected = run(tmp_path / "stopped"), run(tmp_path / "whole")
    chex.assert_trees_all_equal(resumed.state, expected.state)
    chex.assert_trees_all_equal(resumed.metrics, expected.metrics)
    assert (tmp_path / "stopped/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_a_finished_run_is_returned_as_it_is(key, averaging, federation, tmp_path):
    first = train(averaging, fljax.fedavg.Hyper(), federation, key, 3, folder=tmp_path)
    reopened = train(averaging, fljax.fedavg.Hyper(), federation, key, 3, folder=tmp_path)
    chex.assert_trees_all_equal(first.state, reopened.state)
    chex.assert_trees_all_equal(first.metrics, reopened.metrics)


def test_the_time_of_a_run_is_that_of_all_calls_that_made_rounds(key, averaging, federation, tmp_path):
    def run(n_rounds):
        return train(averaging, fljax.fedavg.Hyper(), federation, key, n_rounds, folder=tmp_path, compiled_ahead=5.0)

    first, reopened, longer = run(3), run(3), run(4)
    assert first.seconds > 0
    assert first.compile_seconds >= 5
    assert (reopened.seconds, reopened.compile_seconds) == (first.seconds, first.compile_seconds)
    assert longer.seconds > first.seconds
    assert longer.compile_seconds >= first.compile_seconds + 5
    file = tmp_path / "spent.json"
    content = file.read_text()
    for damaged in (content.replace("5.", "6.", 1), "[", "{}", '{"rounds": 1}'):
        file.write_text(damaged)
        assert np.isnan(run(4).seconds)
    file.unlink()  # of a folder that an older version began
    assert all(np.isnan((result.seconds, result.compile_seconds)).all() for result in (run(4), run(5), run(5)))


def test_a_run_that_was_stopped_knows_the_time_of_its_rounds(averaging, federation, key, tmp_path):
    hyper, often = fljax.fedavg.Hyper(), {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 0.0}
    first = train(averaging, hyper, federation, key, 4, folder=tmp_path, **often)
    assert [round for round, *_ in json.loads((tmp_path / "spent.json").read_text())["rounds"]] == [2, 3, 4]
    (tmp_path / "checkpoints" / "last.msgpack").unlink()
    spent = spent_of(tmp_path, 3)
    resumed = train(averaging, hyper, federation, key, 4, folder=tmp_path)
    assert 0 < spent.seconds < min(first.seconds, resumed.seconds)
    assert 0 < spent.compile_seconds < resumed.compile_seconds


def test_another_run_in_the_folder_is_refused(key, averaging, federation, tmp_path):
    model = logistic_regression((4, 4, 1), 4)
    train(averaging, fljax.fedavg.Hyper(lr=0.1), federation, key, 2, folder=tmp_path)
    with pytest.raises(ValueError, match=r"holds a run with hyper.lr=0.1, not 0.2"):
        train(averaging, fljax.fedavg.Hyper(lr=0.2), federation, key, 2, folder=tmp_path)
    two_epochs = fedavg(model, Work(epochs=2, batch_size=8))
    uniform = fedavg(model, Work(epochs=1, batch_size=8), weighting="uniform")
    with pytest.raises(ValueError, match=r"holds a run with work.epochs=1, not 2"):
        train(two_epochs, fljax.fedavg.Hyper(lr=0.1), federation, key, 2, folder=tmp_path)
    with pytest.raises(ValueError, match=r"holds a run with choice.weighting='size', not 'uniform'"):
        train(uniform, fljax.fedavg.Hyper(lr=0.1), federation, key, 2, folder=tmp_path)
    with pytest.raises(ValueError, match="key="):
        train(averaging, fljax.fedavg.Hyper(lr=0.1), federation, jax.random.key(1), 2, folder=tmp_path)


def test_rounds_whose_checkpoints_are_gone_are_not_written_over(key, averaging, federation, tmp_path, no_programs):
    """Nothing says then whose rounds they are; a run that was stopped before its first checkpoint begins again."""
    hyper, options = fljax.fedavg.Hyper(lr=0.1), {"seconds_per_chunk": 1e-9, "seconds_per_checkpoint": 1e9}
    expected = train(averaging, hyper, federation, key, 3, folder=tmp_path, **options)
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    with no_programs():
        with pytest.raises(
            ValueError, match=r"holds 3 rounds, but .*checkpoints, which identifies their run, is missi"
        ):
            train(averaging, fljax.fedavg.Hyper(lr=0.2), federation, key, 3, folder=tmp_path)
        (tmp_path / "checkpoints").mkdir()
        with pytest.raises(ValueError, match=r"n_rounds=2 is below the 3 rounds"):
            train(averaging, hyper, federation, key, 2, folder=tmp_path)
    chex.assert_trees_all_equal(read_rounds(tmp_path), expected.metrics)
    rerun = train(averaging, hyper, federation, key, 3, folder=tmp_path)
    chex.assert_trees_all_equal(rerun.metrics, expected.metrics)


def test_fewer_rounds_than_were_done_are_refused(key, averaging, federation, tmp_path, no_programs):
    train(averaging, fljax.fedavg.Hyper(), federation, key, 4, folder=tmp_path)
    with no_programs(), pytest.raises(ValueError, match=r"n_rounds=2 is below the 4 rounds .*choose n_rounds >= 4"):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 2, folder=tmp_path)
    assert len(read_rounds(tmp_path)["loss"]) == 4


def test_a_damaged_checkpoint_is_one_clear_line(key, averaging, federation, tmp_path):
    train(averaging, fljax.fedavg.Hyper(), federation, key, 2, folder=tmp_path)
    path = tmp_path / "checkpoints" / "last.msgpack"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        train(averaging, fljax.fedavg.Hyper(), federation, key, 2, folder=tmp_path)
