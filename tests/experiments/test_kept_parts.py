"""Lines of FedTSDP's parts and of the searches, whose runs are made up here so that each number is known."""

from types import SimpleNamespace

import fedtsdp_parts
import numpy as np
import pytest
import tuning
from outcomes import file_of, read
from reporting import Result, Scale

import fljax


@pytest.fixture
def scale(tmp_path):
    return Scale(False, 2, tmp_path / "made", results=tmp_path)


def numbers_of(scale, *place):
    """(method, setting, seed) -> metric -> value, and the lines' settings."""
    values = {}
    lines = read(file_of(scale.results, *place, small=True))
    for line in lines:
        cell = line["method"], line["setting"], int(line["seed"])
        values.setdefault(cell, {})[line["metric"]] = float(line["value"])
    return values, {line["settings"] for line in lines}


def results(settings, by_method):
    """A run of 30 rounds of every method, setting and seed; what a seed changes is added to the curves."""
    return [
        Result(setting, method, seed, {"ids": np.zeros((30, 2), int)} | make(seed), 1.0)
        for setting in settings
        for method, make in by_method.items()
        for seed in range(2)
    ]


def test_lines_of_the_hopkins_statistic(scale, monkeypatch):
    def run(seed):
        fired = np.arange(30) < 6 + 3 * seed
        return {"hopkins": np.tile([0.5, 0.7], 15) + 0.1 * seed, "fired": fired}

    monkeypatch.setattr(fedtsdp_parts, "compared", lambda *_: results(["IID"], dict.fromkeys(fedtsdp_parts.DRAWS, run)))
    fedtsdp_parts.hopkins(scale)
    values, settings = numbers_of(scale, "fedtsdp", "hopkins", "digits")
    assert settings == {"scale=smoke; rounds=30 of 30; clients=20"}
    assert set(values) == {(way, "IID", seed) for way in fedtsdp_parts.DRAWS for seed in range(2)}
    expected = {"H": 0.7, "H first round": 0.6, "std over rounds": 0.1, "fires, % of rounds": 30}
    assert values["one draw", "IID", 1] == pytest.approx(expected)


def test_lines_of_the_ways_to_sample(scale, monkeypatch):
    def run(seed):
        return {"accuracy_micro": np.linspace(0, 0.8 + 0.1 * seed, 30), "fired": np.arange(30) < 3}

    every_way = dict.fromkeys(fedtsdp_parts.WAYS, run)
    monkeypatch.setattr(fedtsdp_parts, "compared", lambda *_: results(["Dirichlet 0.2"], every_way))
    fedtsdp_parts.sampling(scale)
    values, settings = numbers_of(scale, "fedtsdp", "sampling", "digits")
    assert settings == {"scale=smoke; rounds=30 of 30; clients=20"}
    assert {method for method, *_ in values} == set(fedtsdp_parts.WAYS)
    assert values["raw", "Dirichlet 0.2", 1] == pytest.approx({"accuracy_micro": 0.9, "fired_share": 0.1})


def test_lines_of_the_true_groups(scale, monkeypatch):
    """One seed finds the groups in round 10 and loses them in the last; the other never does."""

    def ours(seed):
        found = (np.arange(30) >= 9) & (np.arange(30) < 29) & (seed == 0)
        return {
            "accuracy_macro": np.full(30, 0.8),
            "ari": np.where(found, 1.0, 0.25),
            "n_clusters": np.full(30, 4 - seed),
        }

    methods = {"FedTSDP": ours, "FedAvg": lambda seed: {"accuracy_macro": np.full(30, 0.6 + 0.1 * seed)}}
    monkeypatch.setattr(fedtsdp_parts, "compare", lambda _, by_setting, rounds: results(by_setting, methods))
    fedtsdp_parts.groups(scale._replace(rounds=30))
    values, settings = numbers_of(scale, "fedtsdp", "groups", "digits")
    assert settings == {"scale=smoke; rounds=30 of 30; clients=12"}
    assert len(values) == 2 * 2 * 2
    found = {"ARI": 0.25, "first round of ARI 1": 10, "share of rounds": 2 / 3, "clusters": 4, "accuracy_macro": 0.8}
    assert values["FedTSDP", "rotation", 0] == pytest.approx(found, rel=1e-5)  # six digits are kept
    assert "first round of ARI 1" not in values["FedTSDP", "dominant label", 1]
    assert values["FedAvg", "dominant label", 1] == pytest.approx({"accuracy_macro": 0.7})


def test_lines_of_a_search(scale, monkeypatch):
    """The weight of the better validation accuracy, and its accuracy of each seed on the test split."""

    def row(weight, seed, accuracy):
        return {"lr": 0.1, "mu": weight, "seed": seed, "rounds": 10, "diverged": None, "accuracy_macro": accuracy}

    validated = [row(0.01, 0, 0.5), row(0.01, 1, 0.7), row(0.5, 0, 0.9), row(0.5, 1, 0.3)]
    tested_points = []

    def runs(scale, task, data, hypers, validated=True):
        tested_points.append((float(np.ravel(hypers.lr)[0]), float(np.ravel(hypers.mu)[0]), validated))
        return [row(0.01, 0, 0.55), row(0.01, 1, 0.65)]

    monkeypatch.setattr(tuning, "runs", runs)
    task = SimpleNamespace(hyper=fljax.fedprox.Hyper(), weight="mu")
    shown = tuning.conclusion(scale, "grid", "FedProx mu", task, None, validated)  # pyright: ignore[reportArgumentType]
    assert tested_points == [(pytest.approx(0.1), pytest.approx(0.01), False)]
    values, settings = numbers_of(scale, "tuning", "grid", "FMNIST")
    assert settings == {"scale=smoke; rounds=10 of 10; points=2; data=Dirichlet 0.2"}
    first = {"accuracy_macro": 0.55, "mu": 0.01, "lr": 0.1, "validation": 0.6}
    assert values == {
        ("FedProx mu", "grid", 0): pytest.approx(first),
        ("FedProx mu", "grid", 1): pytest.approx({"accuracy_macro": 0.65}),
    }
    assert (shown["found"], shown["points"]) == (0.01, 2)
