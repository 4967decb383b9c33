"""Versions and devices that a folder was made with: another is refused, or kept beside them."""

import json
from functools import cache

import jax
import numpy as np
import optax
import pytest

import fljax
from fljax.folder.surroundings import TRACED, continued, machine, settings, surroundings, versions
from fljax.run.sweep.parts import FOLDER, IDENTITY, Part, Store

pytestmark = pytest.mark.usefixtures("one_device")

NOW, LATER = {"jax": "1", "cores": 2}, {"jax": "2", "cores": 2}
PART = Part(np.arange(2), np.zeros(2, np.int32), None, {"loss": np.zeros((2, 3))})


def test_a_history_grows_only_where_something_differs(tmp_path):
    history = [{"round": 0, **NOW}]
    assert continued(tmp_path, history, NOW, {"round": 5}, force=False) is history
    with pytest.raises(ValueError, match=r"made with jax '1' \(now '2'\), so .* or set force_resume"):
        continued(tmp_path, history, LATER, {"round": 5}, force=False)
    assert continued(tmp_path, history, LATER, {"round": 5}, force=True) == [*history, {"round": 5, **LATER}]


def test_a_search_is_gone_on_with_in_other_surroundings_only_if_forced(tmp_path):
    def open_store(current, force=False):
        store = Store(tmp_path, current, force, n_seeds=2)
        return store.open({"hyper.lr": 0.1, "n_seeds": 2, "points": [0], "halving": None})

    open_store(NOW).go_on()
    open_store(LATER).go_on()  # nothing was computed before
    open_store(LATER).write(0, PART, is_finished=False)
    with pytest.raises(ValueError, match=r"made with jax '2' \(now '1'\)"):
        open_store(NOW).go_on()
    open_store(LATER).write(0, PART)
    with pytest.raises(ValueError, match=r"made with jax '2' \(now '1'\)"):
        open_store(NOW).go_on()
    assert len(open_store(NOW).read(0, np.arange(2), 3)) == 1  # what is there can be looked at
    open_store(NOW, force=True).go_on()
    open_store(NOW).go_on()
    stored = json.loads((tmp_path / FOLDER / IDENTITY).read_text())
    assert [(entry["batches"], entry["jax"]) for entry in stored["history"]] == [(0, "1"), (0, "2"), (1, "1")]


def test_what_bits_depend_on_is_a_part_of_the_record():
    current, record = surroundings(2), versions()
    assert {name: record[name] for name in TRACED} == {name: current[name] for name in TRACED}
    assert current["device"] in machine()["devices"]
    assert current["cores"] == machine()["cores"]


@pytest.mark.parametrize(("name", "value"), [("FLJAX_WINOGRAD", "0"), ("FLJAX_CONV", "grouped")])
def test_a_run_of_convolutions_is_not_gone_on_with_in_another_form(
    key, federation, averaging, tmp_path, name, value, monkeypatch
):
    for variable in ("FLJAX_CONV", "FLJAX_WINOGRAD"):
        monkeypatch.delenv(variable, raising=False)

    def train_for(n_rounds, **options):
        folder = tmp_path / "run"
        return fljax.train(averaging, fljax.fedavg.Hyper(), federation, key, n_rounds, folder=folder, **options)

    train_for(1)
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=rf"made with {name} None \(now '{value}'\), so the last bits of results may"):
        train_for(2)
    train_for(1)  # what is finished is shown
    monkeypatch.setenv(name, "")  # as if it were not there
    train_for(2)
    monkeypatch.setenv(name, value)
    train_for(3, force_resume=True)
    monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=rf"made with {name} '{value}' \(now None\)"):
        train_for(4)


def test_settings_of_jax_that_change_rounding_or_draws_are_told_where_they_are_not_as_usual(monkeypatch):
    monkeypatch.delenv("FLJAX_WINOGRAD", raising=False)
    assert settings() == {}
    with jax.default_matmul_precision("bfloat16"), jax.threefry_partitionable(False):
        assert settings() == {"jax_default_matmul_precision": "bfloat16", "jax_threefry_partitionable": False}
    assert surroundings(1).keys() == {*TRACED, "devices", "device", "hosts", "cores"}


@pytest.mark.slow
def test_a_method_of_ones_own_goes_on_under_another_version_where_that_is_forced(key, federation, tmp_path):
    @cache
    def algorithm(scale):
        model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
        scaled_model = model._replace(loss=lambda z, y: scale * optax.softmax_cross_entropy_with_integer_labels(z, y))
        return fljax.fedavg(scaled_model, fljax.Work(1, 8))

    def train_for(n_rounds, scale, force=False):
        arguments = algorithm(scale), fljax.fedavg.Hyper(), federation, key, n_rounds
        return fljax.train(*arguments, folder=tmp_path / "run", force_resume=force)

    train_for(1, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fljax.folder.surroundings._version", lambda package: f"another {package}")
        # A scale stands for what another version writes otherwise in the same program.
        with pytest.raises(ValueError, match=r"made with fljax '.*' \(now 'another fljax'\), .*--force-resume"):
            train_for(2, 2.0)
        train_for(2, 2.0, force=True)
        train_for(3, 2.0)
