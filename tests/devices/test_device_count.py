"""A small job leaves devices of a CPU unused, a long one does not, and what has begun goes on with as many."""

from bisect import bisect_left
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.cli import main
from fljax.data.synthetic import linear_groups
from fljax.devices import device_count, mesh
from fljax.devices.device_count import enough_devices, seconds_of_work
from fljax.folder.checkpoint import standing_of
from fljax.jobs import assemble
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_parts
from fljax.models import logistic_regression
from fljax.run.sweep.parts import n_devices_of
from fljax.types import Work
from tests.cli.conftest import leave_figures_empty

MODEL = logistic_regression((4, 4, 1), 4)
ALL = 10**9  # rounds
SMALL = ("--algorithm", "fedavg", "--partition.n-clients", "4", "--epochs", "1", "--model", "logistic_regression")


@pytest.fixture(scope="module")
def federation():
    return linear_groups(9, 3, examples=30, ragged=0.5)


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    leave_figures_empty(monkeypatch)


@pytest.fixture
def divided(monkeypatch):
    monkeypatch.setattr(mesh, "_divided", True)


def test_devices_that_the_user_asked_for_are_all_used(federation):
    assert enough_devices(MODEL, federation, [Work(1, 8)], 1) is None


@pytest.mark.usefixtures("divided")
def test_more_work_takes_more_devices(federation):
    devices_for = partial(enough_devices, MODEL, federation)
    assert devices_for([Work(1, 8)], 1) == jax.devices()[:1]
    assert devices_for([Work(1, 8)], ALL) is None
    # The number of rounds where one device turns to all grows as the work of a round shrinks.
    light_rounds = {"participation": 0.1, "evaluate_every": 10}
    n_rounds_of_turn = [
        bisect_left(range(1, ALL), True, key=lambda n: devices_for([Work(epochs, 8)], n, **options) is None) + 1
        for epochs, options in ((20, {}), (5, {}), (1, {}), (1, light_rounds))
    ]
    assert n_rounds_of_turn == sorted(n_rounds_of_turn)
    assert n_rounds_of_turn[1] / n_rounds_of_turn[0] == pytest.approx(4, rel=0.2)
    assert devices_for([Work(20, 8), Work(1, 8)], n_rounds_of_turn[0]) == jax.devices()[:1]  # by the methods' mean
    assert devices_for([None], n_rounds_of_turn[2]) is None  # one epoch


def test_one_model_s_test_on_one_set_is_not_divided(federation, monkeypatch):
    """Of several models each device tests some."""
    monkeypatch.setattr(device_count, "may_use_fewer", lambda: True)
    tested = []
    monkeypatch.setattr(device_count, "seconds_of_work", lambda *arguments: tested.append(arguments[3]) or 0.0)
    common = fljax.with_common_test(federation, federation.test.pool)
    for clients in (federation, common):
        for share in (0.0, 0.5, 1.0):
            enough_devices(MODEL, clients, [Work(1, 8)], 1, evaluate_every=2, several_models=share)
    assert tested == [0.5, 0.5, 0.5, 0.0, 0.25, 0.5]


@pytest.mark.parametrize(("methods", "share"), [("fedavg ifca", 0.5), ("fedavg+median", 0.0), ("standalone", 1.0)])
def test_methods_with_one_model_are_told(monkeypatch, methods, share):
    shares = []
    monkeypatch.setattr(assemble, "enough_devices", lambda *_, several_models, **__: shares.append(several_models))
    job = read_job(["--algorithm", *methods.split(), "--partition", "iid", "--n-clients", "3", "--common-test"])
    federation, _ = make_parts(job)
    assemble.devices_of(job, MODEL, federation)
    assert shares == [share]


@pytest.mark.usefixtures("divided")
def test_further_hosts_and_accelerators_are_all_used(federation, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert enough_devices(MODEL, federation, [Work(1, 8)], 1) is None
    monkeypatch.undo()
    monkeypatch.setattr(mesh, "_divided", True)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert enough_devices(MODEL, federation, [Work(1, 8)], 1) is None


def test_the_forecast_by_hand(federation, monkeypatch):
    """Of a network that is one product, examples by 16 features by 4 classes."""
    model = MODEL._replace(
        init=lambda _: {"w": jnp.zeros((16, 4))},
        apply=lambda params, x, _: (jax.lax.dot(x.reshape(-1, 16), params["w"]), params),
    )
    monkeypatch.setattr(device_count, "seconds_of", lambda _, cost: (0.0, cost.flops))
    n_train, n_test = (int(np.asarray(split.size).sum()) for split in (federation.train, federation.test))
    assert seconds_of_work(model, federation, 1, 0) == 3 * n_train * 2 * 16 * 4
    assert seconds_of_work(model, federation, 0, 0.5) == 0.5 * n_test * 2 * 16 * 4


@pytest.mark.slow
@pytest.mark.usefixtures("divided")
def test_a_network_of_ones_own_is_forecast_from_what_it_is_trained_on(tmp_path, capsys):
    """Pixels are kept as bytes, and a network meets floats."""
    (tmp_path / "mine.py").write_text(
        """
import jax
import jax.numpy as jnp
from fljax.types import Model

def net():
    def init(key):
        return {"out": {"kernel": jax.random.normal(key, (64, 10))}}

    def apply(params, x, key):
        if x.dtype != jnp.float32:
            raise TypeError(f"not {x.dtype}")
        return jax.lax.dot(x.reshape(len(x), -1), params["out"]["kernel"]), params

    return Model(init, apply, ("out",))
"""
    )
    arguments = ["--algorithm", "fedavg", "--partition.n-clients", "4", "--epochs", "1", "--rounds", "1"]
    assert main(["run", *arguments, "--model", f"{tmp_path / 'mine.py'}:net", "--folder", str(tmp_path / "x")]) == 0
    assert "1 of 2 cpu devices" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("divided")
def test_a_job_goes_on_with_as_many_devices_as_it_began_with(tmp_path, capsys, monkeypatch):
    def run(folder: str, n_rounds: int, *options: str) -> int:
        assert main(["run", *SMALL, "--rounds", str(n_rounds), "--folder", str(tmp_path / folder), *options]) == 0
        assert ("1 of 2 cpu devices" in capsys.readouterr().out) is (
            standing_of(tmp_path / folder / "fedavg").n_devices == 1
        )
        return standing_of(tmp_path / folder / "fedavg").n_devices

    assert run("small", 1) == 1
    monkeypatch.setattr(device_count, "_SECONDS_OF_A_MESH", 0.0)
    assert run("large", 1) == 2
    assert run("small", 2) == 1  # though it would be worth two now
    assert run("small", 3, "--force-resume") == 1
    monkeypatch.undo()
    monkeypatch.setattr(mesh, "_divided", True)
    assert run("large", 2) == 2
    assert run("other", 1) == 1
    # What the user asks for is not what it began with: refused in one line.
    monkeypatch.undo()
    assert main(["run", "--folder", str(tmp_path / "other"), "--rounds", "2"]) == 2
    assert "devices 1 (now 2)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("divided")
def test_a_comparison_and_the_runs_in_it_have_the_same_devices(tmp_path, capsys):
    folder = tmp_path / "both"
    assert main(["compare", *SMALL, "--seeds", "2", "--rounds", "1", "--folder", str(folder)]) == 0
    assert "1 of 2 cpu devices" in capsys.readouterr().out
    seeds = sorted(path / "fedavg" for path in folder.glob("seed_*"))
    assert [standing_of(path).n_devices for path in seeds] == [1, 1]
    assert main(["run", "--folder", str(seeds[0].parent), "--rounds", "2"]) == 0
    assert main(["compare", "--folder", str(folder), "--rounds", "2"]) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("divided")
def test_a_sweep_counts_its_runs_and_goes_on_with_as_many_devices(tmp_path, capsys, monkeypatch):
    def sweep(folder: str, *options: str) -> int | None:
        argv = ["sweep", *SMALL, "--lr", "0.1", "0.2", "--rounds", "2", "--folder", str(tmp_path / folder), *options]
        assert main(argv) == 0
        n_devices = n_devices_of(tmp_path / folder / "runs")
        assert ("1 of 2 cpu devices" in capsys.readouterr().out) is (n_devices == 1)
        return n_devices

    # Six runs of two rounds take twelve seconds, of which two devices save half.
    monkeypatch.setattr(device_count, "seconds_of_work", lambda *_: 1.0)
    monkeypatch.setattr(device_count, "_SECONDS_OF_A_MESH", 6.1)
    assert sweep("small", "--seeds", "3") == 1
    monkeypatch.setattr(device_count, "_SECONDS_OF_A_MESH", 5.9)
    assert sweep("more", "--seeds", "3") == 2
    monkeypatch.setattr(device_count, "_SECONDS_OF_A_MESH", 0.0)
    assert sweep("small", "--seeds", "3", "--resume") == 1
    assert sweep("more", "--seeds", "3", "--resume") == 2


@pytest.mark.usefixtures("divided")
def test_a_plan_is_of_the_devices_that_the_run_takes(capsys, monkeypatch):
    def report_devices(*arguments):
        raise ValueError(f"planned on {arguments[-1]}")

    monkeypatch.setattr("fljax.cli.plan.plan_one", report_devices)
    assert main(["plan", *SMALL, "--rounds", "1"]) == 2
    out, err = capsys.readouterr()
    assert "1 of 2 cpu devices" in out
    assert f"planned on {jax.devices()[:1]}" in err
