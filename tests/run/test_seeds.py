"""Several runs as one program equal the runs one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.data.padding import same_shapes
from fljax.devices.programs import Compiler
from fljax.rounds.named_samplings import sampling_of
from fljax.run import chunk
from fljax.run.one_round import as_traced
from fljax.run.progress import SilentProgress
from fljax.run.seeds import Inputs, Setting, advance_all, begin_all, joined, stacked
from fljax.run.together import Runs, train_together
from fljax.run.train import train
from tests.slow import slow

pytestmark = pytest.mark.usefixtures("one_device")

ALGORITHM = fljax.fedavg(fljax.MODELS["logistic_regression"]((8, 8, 1)), fljax.Work(1, 32))
HYPER, ROUNDS = fljax.fedavg.Hyper(lr=0.1), 3
KEYS = [jax.random.key(seed) for seed in range(3)]


@pytest.fixture(scope="module")
def federations():
    drawn_apart = (fljax.PARTITIONS["dirichlet"](*fljax.load("digits"), 4, seed=seed, beta=0.5) for seed in range(3))
    return same_shapes(list(drawn_apart))


@pytest.fixture(scope="module")
def single_runs(federations):
    """Each run by itself, at full participation of three of four clients a round."""
    runs = zip(federations, KEYS, strict=True)
    return [fljax.simulate(ALGORITHM, HYPER, federation, key, ROUNDS, participation=0.75) for federation, key in runs]


def test_what_federations_have_in_common_is_held_once(federations):
    structure, shared, not_shared = stacked(federations)
    assert {leaf.shape for leaf in shared if leaf is not None} == {(1437, 8, 8, 1), (1437,), (360, 8, 8, 1), (360,)}
    for i, federation in enumerate(federations):
        rebuilt = joined(structure, shared, [None if leaf is None else leaf[i] for leaf in not_shared])
        jax.tree.map(np.testing.assert_array_equal, rebuilt, federation)
        assert rebuilt.train.pool.x is federation.train.pool.x


def test_a_program_keeps_metrics_for_the_clients_of_all_seeds_together(federations, monkeypatch):
    monkeypatch.setattr(chunk, "MOST_ENTRIES", 60)  # five rounds of three seeds of four clients
    structure, shared, not_shared = stacked(federations)
    setting = Setting(ALGORITHM, sampling_of(None, 0.75).of(4), structure)
    inputs = Inputs(as_traced(HYPER), shared, not_shared, jnp.stack(KEYS), None, jnp.int32(1), jnp.int32(ROUNDS))
    states = jax.eval_shape(lambda: begin_all.__wrapped__(setting, inputs))
    _, metrics = jax.eval_shape(
        lambda states: advance_all.__wrapped__(setting, inputs, states, jnp.int32(0), jnp.int32(ROUNDS)), states
    )
    assert metrics["client_loss"].shape == (5, 3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_runs_in_one_program_are_the_runs(federations, single_runs, at_once):
    """One after another as on a CPU, and two and one side by side as on an accelerator."""
    structure, shared, not_shared = stacked(federations)
    setting = Setting(ALGORITHM, sampling_of(None, 0.75).of(4), structure, at_once)
    inputs = Inputs(as_traced(HYPER), shared, not_shared, jnp.stack(KEYS), None, jnp.int32(1), jnp.int32(ROUNDS))
    states, metrics = advance_all(setting, inputs, begin_all(setting, inputs), jnp.int32(0), jnp.int32(ROUNDS))
    for i, (state, expected) in enumerate(single_runs):
        for name in ("client_accuracy", "client_loss", "loss", "ids"):
            np.testing.assert_allclose(metrics[name][:ROUNDS, i], expected[name], rtol=1e-5, atol=1e-6)
        row = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), row, state)


@pytest.mark.parametrize("how_begun", ["together", *slow("one of them")])
def test_each_run_goes_on_from_where_it_stands(federations, single_runs, tmp_path, how_begun, monkeypatch):
    """Both were begun together, or one by `train` and the other not; afterwards `train` finds its own finished."""
    compile_program = Compiler.program
    monkeypatch.setattr(
        Compiler, "program", lambda self, *arguments: compile_program(self, *arguments)._replace(seconds=8.0)
    )
    folders, sampling = [tmp_path / "a", tmp_path / "b"], fljax.rounds.uniform(0.75)
    runs = Runs(ALGORITHM, HYPER, federations[:2], KEYS[:2], ROUNDS, folders, sampling, compile="full")
    if how_begun == "together":
        train_together(runs._replace(n_rounds=1))
    else:
        train(ALGORITHM, HYPER, federations[0], KEYS[0], 1, folder=folders[0], sampling=sampling, compile="full")
    for run, (state, expected) in zip(train_together(runs), single_runs, strict=False):
        assert run.metrics["ids"].shape == (ROUNDS, 3)
        if how_begun == "together":  # half of two programs' seconds, in each of two calls
            assert run.compile_seconds == 16.0
        for name in ("client_accuracy", "client_loss", "loss", "ids"):
            np.testing.assert_allclose(run.metrics[name], expected[name], rtol=1e-5, atol=1e-6)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), run.state, state)
    reopened = train(
        ALGORITHM, HYPER, federations[1], KEYS[1], ROUNDS, folder=folders[1], sampling=sampling, compile="full"
    )
    np.testing.assert_allclose(reopened.metrics["client_loss"], single_runs[1][1]["client_loss"], rtol=1e-5)
    assert len((folders[1] / "metrics.jsonl").read_text().splitlines()) == ROUNDS


@pytest.mark.slow
def test_a_run_beside_a_finished_one_ends_with_its_own_state(federations, tmp_path):
    """It reaches the round at which the other stood from the beginning. Of the two only one has a bar."""
    starts = []

    class Recorder(SilentProgress):
        def start(self, done, n_rounds):
            starts.append((done, n_rounds))

    folders = [tmp_path / "a", tmp_path / "b"]
    sampling = fljax.rounds.uniform(0.75)
    runs = Runs(ALGORITHM, HYPER, federations[:2], KEYS[:2], 2, folders, sampling, compile="full")
    train(ALGORITHM, HYPER, federations[0], KEYS[0], 2, folder=folders[0], sampling=sampling, compile="full")
    first, reopened = train_together(runs, Recorder()), train_together(runs, Recorder())
    for run, reopened_run in zip(first, reopened, strict=True):  # as read from its checkpoint
        jax.tree.map(np.testing.assert_array_equal, run.state, reopened_run.state)
    assert starts == [(0, 2), (2, 2)]  # at last both are finished
