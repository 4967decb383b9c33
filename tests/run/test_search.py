"""The host loop of a sweep: equal to the sweep, halving that changes nothing for the survivors, resume, tables."""

import importlib
import json
import signal
from functools import partial
from typing import get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import adjusted_rand_score

import fljax
from fljax.devices.mesh import over_devices
from fljax.devices.programs import Level
from fljax.folder import writer
from fljax.results.load_sweep import LoadedSweep
from fljax.run.sweep import best, by_point, on_validation, over_settings, parts, program, search, sweep, tidy
from fljax.run.sweep.batch import BatchRecord, places_of
from fljax.run.sweep.figures import curves, response
from fljax.run.sweep.halving import Rung, rungs, survivors
from fljax.run.sweep.load import read_search
from fljax.run.sweep.parts import Part, Store
from fljax.run.sweep.shown import as_table, verdict, verdicts
from fljax.run.sweep.table import Spread, of_split, ranked, unnamed
from fljax.run.sweep.widened import widened
from fljax.types import About, State

search_module = importlib.import_module("fljax.run.sweep.search")

N_SEEDS, ROUNDS = 2, 4
LR = (0.01, 0.3, 1e38, 0.1, 0.001)


@pytest.fixture(scope="session")
def hypers():
    return fljax.fedavg.Hyper(lr=jnp.asarray(LR))


@pytest.fixture(scope="session")
def sweep_metrics(averaging, federation, hypers):
    """The full sweep, on the host."""
    return jax.device_get(sweep(averaging, hypers, federation, jax.random.key(0), N_SEEDS, ROUNDS))


@pytest.fixture
def run_search(key, averaging, federation, hypers):
    def run(**options):
        return search(averaging, hypers, federation, key, N_SEEDS, ROUNDS, **options)

    return run


def n_of_rounds():
    """How many programs of rounds there are."""
    return sum(program._advance_at(level)._cache_size() for level in get_args(Level))


def test_it_equals_the_sweep_and_halving_changes_nothing_for_the_survivors(run_search, sweep_metrics):
    unhalved, n_programs = run_search(), n_of_rounds()
    halved = run_search(halving=2)
    assert n_of_rounds() == n_programs  # a stage that goes on from states needs no other program
    chex.assert_trees_all_close(unhalved.metrics, sweep_metrics, rtol=1e-5, atol=1e-5)
    assert list(unhalved.rounds) == [ROUNDS] * 5
    # Stages of 5, 3 and 2 points until rounds 1, 2 and 4.
    assert sorted(halved.rounds) == [1, 1, 2, 4, 4]
    assert halved.rounds[2] == 1  # it diverged
    for i, rounds in enumerate(halved.rounds):
        metrics = {name: value[i, :, :rounds] for name, value in halved.metrics.items()}
        expected = {name: value[i, :, :rounds] for name, value in sweep_metrics.items()}
        chex.assert_trees_all_close(metrics, expected, rtol=1e-5, atol=1e-5)
        assert np.isnan(halved.metrics["test_loss"][i, :, rounds:]).all()
    first_accuracy = np.nan_to_num(sweep_metrics["accuracy_macro"][:, :, 0].mean(axis=1), nan=-1)
    assert {i for i in range(5) if halved.rounds[i] > 1} == set(np.argsort(-first_accuracy, kind="stable")[:3])


def test_a_point_without_any_mean_is_behind_those_that_have_one():
    lost = Spread({"lr": 9}, np.nan, np.nan, np.nan, n_seeds=2, n_diverged=2, rounds=4)
    half = Spread({"lr": 1}, 0.5, np.nan, np.nan, n_seeds=2, n_diverged=1, rounds=4)
    assert ranked([lost, half], "accuracy_macro") == ranked([half, lost], "test_loss") == [half, lost]


@pytest.mark.parametrize(("at_once", "sizes"), [(None, [8, 2]), (1, [2] * 5)])
def test_a_batch_is_of_as_many_runs_as_are_asked_for(run_search, tmp_path, monkeypatch, at_once, sizes):
    """Ten runs on two devices, which have equal shares of every batch; its other rows are frozen."""
    n_going_on = []

    def watched(setting, cells, *rest):
        n_going_on.append((np.asarray(cells.diverged).reshape(2, -1) == program.GOING_ON).sum(axis=1).tolist())
        return program.advance(setting, cells, *rest)

    monkeypatch.setattr("fljax.run.sweep.stages.advance", watched)
    monkeypatch.setattr("fljax.run.sweep.stages.SECONDS_PER_CHUNK", 1e9)  # after two rounds all others at once
    run_search(folder=tmp_path, at_once=at_once)
    assert len([*(tmp_path / "parts").glob("*.npz")]) == len(sizes)
    assert n_going_on[::3] == [[size // 2] * 2 for size in sizes]  # in the first round, when nobody has diverged


def test_runs_of_a_batch_are_dealt_to_the_devices():
    """Each device has a contiguous share of the batch's rows."""
    with over_devices(n_sweep=2):
        np.testing.assert_array_equal(places_of(3, 8), [0, 4, 1])
        np.testing.assert_array_equal(np.sort(places_of(8, 8)), np.arange(8))
    np.testing.assert_array_equal(places_of(3, 8), [0, 1, 2])


def test_a_stage_keeps_no_more_than_its_rounds(run_search, monkeypatch):
    """A view of a stage's rounds would keep all rounds of the search, for which the program has room."""
    results, finished = [], BatchRecord.finished

    def watched(*arguments):
        results.append(finished(*arguments))
        return results[-1]

    monkeypatch.setattr(BatchRecord, "finished", watched)
    run_search(halving=2)
    values = [value for part in results for value in part.metrics.values()]
    assert {value.shape[1] for value in values} == {1, 2}
    assert all(value.base is None for value in values)


class Stop(Exception):
    pass


def stop_after(n):
    """For ``on_rounds``: raises after ``n`` calls."""
    calls = []

    def on_rounds(done, total):
        calls.append(done)
        if len(calls) > n:
            raise Stop

    return on_rounds


def test_a_stopped_search_goes_on(run_search, tmp_path, averaging, federation, key):
    for n in (4, 5):
        with pytest.raises(Stop):
            run_search(halving=2, folder=tmp_path / "stopped", on_rounds=stop_after(n))
    assert list((tmp_path / "stopped").glob("parts/00-*.npz"))
    resumed, expected = run_search(halving=2, folder=tmp_path / "stopped"), run_search(halving=2)
    chex.assert_trees_all_equal(resumed.metrics, expected.metrics)
    np.testing.assert_array_equal(resumed.rounds, expected.rounds)
    with pytest.raises(ValueError, match=r"holds a run with hyper.lr=\[.*\], not 0.5"):
        search(averaging, fljax.fedavg.Hyper(lr=0.5), federation, key, N_SEEDS, ROUNDS, folder=tmp_path / "stopped")
    first_batch = min((tmp_path / "stopped").glob("parts/*.npz"))
    first_batch.write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be read"):
        run_search(halving=2, folder=tmp_path / "stopped")


@pytest.mark.parametrize("is_everyone_active", [True, False])
def test_agreement_is_read_back_where_all_took_part_and_curves_end_with_their_runs(
    tmp_path, monkeypatch, is_everyone_active
):
    """By hand: a point that diverged in its second of three rounds, and one that has made a single round."""
    identity = {"hyper.lr": [0.1, 0.2], "points": [0, 1], "n_seeds": 1, "n_rounds": 3}
    batches = []
    for cell, n_rounds in ((0, 3), (1, 1)):
        loss, active = np.arange(n_rounds)[None] + 0.5, np.ones((1, n_rounds, 2), bool)
        active[0, 0, 1] = is_everyone_active
        metrics = {"ids": np.zeros((1, n_rounds, 2), int), "active": active, "client_loss": np.zeros((1, n_rounds, 2))}
        metrics |= dict.fromkeys(("test_loss", "ari", "accuracy_macro"), loss) | {
            "n_missing": np.full((1, n_rounds), 7)
        }
        metrics |= dict.fromkeys(("loss", "uplink", "downlink"), metrics["client_loss"]) | {"ok": active}
        metrics["diverged"] = (np.arange(n_rounds) > 0)[None]
        batches.append(Part(np.array([cell]), metrics["diverged"].any(axis=1), None, metrics))
    monkeypatch.setattr(parts, "kept_in", lambda folder: (identity, batches))
    searched = read_search(tmp_path, {}, "test")
    assert ("ari" in searched.metrics) == is_everyone_active  # in rounds that were not run, nobody is away
    np.testing.assert_array_equal(searched.rounds, [[3], [1]])
    for name, first in (("test_loss", 0.5), ("n_missing", 7)):
        np.testing.assert_array_equal(searched.curves(name), [[[first, np.nan, np.nan]]] * 2)
    columns = searched.columns()
    expected = {"lr": [0.1, 0.1, 0.1, 0.2], "seed": [0] * 4, "round": [1, 2, 3, 1]}
    assert {name: columns[name].tolist() for name in expected} == expected
    rows = LoadedSweep(tmp_path, [searched], []).rows()  # of a sweep that has not written its table yet
    assert [(row["lr"], row["seed"], row["rounds"], row["diverged"]) for row in rows] == [
        (0.1, 0, 3, 2),
        (0.2, 0, 1, None),
    ]
    assert LoadedSweep(tmp_path, [searched], rows[::-1]).rows() == rows[::-1]


@pytest.mark.parametrize(
    ("halving", "n_calls", "n_runs", "n_rounds", "progress"),
    [(None, 3, 8, 2, [16, 24]), pytest.param(2, 7, 4, 3, [10, 6, 4, 8], marks=pytest.mark.slow)],
)
def test_a_stopped_batch_goes_on_where_it_was(run_search, tmp_path, halving, n_calls, n_runs, n_rounds, progress):
    """The last ``n_calls`` is after the last checkpoint, whose batch is of ``n_runs`` after ``n_rounds``."""
    expected = run_search(halving=halving)
    run_search = partial(run_search, folder=tmp_path, halving=halving)
    with pytest.raises(Stop):
        run_search(on_rounds=stop_after(n_calls), seconds_per_checkpoint=0)
    (read,) = fljax.load_sweep(tmp_path).found
    is_begun = read.rounds == n_rounds
    assert (is_begun.sum(), read.rounds.max()) == (n_runs, n_rounds)
    np.testing.assert_array_equal(
        read.metrics["loss"][is_begun][:, :n_rounds], expected.metrics["loss"][is_begun][:, :n_rounds]
    )
    calls = []
    resumed = run_search(on_rounds=lambda done, n: calls.append(done))
    assert calls[: len(progress)] == progress  # what was done, then one round more of these runs
    assert not (tmp_path / "parts" / "begun.npz").exists()
    chex.assert_trees_all_equal(resumed.metrics, expected.metrics)


@pytest.mark.parametrize("folder", ["search", None])
@pytest.mark.usefixtures("with_ctrl_c")
def test_a_signal_ends_a_search_after_the_rounds_and_their_checkpoint(run_search, tmp_path, folder):
    folder = None if folder is None else tmp_path

    def interrupt(done, n):
        if done == 8:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_search(folder=folder, on_rounds=interrupt)
    assert (tmp_path / "parts" / "begun.npz").exists() == (folder is not None)


def test_a_begun_batch_is_one_of_its_stage_and_not_at_its_end(tmp_path):
    store = Store(tmp_path, n_seeds=2).open({"hyper.lr": [0.1], "n_seeds": 2, "points": [0], "halving": None})
    assert store.read_begun(0, np.arange(2), 3) is None
    part = Part(np.arange(2), np.full(2, -1), [np.zeros((2, 5))], {"loss": np.zeros((2, 2))})
    store.write(1, part, is_finished=False)
    chex.assert_trees_all_equal(store.read_begun(1, np.arange(2), 3), part)
    for stage, cells, n_rounds in ((0, np.arange(2), 3), (1, np.arange(1), 3), (1, np.arange(2), 2)):
        assert store.read_begun(stage, cells, n_rounds) is None


def test_a_begun_batch_belongs_to_its_search(run_search, tmp_path, averaging, federation, key):
    begun, made_again = tmp_path / "parts" / "begun.npz", []
    with pytest.raises(Stop):
        run_search(folder=tmp_path, on_rounds=stop_after(2), seconds_per_checkpoint=0)
    content = begun.read_bytes()
    begun.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"begun.npz .*delete it, and its runs are made again"):
        run_search(folder=tmp_path)
    begun.write_bytes(content)
    run_search(folder=tmp_path, at_once=1, on_rounds=lambda done, n: made_again.append(done))
    assert made_again[:2] == [0, 2]  # eight runs are more than a batch of now
    begun.write_bytes(content)  # as if the process had ended before this file was deleted
    calls = []
    run_search(folder=tmp_path, on_rounds=lambda done, n: calls.append((done, n)))
    assert calls == [(40, 40)]
    (read,) = fljax.load_sweep(tmp_path).found
    assert (read.rounds == ROUNDS).all()


def test_a_search_is_read_back_also_halfway(run_search, tmp_path):
    result = run_search(folder=tmp_path / "x", halving=2)
    (loaded,) = fljax.load_sweep(tmp_path / "x").found
    assert loaded.setting == {}
    assert [point["lr"] for point in loaded.points] == list(LR)
    np.testing.assert_array_equal(loaded.rounds, np.repeat(result.rounds[:, None], N_SEEDS, axis=1))
    chex.assert_trees_all_equal(loaded.metrics, {name: result.metrics[name] for name in loaded.metrics})
    max((tmp_path / "x" / "parts").glob("*.npz")).unlink()  # a batch of the last stage
    (loaded,) = fljax.load_sweep(tmp_path / "x").found
    n_missing = result.rounds[:, None] - loaded.rounds
    assert set(n_missing.ravel()) == {0, 2}
    point, seed = np.argwhere(n_missing)[0]
    curve = loaded.curves("accuracy_macro")[point, seed]
    assert np.isnan(curve[2:]).all()
    np.testing.assert_array_equal(curve[:2], result.metrics["accuracy_macro"][point, seed, :2])


def test_a_search_goes_on_with_more_seeds(run_search, averaging, federation, key, hypers, tmp_path, monkeypatch):
    two_seeds = run_search(folder=tmp_path)
    old_files = {path.name: path.read_bytes() for path in (tmp_path / "parts").glob("*.npz")}
    old_identity = (tmp_path / "parts/search.json").read_bytes()

    def with_seeds(n, **options):
        return search(averaging, hypers, federation, key, n, ROUNDS, **options)

    three_seeds = with_seeds(3, folder=tmp_path)
    for name, expected in with_seeds(3).metrics.items():
        np.testing.assert_array_equal(three_seeds.metrics[name][:, :N_SEEDS], two_seeds.metrics[name], err_msg=name)
        np.testing.assert_array_equal(three_seeds.metrics[name], expected, err_msg=name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "parts").glob("*.npz")}
    assert {name: files[name] for name in old_files} == old_files  # nothing was computed again
    assert len(files) > len(old_files)
    (loaded,) = fljax.load_sweep(tmp_path).found
    np.testing.assert_array_equal(loaded.metrics["test_loss"], three_seeds.metrics["test_loss"])
    with pytest.raises(ValueError, match="n_seeds=3, not 2"):
        run_search(folder=tmp_path)
    run_search(folder=tmp_path / "halved", halving=2)
    with pytest.raises(ValueError, match="n_seeds=2, not 3"):
        with_seeds(3, folder=tmp_path / "halved", halving=2)
    monkeypatch.setattr(writer, "_locked", lambda folder: None)  # what it says where nothing can be written
    reopened = with_seeds(3, folder=tmp_path)
    np.testing.assert_array_equal(reopened.metrics["test_loss"], three_seeds.metrics["test_loss"])
    with pytest.raises(ValueError, match="is not writable; choose another folder"):
        with_seeds(4, folder=tmp_path)
    (tmp_path / "parts/search.json").write_bytes(old_identity)  # put back from a copy of before the third seed
    for open_search in (run_search, fljax.load_sweep):
        with pytest.raises(ValueError, match="is not a batch of this search"):
            open_search(folder=tmp_path)


def identity_of(lr, numbers=None, n_seeds=1, halving=None, **more):
    numbers = list(range(len(lr))) if numbers is None else numbers
    return {"hyper.lr": lr, "hyper.momentum": 0.0, "points": numbers, "n_seeds": n_seeds, "halving": halving} | more


def test_points_keep_their_numbers_in_files_and_new_ones_come_after_all():
    rng = np.random.default_rng(0)
    for _ in range(50):
        few = rng.choice([0.1, 0.2, 0.3, 0.4], rng.integers(1, 6)).tolist()  # the same point may be there twice
        numbers = rng.permutation(len(few)).tolist()
        many = rng.permutation([*few, *rng.choice([0.1, 0.2, 0.5], rng.integers(4))]).tolist()
        given = identity_of(many, n_seeds=2)  # of a Hyper whose fields have got another order
        given = {name: given[name] for name in sorted(given, reverse=True)}
        merged, lacks = widened(identity_of(few, numbers, 3), given)
        assert lacks is None
        assert (merged["hyper.lr"], merged["n_seeds"]) == (many, 3)
        assert sorted(merged["points"]) == list(range(len(many)))
        assert all(
            few[numbers.index(number)] == lr
            for lr, number in zip(many, merged["points"], strict=True)
            if number < len(few)
        )
        for lr in set(many):  # of equal points, the numbers are in the order of the files' points
            kept = [number for one, number in zip(few, numbers, strict=True) if one == lr]
            found = [number for one, number in zip(many, merged["points"], strict=True) if one == lr]
            assert found[: len(kept)] == kept


def test_a_search_that_lacks_a_point_or_has_another_kind_of_it_is_another():
    stored = identity_of([0.1, 0.2, 0.3])
    assert widened(stored, identity_of([0.2, 0.1])).lacks == "lr=0.3"
    assert widened(identity_of([0.1]), identity_of([0.2])).lacks == "lr=0.1"
    assert widened(identity_of([0.1]), identity_of([0.1], **{"hyper.momentum": [0.5]})).lacks == "momentum=0.0"
    given = identity_of([0.1, 0.2, 0.3, 0.4], **{"hyper.momentum": None})
    assert widened(stored, given) == ({**stored, "hyper.lr": given["hyper.lr"]}, None)
    for one, two in ((2, None), (None, 2), (2, 2)):  # with halving, points are compared with each other
        assert widened(stored | {"halving": one}, given | {"halving": two}) == (stored | {"halving": one}, None)


@pytest.mark.slow
def test_a_search_goes_on_with_more_points(averaging, federation, key, tmp_path):
    """In any order, of numbers that did not vary before too; what is there is not computed again."""

    def search_over(n_seeds=2, folder=None, halving=None, **options):
        hypers = fljax.fedavg.Hyper(**options)
        return search(averaging, hypers, federation, key, n_seeds, 2, folder=folder, halving=halving)

    def files():
        return {path.name: path.read_bytes() for path in (tmp_path / "parts").glob("*.npz")}

    two_points = search_over(folder=tmp_path, lr=[0.3, 0.01], momentum=0.0)
    first_files = files()
    numbers = {"lr": [0.1, 0.01, 0.3, 0.3], "momentum": [0.0, 0.0, 0.5, 0.0]}
    result, expected = search_over(folder=tmp_path, **numbers), search_over(**numbers)
    for name, value in expected.metrics.items():
        np.testing.assert_array_equal(result.metrics[name], value, err_msg=name)
        np.testing.assert_array_equal(result.metrics[name][[3, 1]], two_points.metrics[name], err_msg=name)
    second_files = files()
    assert {name: second_files[name] for name in first_files} == first_files
    (loaded,) = fljax.load_sweep(tmp_path).found
    names = ("lr", "momentum")
    assert loaded.points == [
        dict(zip(names, pair, strict=True)) for pair in zip(numbers["lr"], numbers["momentum"], strict=True)
    ]
    np.testing.assert_array_equal(loaded.metrics["test_loss"], result.metrics["test_loss"])
    reversed_numbers = {name: value[::-1] for name, value in numbers.items()}
    three_seeds = search_over(n_seeds=3, folder=tmp_path, **reversed_numbers)
    np.testing.assert_array_equal(three_seeds.metrics["test_loss"][::-1, :2], result.metrics["test_loss"])
    third_files = files()
    assert {name: third_files[name] for name in second_files} == second_files
    assert len(third_files) > len(second_files) > len(first_files)
    with pytest.raises(ValueError, match=r"holds a run with hyper\.momentum=\[.*\], not None"):
        search_over(n_seeds=3, folder=tmp_path, lr=numbers["lr"])
    fewer_numbers = {name: value[:3] for name, value in numbers.items()}
    with pytest.raises(
        ValueError, match=r"holds runs of lr=0\.3, momentum=0\.0, which is not among the points; add it"
    ):
        search_over(n_seeds=3, folder=tmp_path, **fewer_numbers)
    search_over(folder=tmp_path / "halved", halving=2, lr=[0.1, 0.2])
    with pytest.raises(ValueError, match=r"holds a run with hyper\.lr="):
        search_over(folder=tmp_path / "halved", halving=2, lr=[0.1, 0.2, 0.3])


@pytest.mark.slow
def test_a_search_takes_keys_of_any_implementation_and_numpys_numbers(averaging, federation, tmp_path):
    key, hypers = jax.random.key(3, impl="rbg"), fljax.fedavg.Hyper(lr=[0.1, 0.2])
    result = search(averaging, hypers, federation, key, 1, 2, halving=np.int64(2), folder=tmp_path)
    expected = sweep(averaging, hypers, federation, key, 1, 1)
    np.testing.assert_allclose(result.metrics["test_loss"][:, :, 0], expected["test_loss"][:, :, 0], rtol=1e-5)


@pytest.mark.slow
def test_random_keys_and_bfloat16_in_a_state_are_kept_between_stages(averaging, federation, key, tmp_path):
    def init(key, hyper, data):
        state = averaging.init(key, hyper, data)
        of_clients = {
            "key": jax.random.split(key, data.n_clients),
            "half": jnp.full(data.size.shape, 0.1, jnp.bfloat16),
        }
        return State((state.server, key), of_clients)

    def round(key, hyper, state, cohort):
        theta, server_key = state.server
        next_state, metrics = averaging.round(key, hyper, State(theta, ()), cohort)
        draws = jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(state.clients["key"])
        of_clients = {"key": jax.vmap(lambda key: jax.random.fold_in(key, 1))(state.clients["key"])}
        of_clients["half"] = state.clients["half"] * draws.astype(jnp.bfloat16)
        metrics |= {"drawn": draws, "half": of_clients["half"].astype(jnp.float32)}
        return State((next_state.server, jax.random.fold_in(server_key, 1)), of_clients), metrics

    def deploy(key, hyper, state, data):
        return averaging.deploy(key, hyper, State(state.server[0], ()), data)

    algorithm = averaging._replace(init=init, round=round, deploy=deploy, exchange=None, about=About())
    run_search = partial(search, algorithm, fljax.fedavg.Hyper(lr=[0.1, 0.2]), federation, key, 1, 4)
    expected, halved = run_search(), run_search(halving=2, folder=tmp_path)
    for path in sorted(tmp_path.glob("parts/01-*.npz")):
        path.unlink()  # goes on from what the first stage kept
    for result in (halved, run_search(halving=2, folder=tmp_path)):
        (best,) = np.flatnonzero(result.rounds == 4)
        for name in ("drawn", "half", "test_loss"):
            np.testing.assert_allclose(result.metrics[name][best], expected.metrics[name][best], rtol=1e-5)


@pytest.mark.slow
def test_a_search_goes_on_at_the_level_it_was_begun_at(averaging, federation, key, tmp_path, monkeypatch):
    run_search = partial(search, averaging, fljax.fedavg.Hyper(lr=[0.1, 0.2]), federation, key, 1, 2, folder=tmp_path)
    for level in ("medium", "fast"):  # as the forecast says on one device and on another number of them
        monkeypatch.setattr(search_module, "level_of", lambda *_: level)  # noqa: B023
        run_search()
    assert json.loads((tmp_path / "parts" / "search.json").read_text())["compile"] == "medium"
    with pytest.raises(ValueError, match="compile='medium', not 'fast'"):
        run_search(compile="fast")


def test_stages_of_halving():
    assert rungs(9, 20) == [Rung(9, 20)]
    assert rungs(9, 27, 3) == [Rung(9, 3), Rung(3, 9), Rung(1, 27)]
    assert rungs(5, 4, 2) == [Rung(5, 1), Rung(3, 2), Rung(2, 4)]
    assert rungs(64, 10, 2, evaluate_every=5) == [Rung(64, 5), Rung(32, 10)]
    assert rungs(1, 100, 2) == [Rung(1, 100)]
    assert rungs(4, 10, 2) == [Rung(4, 3), Rung(2, 5), Rung(1, 10)]  # of 2.5 rounds 3
    with pytest.raises(ValueError, match="halving=1 keeps every point"):
        rungs(4, 4, 1)
    with pytest.raises(ValueError, match=r"halving=2\.5 is not a whole number"):
        rungs(4, 4, 2.5)


def test_survivors_are_the_best_and_of_equals_the_first():
    score = np.array([0.5, np.nan, 0.9, 0.5, -np.inf])
    assert list(survivors(score, 2)) == [0, 2]
    assert list(survivors(score, 3)) == [0, 2, 3]


def test_the_table_has_a_row_a_point_and_seed(sweep_metrics, hypers):
    rows = tidy(hypers, sweep_metrics, epochs=1)
    assert len(rows) == 5 * N_SEEDS
    assert [(row["epochs"], row["seed"]) for row in rows[:3]] == [(1, 0), (1, 1), (1, 0)]
    np.testing.assert_allclose([row["lr"] for row in rows[::N_SEEDS]], LR, rtol=1e-6)
    assert rows[2]["accuracy_macro"] == sweep_metrics["accuracy_macro"][1, 0, -1]
    assert rows[2]["best_accuracy"] == sweep_metrics["accuracy_macro"][1, 0].max()
    assert rows[2]["diverged"] is None
    assert (rows[4]["diverged"], rows[4]["accuracy_macro"]) == (1, None)


def test_points_are_told_apart_by_their_worst_clients(run_search, sweep_metrics, hypers):
    """The worst tenth of 9 clients is one, the lowest; diverged points have none."""
    lowest = np.nanmin(
        np.where(np.isnan(sweep_metrics["client_accuracy"]), np.inf, sweep_metrics["client_accuracy"]), axis=-1
    )
    rows = tidy(hypers, sweep_metrics)
    for i, row in enumerate(rows):
        expected = None if row["diverged"] else pytest.approx(lowest[i // N_SEEDS, i % N_SEEDS, -1])
        assert row["accuracy_worst10"] == expected
        assert (row["f1_worst10"] is None) == (row["diverged"] is not None)
    halved = run_search(halving=2, metric="accuracy_worst10")
    first_round = np.where(np.isfinite(lowest[:, :, 0]), lowest[:, :, 0], -1).mean(axis=1)
    assert {i for i in range(5) if halved.rounds[i] > 1} == set(np.argsort(-first_round, kind="stable")[:3])
    last = sorted(
        line.get_ydata()[-1] for line in curves(hypers, sweep_metrics, "accuracy_worst10").axes[0].get_lines()
    )
    np.testing.assert_allclose(last, sorted(lowest[[0, 1, 3, 4], :, -1].mean(axis=1)), rtol=1e-5)  # 2 has diverged


def test_the_best_point_and_its_interval(sweep_metrics, hypers):
    rows = tidy(hypers, sweep_metrics)
    values = sweep_metrics["accuracy_macro"][:, :, -1]
    best_point = best(rows)
    assert best_point.mean == pytest.approx(np.nanmax(values.mean(axis=1)), rel=1e-6)
    best_values = values[np.nanargmax(values.mean(axis=1))].astype(float)
    interval = stats.t.interval(0.95, 1, best_values.mean(), stats.sem(best_values))
    assert (best_point.low, best_point.high) == pytest.approx(interval, rel=1e-6)
    diverged = by_point(rows)[2]
    assert np.isnan(diverged.mean)
    assert diverged.n_diverged == N_SEEDS
    assert best(rows, "test_loss").mean == pytest.approx(
        np.nanmin(sweep_metrics["test_loss"][:, :, -1].mean(axis=1)), rel=1e-6
    )
    with pytest.raises(ValueError, match="every point diverged"):
        best([row for row in rows if row["diverged"]])
    for no_metric in ("seed", "lr", "best_round"):
        with pytest.raises(ValueError, match=f"^metric='{no_metric}' is unknown; choose one of accuracy_macro, "):
            best(rows, no_metric)


def test_intervals_are_shown_as_far_as_a_metric_goes_and_with_what_they_leave_out():
    hypers, values = fljax.fedavg.Hyper(lr=jnp.array([0.1])), np.array([[[0.1], [0.31]]])
    diverged = np.zeros((1, 2, 1), bool)
    rows = tidy(hypers, {"accuracy_macro": values, "test_loss": values, "diverged": diverged})
    assert stats.t.interval(0.95, 1, 0.205, 0.105) == pytest.approx((-1.1292, 1.5392), abs=1e-4)
    assert verdict(rows, "accuracy_macro").endswith("(95 % interval over 2 seeds of one partition: 0.0000 to 1.0000)")
    assert verdict(rows, "test_loss").endswith("0.0000 to 1.5392)")
    assert "0.0000 to 1.0000" in as_table(by_point(rows), "accuracy_macro").text
    assert best(rows)[2:4] == (0, 1)
    (r2_point,) = by_point(
        tidy(hypers, {"accuracy_macro": values, "r2_micro": values, "diverged": diverged}), "r2_micro"
    )
    assert "-1.1292 to 1.0000" in as_table([r2_point], "r2_micro").text


def rows_of_ends(ends, **setting):
    """Rows of the points lr = 0.1, 0.2, ... with these accuracies, (points, seeds), at the end."""
    hypers = fljax.fedavg.Hyper(lr=jnp.arange(1, len(ends) + 1) / 10)
    accuracy = np.asarray(ends, np.float32)[:, :, None]
    return tidy(hypers, {"accuracy_macro": accuracy, "diverged": np.isnan(accuracy)}, **setting)


def test_runs_on_several_partitions_have_the_interval_over_the_partitions():
    ends = np.random.default_rng(0).uniform(0.4, 0.6, (3, 2, 4))  # (partitions, points, seeds)
    ends[:, 1] += 0.1
    rows = [row for i in range(3) for row in rows_of_ends(ends[i], partition_seed=i)]
    points = by_point(rows)
    means = ends.mean(axis=2)  # seeds of one partition are not independent
    for i, point in enumerate(points):
        low, high = stats.t.interval(0.95, 2, means[:, i].mean(), stats.sem(means[:, i]))
        assert point[1:6] == pytest.approx((means[:, i].mean(), low, high, 12, 0), rel=1e-5)
        assert (point.point, point.n_partitions) == ({"lr": (i + 1) / 10}, 3)
    text = f"(95 % interval over 3 partitions: {points[1].low:.4f} to {points[1].high:.4f})"
    assert verdict(rows, "accuracy_macro") == f"best: lr=0.2: accuracy_macro {points[1].mean:.4f} {text}"
    lucky = rows_of_ends([[0.0], [0.0], [0.9]], partition_seed=0)[2:]  # lr = 0.3 was run on one partition only
    assert best(rows + lucky).point == {"lr": 0.2}
    table = as_table(by_point(rows + lucky), "accuracy_macro")
    assert [row[:3] for row in table.cells] == [["0.2", "1", "3"], ["0.1", "1", "3"], ["0.3", "1", "1"]]
    assert table.header[:3] == ["lr", "rounds", "partitions"]


def test_a_metric_that_no_client_has_chooses_nothing():
    hypers, shape = fljax.fedavg.Hyper(lr=jnp.array([0.1, 0.2, 0.3])), (3, 2, 1)
    values = np.array([[0.9, np.nan], [0.4, 0.5], [np.nan, 0.9]], np.float32)[:, :, None]
    metrics = {"accuracy_macro": np.full(shape, 0.5), "client_auc": values[..., None], "auc_macro": values}
    metrics["diverged"] = np.zeros(shape, bool)
    rows = tidy(hypers, metrics)
    assert best(rows, "auc_macro")[:2] == ({"lr": 0.2}, pytest.approx(0.45))
    nothing = tidy(hypers, metrics | {"auc_macro": np.full(shape, np.nan)})
    with pytest.raises(ValueError, match=r"^no point has a finite auc_macro on every seed"):
        verdict(nothing, "auc_macro")
    assert best(nothing).n_seeds == 2  # by another metric


def test_conditions_have_a_best_point_each():
    easy, hard = rows_of_ends([[0.8], [0.9]], beta="1.0"), rows_of_ends([[0.4], [0.3]], beta="0.1")
    told = list(verdicts(easy + hard, "accuracy_macro", conditions=["beta"]))
    assert told == [
        ("best with beta=1.0: lr=0.2: accuracy_macro 0.9000", {"beta": "1.0", "lr": 0.2}),
        ("best with beta=0.1: lr=0.1: accuracy_macro 0.4000", {"beta": "0.1", "lr": 0.1}),
    ]
    assert [line for line, _ in verdicts(easy + hard, "accuracy_macro")] == [verdict(easy + hard, "accuracy_macro")]
    lost = rows_of_ends([[np.nan]], beta="0.01")
    assert [point for _, point in verdicts(lost + hard, "accuracy_macro", conditions=["beta"])] == [None, told[1][1]]
    with pytest.raises(ValueError, match="every point diverged"):
        list(verdicts(lost, "accuracy_macro", conditions=["beta"]))


def test_curves_say_how_many_of_the_points_they_show():
    hypers, values = fljax.fedavg.Hyper(lr=jnp.linspace(0.01, 0.1, 8)), np.linspace(0.2, 0.9, 8)
    metrics = {"accuracy_macro": np.broadcast_to(values[:, None, None], (8, 2, 3)).copy()}
    axes = curves(hypers, metrics).axes[0]
    assert "the best 6 of 8 points" in {axes.get_title(), axes.get_title("left"), axes.get_title("right")}
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == pytest.approx(list(values[2:]))
    axes = curves(fljax.fedavg.Hyper(lr=hypers.lr[:3]), {"accuracy_macro": metrics["accuracy_macro"][:3]}).axes[0]
    assert "points" not in axes.get_title() + axes.get_title("left")


def test_curves_leave_out_what_diverged_and_tell_near_points_apart():
    hypers = fljax.fedavg.Hyper(lr=np.array([0.1, 0.10001, 0.2]))
    accuracy = np.array([[[0.2, 0.5]], [[0.2, 0.4]], [[0.9, np.nan]]])
    metrics = {"accuracy_macro": accuracy, "diverged": np.isnan(accuracy)}
    axes = curves(hypers, metrics).axes[0]
    assert sorted(line.get_ydata()[-1] for line in axes.lines) == [0.4, 0.5]
    assert {line.get_label() for line in axes.lines} == {"lr 0.1", "lr 0.10001"}


def test_a_point_that_was_run_twice_is_two(sweep_metrics, hypers):
    indices = np.array([1, 3, 1])
    repeated = fljax.fedavg.Hyper(lr=hypers.lr[indices])
    spreads = by_point(tidy(repeated, {name: np.asarray(value)[indices] for name, value in sweep_metrics.items()}))
    assert [spread.n_seeds for spread in spreads] == [N_SEEDS] * 3
    assert (spreads[0].mean, spreads[0].low) == (spreads[2].mean, spreads[2].low)
    assert spreads[0].low == by_point(tidy(hypers, sweep_metrics))[1].low


@pytest.mark.parametrize("halving", [None, 2])
def test_an_unknown_metric_is_refused_at_once(run_search, sweep_metrics, hypers, tmp_path, halving):
    for metric in ("speed", "client_accuracy"):
        with pytest.raises(ValueError, match=f"metric='{metric}' is unknown; choose one of accuracy_macro, "):
            run_search(metric=metric, halving=halving, folder=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="metric='speed' is unknown"):
        best(tidy(hypers, sweep_metrics), "speed")
    with pytest.raises(ValueError, match="give those of tidy"):
        by_point([])


def test_losers_of_halving_are_never_the_best(hypers, sweep_metrics):
    rows = tidy(hypers, sweep_metrics, [1, 2, 1, 4, 4])
    assert best(rows).rounds == 4
    assert best(rows).point["lr"] in (pytest.approx(0.1), pytest.approx(0.001))


def test_of_survivors_that_diverged_the_next_longest_is_the_best_and_says_so():
    """One order for the best, the table and the figures: whole points first, then the longest, then the mean."""

    def row(lr, mu, seed, rounds, value):
        return {"lr": lr, "mu": mu, "seed": seed, "rounds": rounds, "diverged": None, "accuracy_macro": value}

    rows = [
        *(row(1, 0, seed, 4, value) for seed, value in enumerate((0.9, None))),  # kept by halving, and diverged
        *(row(1, 1, seed, 2, 0.5) for seed in range(2)),
        *(row(1, 2, seed, 1, 0.8) for seed in range(2)),
        *(row(2, 1, seed, 2, 0.4) for seed in range(2)),
    ]
    assert best(rows).point == {"lr": 1, "mu": 1}
    outcome = "accuracy_macro 0.5000 (equal on all 2 seeds of one partition) after 2 of 4 rounds; "
    assert verdict(rows, "accuracy_macro") == f"best: lr=1, mu=1: {outcome}all points with more rounds diverged"
    lines = as_table(by_point(rows), "accuracy_macro").text.splitlines()
    assert [line.split()[:3] for line in lines[-4:]] == [list("112"), list("212"), list("121"), list("104")]
    response_line = response(rows, "lr").axes[0].lines[0]
    assert (list(response_line.get_xdata()), list(response_line.get_ydata())) == ([1, 2], [0.5, 0.4])


def test_curves_show_what_halving_kept_first():
    n, hypers = 8, fljax.fedavg.Hyper(lr=jnp.linspace(0.01, 0.1, 8))
    accuracy = np.full((n, 1, 4), np.nan)
    accuracy[:, 0, 0] = 0.9
    accuracy[:2, 0] = [[0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.5]]
    lines = curves(hypers, {"accuracy_macro": accuracy}).axes[0].lines
    assert [len(line.get_ydata()) for line in lines] == [4, 4, 1, 1, 1, 1]
    assert [line.get_ydata()[-1] for line in lines[:2]] == [0.5, 0.4]


@pytest.mark.parametrize("name", ["seed", "diverged", "test_loss"])
def test_a_setting_is_no_column_of_the_run(sweep_metrics, hypers, name):
    with pytest.raises(ValueError, match=f"{name}=3: the table has a column {name} already; give the setting another"):
        tidy(hypers, sweep_metrics, **{name: 3})


def test_static_settings_are_an_outer_loop_and_say_so():
    messages = []
    results = over_settings(lambda epochs, k: (epochs, k), messages.append, epochs=(1, 2), k=("a", "b"))
    assert [result for _, result in results] == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert results[1][0] == {"epochs": 1, "k": "b"}
    assert messages[1] == "static setting 2 of 4: epochs=1, k=b (compiled once)"
    with pytest.raises(ValueError, match="epochs: an empty grid"):
        over_settings(lambda epochs: epochs, epochs=())


def test_choosing_by_validation_data(federation):
    with_val = federation._replace(val=federation.train)
    test_split = on_validation(with_val).test
    assert test_split.pool is federation.train.pool
    assert test_split.index is federation.train.index
    np.testing.assert_array_equal(test_split.size, federation.train.size)
    with pytest.raises(ValueError, match="no validation split"):
        on_validation(federation._replace(val=None))


@pytest.mark.parametrize(("metric", "best_first"), [("accuracy_macro", [2, 3, 1]), ("test_loss", [1, 2, 3])])
def test_the_first_row_of_the_table_is_the_best_point_of_equals(metric, best_first):
    values = {1: 0.5, 2: 0.75, 3: 0.75}
    rows = [{"lr": lr, "seed": 0, "rounds": 4, "diverged": False, metric: value} for lr, value in values.items()]
    lines = as_table(by_point(rows, metric), metric).text.splitlines()
    assert [int(line.split()[0]) for line in lines if line.split()[0].isdigit()] == best_first
    assert best(rows, metric).point == {"lr": best_first[0]}
    assert verdict(rows, metric).endswith("1 other point is as good") == (metric == "accuracy_macro")


def test_what_is_tested_on_another_split_has_its_name_and_nothing_else_has():
    names = ("accuracy_macro", "test_loss", "auc_micro", "client_accuracy", "client_row", "loss", "ari", "rounds", "lr")
    renamed = of_split(dict.fromkeys(names, 0), "val")
    assert [*renamed][:4] == ["val_accuracy_macro", "val_loss", "val_auc_micro", "val_client_accuracy"]
    assert [*renamed][4:] == [*names][4:]
    assert [unnamed(name, "val") for name in renamed] == [*names]
    assert [*of_split(dict.fromkeys(names, 0), "test")] == [unnamed(name, "test") for name in names] == [*names]


@pytest.mark.slow
def test_halving_by_agreement_is_of_all_clients_and_runs_without_it_are_refused(run_search, federation):
    """After the second round the first two points are alike to those who take part in it, not to all so far."""
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    algorithm = fljax.ifca(model, fljax.Work(epochs=1, batch_size=8), n_clusters=4)
    hypers = fljax.ifca.Hyper(lr=[1e-4, 0.03, 0.003, 1.0])
    arguments = algorithm, hypers, federation, jax.random.key(1), N_SEEDS, ROUNDS
    run = partial(search, *arguments, participation=0.5, compile="fast")
    unhalved, halved = run(), run(halving=2, metric="ari")
    ari, label, ids = (unhalved.metrics[name] for name in ("ari", "label", "ids"))
    of_round = [[adjusted_rand_score(federation.group[ids[i, s, 1]], label[i, s, 1]) for s in (0, 1)] for i in (0, 1)]
    assert np.mean(of_round[0]) == np.mean(of_round[1])
    np.testing.assert_array_equal(ari[:, :, 0].mean(axis=1), ari[0, :, 0].mean())  # of equals the first go on
    assert ari[1, :, 1].mean() > ari[0, :, 1].mean() + 0.1
    assert list(halved.rounds) == [2, 4, 1, 1]
    rows = tidy(hypers, unhalved.metrics)
    assert [row["ari"] for row in rows] == pytest.approx(ari[:, :, -1].ravel())
    assert best(rows, "ari").mean == pytest.approx(ari[:, :, -1].mean(axis=1).max())
    with pytest.raises(ValueError, match="metric='ari': these runs do not have it; it needs a clustered method and"):
        run_search(metric="ari")


def test_of_sweeps_of_different_lengths_the_share_of_the_rounds_ranks():
    lengths = {"short": (2, 2), "long": (4, 4), "cut short": (2, 4)}
    means = {"short": 0.6, "long": 0.5, "cut short": 0.9}
    spreads = [
        Spread({"lr": name, "sweep.rounds": n_planned}, means[name], np.nan, np.nan, 1, 0, rounds)
        for name, (rounds, n_planned) in lengths.items()
    ]
    assert [spread.point["lr"] for spread in ranked(spreads, "accuracy_macro")] == ["short", "long", "cut short"]
    without_lengths = [spread._replace(point={"lr": spread.point["lr"]}) for spread in spreads]
    assert [spread.point["lr"] for spread in ranked(without_lengths, "accuracy_macro")] == [
        "long",
        "cut short",
        "short",
    ]
