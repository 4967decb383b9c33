"""Attacks, defences and seeds in one program: each is what it is alone."""

from types import SimpleNamespace

import hostile
import hostile_runs
import jax
import numpy as np
import pytest
from hostile_runs import Attackers, ChosenHyper, any_attack, any_defence, poisoned, under_each
from reporting import Scale
from tables import spread

import fljax
from fljax.attacks import ATTACKS, attacked, updates
from fljax.models import logistic_regression, mlp
from fljax.numbers import joined
from fljax.rounds.bricks import BRICKS
from fljax.rounds.uplink.chain import Memory
from fljax.types import Work
from tests.rounds.test_uplink import message, trip_of

ROBUST = [BRICKS[name] for name in ("median", "multi_krum", "trimmed_mean")]
NUMBERS = {"n_attackers": 1.0, "n_selected": 2.0, "trim": 0.25}


@pytest.fixture(scope="module")
def federations():
    return [hostile.federation(False, seed) for seed in range(2)]


def test_the_defence_of_a_place_is_that_brick():
    rng = np.random.default_rng(0)
    received, shared, weight = {"w": rng.normal(size=(6, 5)).astype(np.float32)}, {"w": np.zeros(5)}, np.ones(6)
    mean = lambda hyper, shared, received, weight: {"w": received["w"].mean(axis=0)}  # noqa: E731

    @jax.jit
    def combined_by(place, *arguments):
        hyper = SimpleNamespace(**NUMBERS, defence=place)
        return any_defence([hostile.MEAN_OF_ALL, *ROBUST]).apply(hyper, (), *arguments)[0]

    @jax.jit
    def combined_by_each(*arguments):
        return [rule(SimpleNamespace(**NUMBERS), *arguments) for rule in (mean, *(brick.value for brick in ROBUST))]

    arguments = shared, received, weight
    for place, expected in enumerate(combined_by_each(*arguments)):
        np.testing.assert_allclose(combined_by(float(place), *arguments)["w"], expected["w"], rtol=1e-5)


def test_the_attack_of_a_place_is_that_craft():
    values = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
    attacks = [ATTACKS[name]() for name in ("none", "sign_flip", "alie", "label_flip")]
    crafts = [None, updates.sign_flip(1.0), updates.alie(None), None]

    @jax.jit
    def sent_by(place):
        hyper, arguments = SimpleNamespace(attack=place), (message(values, np.ones(6)), trip_of(3, 6))
        values_sent = any_attack(attacks, (1, 4), 2).apply(hyper, Memory(), *arguments)[1].values
        bricks = [None if craft is None else updates.crafted(craft, (1, 4), 2) for craft in crafts]
        return values_sent, [
            values if brick is None else brick.apply(hyper, Memory(), *arguments)[1].values for brick in bricks
        ]

    for place in range(4):
        values_sent, expected = sent_by(float(place))
        np.testing.assert_array_equal(values_sent, expected[place])


def test_federations_have_one_shape_under_all_attacks_and_attackers_are_not_tested(federations):
    trigger, ids = hostile.attack_of("backdoor"), (0, 4, 8)
    shapes = set()
    for federation in federations:
        for name in hostile.ATTACKED_BY:
            attacked_federation = poisoned(federation, ids, hostile.attack_of(name), trigger)
            shapes.add(str(jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), attacked_federation)))
            assert not np.asarray(attacked_federation.test.size)[list(ids)].any()
            assert (np.asarray(attacked_federation.triggered.size) > 0).sum() == 9
    assert len(shapes) == 1


def test_the_worst_attack_is_that_of_the_least_accuracy():
    def row(attack, value):
        return {"method": "ifca", "defence": "mean", "attack": attack, "accuracy": spread([value])}

    rows = [row("none", 0.1), row("sign_flip", 0.5), row("alie", 0.4), row("ipm", 0.6)]
    assert [worst_row["attack"] for worst_row in hostile.worst(rows)] == ["alie"]


def test_any_attack_can_be_put_on_a_method(federations, monkeypatch):
    """The quick half of the test below: all but the compilation of the program."""
    algorithms = []

    def stop_here(algorithm, *_):
        algorithms.append(algorithm)
        raise InterruptedError

    monkeypatch.setattr(hostile_runs, "with_uplink", stop_here)
    algorithm, attacks = fljax.fedavg(logistic_regression((8, 8, 1), 10), Work(1, 32)), [hostile.attack_of("backdoor")]
    with pytest.raises(InterruptedError):
        under_each(algorithm, [], attacks, federations, 4, Attackers((0, 4, 8), hostile.START))
    assert dict(algorithms[0].about.choices)["attack.attackers"] == (0, 4, 8)


@pytest.mark.slow
def test_cells_are_those_of_the_method_under_one_attack_with_one_defence(federations):
    names, ids, method = ("none", "sign_flip", "model_replacement"), (0, 4, 8), fljax.fedavg
    model, work = logistic_regression((8, 8, 1), 10), Work(1, 32)
    Hyper = joined(method.Hyper, BRICKS["trimmed_mean"].Hyper, ChosenHyper)
    algorithm = method(model, work, combine=any_defence([hostile.MEAN_OF_ALL, BRICKS["trimmed_mean"]]))
    attacks, cells = [hostile.attack_of(name) for name in names], [(0, 1), (1, 1), (1, 2)]
    numbers = [Hyper(lr=0.3, trim=0.25, defence=float(defence), attack=float(attack)) for defence, attack in cells]
    result = under_each(algorithm, numbers, attacks, federations, 4, Attackers(ids, hostile.START))
    for i, (defence, attack) in enumerate(cells):
        method_of_cell = fljax.compose("fedavg+trimmed_mean" if defence else "fedavg")
        hyper = method_of_cell.Hyper(lr=0.3, **{"trim": 0.25} if defence else {})
        for seed, federation in enumerate(federations):
            attacked_run = attacked(method_of_cell(model, work), federation, attacks[attack])
            assert attacked_run.ids == ids
            arguments = attacked_run.algorithm, hyper, attacked_run.federation, jax.random.key(seed), 4
            _, metrics = fljax.simulate(*arguments, evaluate_every=4)
            for name in ("accuracy_macro", "attack_success"):
                if name in metrics:
                    np.testing.assert_allclose(result[name][i, seed], metrics[name][-1], atol=2e-3, err_msg=name)


def test_kept_numbers_are_those_of_the_same_network_work_and_clients(tmp_path, monkeypatch):
    runs = []

    def run_nothing(algorithm, numbers, attacks, federations, *rest):
        runs.append(algorithm)
        return {"accuracy_macro": np.zeros((len(numbers), len(federations)))}

    monkeypatch.setattr(hostile, "under_each", run_nothing)
    scale, federation_of = Scale(False, 2, tmp_path), hostile.federation

    def n_runs_after(width=4, epochs=1):
        algorithm = fljax.fedavg(mlp((8, 8, 1), (width,), 10), Work(epochs, 32))
        numbers = joined(fljax.fedavg.Hyper, ChosenHyper)(lr=0.3)
        hostile.rows_of(scale, hostile.Program("fedavg", (hostile.MEAN,), algorithm, (numbers,)), ["sign_flip"])
        return len(runs)

    assert n_runs_after() == n_runs_after() == 1
    assert n_runs_after(width=5) == 2
    assert n_runs_after(width=5, epochs=2) == 3
    monkeypatch.setattr(hostile, "federation", lambda paper, seed: federation_of(paper, seed + 1))
    assert n_runs_after(width=5, epochs=2) == 4
