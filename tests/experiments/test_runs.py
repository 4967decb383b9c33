"""The last round before a test, and runs in folders that are tested in their last rounds."""

import contextlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import comparison
import dcpfl_figures
import fedtsdp_methods
import fedtsdp_parts
import fesem_parts
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reporting
from comparison import everything
from dcpfl_figures import period, thresholds
from dcpfl_methods import converged, uplink_share
from fedtsdp_parts import figure9, groups, hopkins, sampling
from fesem_parts import hands
from final_round import with_everyone_once_more, with_own_layers_trained
from long_runs import resumed, rounds_done, seconds_a_round, seconds_taken
from reporting import Scale, data_here

import fljax
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedper import fedper
from fljax.data import partition
from fljax.data.datasets import load
from fljax.data.federation import on_host
from fljax.data.partition import PARTITIONS
from fljax.models import mlp
from fljax.run.progress import SilentProgress
from fljax.run.train import train
from fljax.types import Work

from .conftest import FOLDER

pytestmark = pytest.mark.usefixtures("one_device")

MODEL, WORK, LR = mlp((4, 4, 1), (6,), 3), Work(2, 8), 0.05


@pytest.fixture
def call_script(monkeypatch, tmp_path):
    """Calls a script with options; `InterruptedError` where an experiment would begin."""

    def stop():
        raise InterruptedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reporting, "data_here", stop)
    for name in ("use_all_cores", "cache_compilations"):
        monkeypatch.setattr(reporting, name, lambda: None)

    def call(script, *options):
        monkeypatch.setattr(sys, "argv", [script, *options])
        runpy.run_path(str(FOLDER / script), run_name="__main__")

    return call


SCRIPTS = sorted(file.name for file in FOLDER.glob("*.py") if re.search(r"import .*\bmain\b", file.read_text()))
NOTHING_TO_CHOOSE = {"fesem_parts.py", "normalisation.py", "slow_clients.py", "tuning.py"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_misspelt_name_ends_a_script_before_it_runs(script, call_script, capsys):
    with pytest.raises(SystemExit) as error:
        call_script(script, "--only", "FedAvgg")
    assert error.value.code == 2
    message = capsys.readouterr().err.splitlines()[-1]
    word = "nothing can be chosen here" if script in NOTHING_TO_CHOOSE else "choose of "
    assert f"--only FedAvgg: {word}" in message


@pytest.mark.parametrize(
    "words",
    [
        "comparison.py --only fedavg standalone fedtsdp",
        "dcpfl.py table2 --scale paper --only Mid FedAvg DC-PFL",
        "dcpfl.py ablation --only Comp",
        "dcpfl_figures.py thresholds --only 'NoDC 0.8' High",
        "dcpfl_parts.py motivation --only 'one group' Low",
        "fedcps.py --only Ditto non-iid_1 gamma=30% n=40 k=2",
        "fedcps_costs.py --only FedPer",
        "fedcps_figures.py hostile --only '20% wrong' FedCPS",
        "fedcps_lambda.py --only 'spread of the client' personal_layers",
        "fedcps_settings.py --only FedCPS '10 epochs'",
        "fedtsdp.py --only FedTSDP CFL",
        "fedtsdp_parts.py --only both raw 'one draw' FedTSDP",
        "fesem.py --only 'FeSEM(4)' FedDane",
        "hidden_groups.py --only DC-PFL FedAvg 'dominant label' 'DC-PFL, val, formula'",
        "hostile.py table --only ifca --scale paper",
        "layercfl.py groups --only rotation",
        "private.py --only +top_k",
        "slow_clients.py",
    ],
)
def test_names_that_are_there_are_taken(words, call_script):
    with pytest.raises(InterruptedError):
        call_script(*shlex.split(words))


@pytest.mark.parametrize(
    ("script", "option", "value"),
    [
        ("drift.py", "--seeds", "0"),
        ("drift.py", "--seeds", "1.5"),
        ("drift.py", "--rounds", "-1"),
        ("leaderboard.py", "--seeds", "0"),
        ("sensitivity.py", "--seeds", "0"),
        ("pfllib.py", "--rounds", "0"),
        ("pfllib.py", "--part", "0"),
        ("fashion_mnist.py", "--seeds", "0"),
    ],
)
def test_numbers_below_one_end_a_script_before_it_runs(script, option, value, call_script, monkeypatch, capsys):
    monkeypatch.setattr(reporting, "data_here", contextlib.nullcontext)  # around the whole of some scripts
    with pytest.raises(SystemExit) as error:
        call_script(script, option, value)
    assert error.value.code == 2
    assert f"{option}: {value}: give a whole number from 1 on" in capsys.readouterr().err.splitlines()[-1]


def test_data_that_is_not_here_is_one_line(capsys):
    with pytest.raises(SystemExit) as error, data_here():
        load("fashion_mnist", "nowhere")
    assert error.value.code == 2
    assert "fashion_mnist is not in " in capsys.readouterr().err


@pytest.mark.parametrize("experiment", [figure9, sampling, hopkins, groups, period, thresholds, everything, hands])
def test_a_part_of_the_rounds_is_asked_of_every_run(experiment, monkeypatch):
    numbers_of_rounds = []

    def record_rounds(methods, settings, n_rounds, **options):
        numbers_of_rounds.append(n_rounds)
        raise InterruptedError

    for module in (fedtsdp_methods, fedtsdp_parts, dcpfl_figures, comparison, fesem_parts):
        monkeypatch.setattr(module, "compare", record_rounds)
    monkeypatch.setattr(dcpfl_figures, "paper_bands", lambda *_: {})
    monkeypatch.setattr(comparison, "federations", lambda *_: [])
    monkeypatch.setattr(comparison, "same_shapes", list)
    monkeypatch.setattr(fesem_parts, "load", lambda _: load("digits"))
    monkeypatch.setitem(PARTITIONS, "writers", lambda *_, **options: PARTITIONS["iid"](*_, seed=options["seed"]))
    with pytest.raises(InterruptedError):
        experiment(Scale(False, 1, Path("results"), rounds=3))
    assert numbers_of_rounds == [3]


@pytest.mark.slow
def test_a_part_of_figure_9_is_told_as_one(tmp_path, monkeypatch):
    monkeypatch.setattr(fedtsdp_methods, "network", lambda paper, setting="": mlp((8, 8, 1), (4,), 10))
    monkeypatch.setattr(fedtsdp_parts, "network", fedtsdp_methods.network)
    scale = Scale(False, 1, tmp_path, rounds=2, results=tmp_path)
    figure9(scale._replace(only=("both",)))
    runs = (tmp_path / "fedtsdp" / "Fig9-runs-smoke.csv").read_text()
    assert "rounds=2 of 30" in runs
    assert not (tmp_path / "fedtsdp" / "Fig9-CIFAR10-smoke.csv").exists()  # one run alone is behind nothing


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    x, y = rng.integers(256, size=(120, 4, 4, 1), dtype=np.uint8), np.arange(120) % 3
    return partition.iid(on_host(x[:90], y[:90]), on_host(x[90:], y[90:]), 6, seed=0)


def models(assigned):
    return jax.vmap(lambda i: jax.tree.map(lambda leaf: leaf[i if leaf.shape[0] > 1 else 0], assigned.params))(
        assigned.row
    )


def deployed(algorithm, hyper, federation, n_rounds=2):
    key = jax.random.key(3)
    state = train(algorithm, hyper, federation, key, n_rounds, evaluate_every=n_rounds).state
    return state, models(algorithm.deploy(jax.random.key(7), hyper, state, federation.train))


def distance(a, b, name):
    return float(sum(jnp.abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (a[name], b[name])), strict=True)))


@pytest.mark.slow
def test_own_layers_move_and_shared_ones_stand_still(federation):
    algorithm, hyper = fedper(MODEL, WORK), fljax.fedper.Hyper(lr=LR)
    with_last_round = with_own_layers_trained(algorithm, MODEL, WORK, LR, MODEL.layers[-1:])
    state, before = deployed(algorithm, hyper, federation)
    state_again, after = deployed(with_last_round, hyper, federation)
    jax.tree.map(np.testing.assert_array_equal, state_again.clients, state.clients)  # the rounds are untouched
    assert distance(before, after, "fc1") == 0
    assert distance(before, after, "fc2") > 1e-3


@pytest.mark.slow
def test_the_last_round_of_own_layers_is_ten_epochs_of_descent_by_numpy(federation):
    """One client of one batch: head gradients by NumPy, clipped to 10, ten steps."""
    work = Work(1, 64)  # a client has 15 images: one batch an epoch, so the order does not matter
    algorithm, hyper = fedavg(MODEL, work), fljax.fedavg.Hyper(lr=LR)
    with_last_round = with_own_layers_trained(algorithm, MODEL, work, 0.5, ("fc2",))
    _, before = deployed(algorithm, hyper, federation)
    _, after = deployed(with_last_round, hyper, federation)
    rows = np.asarray(federation.train.index)[0, : int(federation.train.size[0])]
    x = np.asarray(federation.train.pool.x)[rows].reshape(len(rows), -1) / 255
    y = np.eye(3)[np.asarray(federation.train.pool.y)[rows]]
    w1, b1 = (np.asarray(before["fc1"][name][0], float) for name in ("kernel", "bias"))
    w2, b2 = (np.asarray(before["fc2"][name][0], float) for name in ("kernel", "bias"))
    hidden = np.maximum(x @ w1 + b1, 0)
    for _ in range(10):
        logits = hidden @ w2 + b2
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = (p / p.sum(axis=1, keepdims=True) - y) / len(rows)
        w2, b2 = w2 - 0.5 * hidden.T @ error, b2 - 0.5 * error.sum(axis=0)
    np.testing.assert_allclose(after["fc2"]["kernel"][0], w2, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(after["fc2"]["bias"][0], b2, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_dittos_last_round_trains_the_personal_models_near_theta(federation):
    algorithm, hyper = ditto(MODEL, WORK), fljax.ditto.Hyper(lr=LR, lam=0.1)
    without_pull, with_pull = (with_everyone_once_more(algorithm, MODEL, WORK, LR, lam) for lam in (0.0, 15.0))
    state, before = deployed(algorithm, hyper, federation)
    far = deployed(without_pull, hyper, federation)[1]
    close = deployed(with_pull, hyper, federation)[1]
    theta = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (6, *leaf.shape)), state.server)
    for name in MODEL.layers:
        assert distance(before, far, name) > 1e-4
        assert distance(close, theta, name) < distance(far, theta, name)


def test_a_layer_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="the model has no fc9; its layers are fc1, fc2"):
        with_own_layers_trained(fedper(MODEL, WORK), MODEL, WORK, LR, ("fc9",))


@pytest.mark.slow
def test_a_run_is_tested_in_its_last_rounds_and_goes_on(federation, tmp_path):
    arguments = fedavg(MODEL, WORK), fljax.fedavg.Hyper(lr=LR), federation, jax.random.key(0)
    first_run, _ = resumed(*arguments, 4, folder=tmp_path / "run", tested_last=2, evaluate_every=100)
    np.testing.assert_array_equal(np.isfinite(first_run.metrics["accuracy_macro"]), [False, False, True, True])
    assert rounds_done(tmp_path / "run") == 4
    seconds = seconds_taken(tmp_path / "run")
    assert seconds > 0
    run, seconds_of_all = resumed(*arguments, 7, folder=tmp_path / "run", tested_last=2, evaluate_every=100)
    metrics = run.metrics
    np.testing.assert_array_equal(np.isfinite(metrics["accuracy_macro"]), [False, False, True, True, False, True, True])
    assert seconds_of_all > seconds
    expected = train(*arguments, 7, evaluate_every=1).metrics
    np.testing.assert_array_equal(metrics["loss"], expected["loss"])
    is_tested = np.isfinite(metrics["accuracy_macro"])
    np.testing.assert_array_equal(metrics["accuracy_macro"][is_tested], expected["accuracy_macro"][is_tested])
    reopened, seconds_again = resumed(*arguments, 7, folder=tmp_path / "run", tested_last=2, evaluate_every=100)
    np.testing.assert_array_equal(reopened.metrics["loss"], metrics["loss"])
    assert seconds_again == seconds_of_all


def test_seconds_a_round_are_those_of_the_last_rounds(tmp_path):
    def seconds_of(*entries):
        tmp_path.joinpath("spent.json").write_text(json.dumps({"rounds": entries, "checksum": 0}))
        return seconds_a_round(tmp_path)

    assert seconds_of((10, 60.0, 5.0)) == 6
    assert seconds_of((13, 10_800.0, 80.0), (17, 10_940.0, 80.0), (20, 11_030.0, 80.0)) == 30


class Stopped(SilentProgress):
    """Ends the run after its first chunk, as a signal would."""

    def chunk(self, done, metrics, rounds_per_second):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_the_seconds_of_a_call_that_was_stopped_count(federation, tmp_path):
    arguments = fedavg(MODEL, WORK), fljax.fedavg.Hyper(lr=LR), federation, jax.random.key(0)
    with pytest.raises(KeyboardInterrupt):
        resumed(*arguments, 4, folder=tmp_path / "run", progress=Stopped())
    seconds = seconds_taken(tmp_path / "run")
    assert seconds > 0
    assert resumed(*arguments, 4, folder=tmp_path / "run")[1] > seconds


@pytest.mark.parametrize("n_rounds", [1, 2, 5, 9])
def test_a_run_has_converged_within_its_rounds(n_rounds):
    run = SimpleNamespace(metrics={"accuracy_macro": np.linspace(0.1, 0.9, n_rounds), "uplink": np.ones((n_rounds, 3))})
    assert converged(run) == n_rounds
    assert np.isnan(uplink_share(run))
