"""Federations that change: what each drift does to whose data, and that a run sees it in the right rounds."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.attacks import attacked, backdoor, label_flip
from fljax.data.holdout import clients_of
from fljax.data.images import rotate
from fljax.data.synthetic import linear_groups
from fljax.drift import (
    DRIFTS,
    Drift,
    Timeline,
    arrive,
    changes,
    drifting,
    leave,
    move,
    rotate_images,
    stages,
    swap_labels,
)
from fljax.report.changes import after_changes, change_rows, changes_table
from fljax.rounds.joining import everyone
from fljax.run.sweep.search import on_validation
from fljax.types import Work
from tests.oracle import rows_of

WORK = Work(epochs=1, batch_size=8)
MODEL = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
SPLITS = ("train", "test")


jitted = jax.jit(stages.at)


def at(federation, round):
    return jitted(federation, np.int32(round))


def examples(federation, split, client):
    """A client's own examples, as NumPy arrays."""
    data = getattr(federation, split)
    rows = np.asarray(data.index)[client, : int(data.size[client])]
    return np.asarray(data.pool.x)[rows], np.asarray(data.pool.y)[rows]


def are_equal(examples_a, examples_b):
    return examples_a[0].shape == examples_b[0].shape and all(
        np.array_equal(a, b) for a, b in zip(examples_a, examples_b, strict=True)
    )


def test_nothing_that_changes_is_the_federation_itself(federation):
    assert drifting(federation, DRIFTS["none"]()) is federation
    assert stages.at(federation, 3) is federation
    assert changes(federation) == ()


@pytest.mark.parametrize("name", [name for name in DRIFTS if name != "none"])
def test_every_drift_leaves_the_rounds_before_it_alone(federation, name):
    drifting_federation = drifting(federation, DRIFTS[name](start=3, changes=2, every=4))
    assert changes(drifting_federation) == (3, 7)
    for round in (0, 2):
        of_round = at(drifting_federation, round)
        for i in range(9):
            assert are_equal(examples(of_round, "train", i), examples(federation, "train", i))
            test_examples = examples(of_round, "test", i)
            assert are_equal(test_examples, examples(federation, "test", i)) or not of_round.there[i]
    chex.assert_trees_all_equal(at(drifting_federation, 0).group, federation.group)
    rows = jax.tree.map(np.asarray, drifting_federation.stages)
    for round, stage in ((2, 0), (3, 1), (6, 1), (7, 2), (99, 2)):
        of_round, expected = at(drifting_federation, round), jax.tree.map(lambda leaf, stage=stage: leaf[stage], rows)
        chex.assert_trees_all_equal((of_round.group, of_round.there), (expected.group, expected.there))
        for split in SPLITS:
            chex.assert_trees_all_equal(getattr(of_round, split)[1:], tuple(getattr(expected, split)))
    assert jax.tree.map(jnp.shape, of_round) == jax.tree.map(jnp.shape, drifting_federation._replace(stages=None))
    with pytest.raises(ValueError, match="changes over the rounds already"):
        drifting(drifting_federation, DRIFTS[name]())


def test_labels_are_swapped_and_swapped_back(federation):
    drifting_federation = drifting(federation, swap_labels(classes=(1, 3), share=0.34, start=3, changes=2, every=4))
    swapped_clients = np.flatnonzero(np.asarray(at(drifting_federation, 3).group) != np.asarray(federation.group))
    assert len(swapped_clients) == 3
    assert len(set(np.asarray(federation.group)[swapped_clients])) == 3  # of every group one
    for split in SPLITS:
        for i in range(9):
            (x, y), (new_x, new_y) = examples(federation, split, i), examples(at(drifting_federation, 4), split, i)
            np.testing.assert_array_equal(new_x, x)
            np.testing.assert_array_equal(new_y, np.array([0, 3, 2, 1])[y] if i in swapped_clients else y)
            assert are_equal(examples(at(drifting_federation, 7), split, i), (x, y))


def test_images_are_turned_further_at_each_change(federation):
    drifting_federation = drifting(federation, rotate_images(degrees=90, share=1.0, start=1, changes=2, every=1))
    for stage in (1, 2):
        for split in SPLITS:
            for i in (0, 8):
                x, y = examples(federation, split, i)
                new_x, new_y = examples(at(drifting_federation, stage), split, i)
                np.testing.assert_array_equal(new_x, rotate(x, 90.0 * stage))
                np.testing.assert_array_equal(new_y, y)
    assert (
        drifting_federation.train.pool is drifting_federation.test.pool
        or federation.train.pool is not federation.test.pool
    )


def test_examples_alone_are_copied(federation):
    """Of ragged clients: the tables have several times as many columns as most clients have examples."""
    drifting_federation = drifting(federation, rotate_images(start=1, changes=2, every=1, share=1.0))
    n_examples = sum(int(getattr(federation, split).size.sum()) for split in SPLITS)
    assert len(drifting_federation.train.pool.y) == len(federation.train.pool.y) + 2 * n_examples


def test_clients_that_move_have_the_data_of_another_group(federation):
    drifting_federation, group = (
        drifting(federation, move(share=0.67, start=1, changes=2, every=1)),
        np.asarray(federation.group),
    )
    of_last_round = at(drifting_federation, 0)
    for stage in (1, 2):
        of_round, old_group = at(drifting_federation, stage), np.asarray(of_last_round.group)
        is_moved = np.asarray(of_round.group) != old_group
        assert is_moved.sum() == 6
        for i in range(9):
            owners = [
                j for j in range(9) if are_equal(examples(of_round, "train", i), examples(federation, "train", j))
            ]
            assert len(owners) == 1
            assert of_round.group[i] == group[owners[0]]
            assert are_equal(examples(of_round, "test", i), examples(federation, "test", owners[0]))
        of_last_round = of_round
    with_fewest_moves = at(
        drifting(federation, move(share=0.01, start=1)), 1
    )  # two, for one has nobody to exchange with
    assert (np.asarray(with_fewest_moves.group) != group).sum() == 2


def test_who_is_not_there_takes_no_part_and_is_not_tested(federation, key):
    for drift, counts in ((arrive, [6, 6, 8, 9]), (leave, [9, 9, 7, 6])):
        drifting_federation = drifting(federation, drift(share=0.34, start=2, changes=2, every=1))
        is_there = np.stack([np.asarray(at(drifting_federation, round).there) for round in range(4)])
        np.testing.assert_array_equal(is_there.sum(axis=1), counts)
        _, metrics = fljax.simulate(fljax.fedavg(MODEL, WORK), fljax.fedavg.Hyper(lr=0.1), drifting_federation, key, 4)
        np.testing.assert_array_equal(metrics["active"], is_there)
        np.testing.assert_array_equal(np.isfinite(metrics["client_accuracy"]), is_there)
        np.testing.assert_allclose(metrics["accuracy_macro"], np.nanmean(metrics["client_accuracy"], axis=1), rtol=1e-5)


@pytest.fixture(scope="module")
def drifting_run(federation):
    """What a run of four rounds is given, whose labels are swapped from the third on."""
    federation_of_run = drifting(federation, swap_labels(share=0.5, start=2))
    return fljax.ifca(MODEL, WORK, n_clusters=2), fljax.ifca.Hyper(lr=0.1), federation_of_run, jax.random.key(0), 4


@pytest.fixture(scope="module")
def chunked_metrics(drifting_run):
    """The metrics of that run, in chunks of one round."""
    return fljax.train(*drifting_run, seconds_per_chunk=1e-9, compile="fast").metrics


@pytest.mark.slow
def test_a_run_sees_each_round_as_it_is(drifting_run, chunked_metrics):
    """Until the change a run is that of a federation which never changes."""
    algorithm, hyper, drifting_federation, key, n_rounds = drifting_run
    unchanged = drifting_federation._replace(
        stages=drifting_federation.stages._replace(begins=np.array([0, 9], np.int32))
    )
    metrics_without_change = fljax.train(
        algorithm, hyper, unchanged, key, n_rounds, seconds_per_chunk=1e-9, compile="fast"
    ).metrics
    for name in ("loss", "client_accuracy", "ari"):
        np.testing.assert_array_equal(chunked_metrics[name][:2], metrics_without_change[name][:2])
    assert (chunked_metrics["client_loss"][2] != metrics_without_change["client_loss"][2]).any()


@pytest.mark.slow
def test_chunks_of_a_changing_run_are_the_whole(drifting_run, chunked_metrics):
    _, metrics = fljax.simulate(*drifting_run)
    for name in ("loss", "client_accuracy", "ari"):
        np.testing.assert_allclose(chunked_metrics[name], metrics[name], rtol=1e-5, atol=1e-6)


def test_attackers_attack_in_every_stage(federation, model):
    drifting_federation = drifting(federation, move(share=1.0, start=1))
    attacked_federation = attacked(fljax.fedavg(model, WORK), drifting_federation, label_flip(ids=(2, 7))).federation
    for round in (0, 1):
        of_round = at(attacked_federation, round)
        np.testing.assert_array_equal(np.asarray(of_round.test.size) == 0, np.isin(np.arange(9), (2, 7)))
        np.testing.assert_array_equal(examples(of_round, "train", 2)[1], 3 - examples(federation, "train", 2)[1])
        assert are_equal(examples(of_round, "train", 0), examples(at(drifting_federation, round), "train", 0))


@pytest.mark.parametrize("in_halves", [False, True])
@pytest.mark.parametrize("start", [0, 1])
def test_attackers_that_move_keep_their_poisoned_examples(start, in_halves):
    """In a round that is one function, and in one whose halves bricks may come between."""
    drifting_federation = drifting(linear_groups(6, 2, examples=24, ragged=0.8, seed=5), move(share=1.0, start=1))
    method = fljax.fedavg(MODEL, WORK)
    halves = method.exchange._replace(send=lambda *given: given[-1].data, receive=lambda *given: given[-1])
    returns_data = (
        method._replace(exchange=halves, round=halves.round)
        if in_halves
        else method._replace(exchange=None, round=lambda key, hyper, state, cohort: cohort.data)
    )
    attacked_run = attacked(returns_data, drifting_federation, label_flip(ids=(0, 1), start=start))
    of_round = at(attacked_run.federation, 1)
    cohort = everyone(jax.random.key(0), jnp.int32(1), of_round.train)
    data = attacked_run.algorithm.round(None, None, None, cohort)
    for i in (0, 1):
        rows, own_examples = rows_of(data, i), examples(drifting_federation, "train", i)
        assert are_equal((np.asarray(data.pool.x)[rows], 3 - np.asarray(data.pool.y)[rows]), own_examples)
        assert int(drifting_federation.stages.train.size[1, i]) != len(rows)


@pytest.mark.slow
def test_a_trigger_is_tested_on_who_is_there(federation, model, key):
    drifting_federation = drifting(federation, leave(start=1, share=0.6))
    attacked_run = attacked(fljax.fedavg(model, WORK), drifting_federation, backdoor(target=0, ids=(0,), width=2))
    triggered, is_there = attacked_run.federation.triggered, at(attacked_run.federation, 1).there
    triggered_of_present = triggered._replace(size=jnp.where(is_there, triggered.size, 0))
    assert 0 < int(triggered_of_present.size.sum()) < int(triggered.size.sum())
    results = [
        fljax.simulate(
            attacked_run.algorithm,
            fljax.fedavg.Hyper(lr=0.1),
            attacked_run.federation._replace(triggered=some_triggered),
            key,
            2,
        )[1]
        for some_triggered in (triggered, triggered_of_present)
    ]
    np.testing.assert_array_equal(*(metrics["attack_success"][-1] for metrics in results))


def test_parts_of_a_changing_federation_change_alike(federation):
    drifting_federation = drifting(federation, leave(share=0.5, start=1))
    of_some_clients = at(clients_of(drifting_federation, np.array([1, 4, 6])), 1)
    np.testing.assert_array_equal(of_some_clients.there, np.asarray(at(drifting_federation, 1).there)[[1, 4, 6]])
    for row, i in enumerate((1, 4, 6)):
        assert are_equal(examples(of_some_clients, "train", row), examples(at(drifting_federation, 1), "train", i))
    with_val = drifting(federation._replace(val=federation.train), leave(share=0.5, start=1))
    on_val = on_validation(with_val)
    sizes = np.where(at(drifting_federation, 1).there, federation.train.size, 0)
    np.testing.assert_array_equal(at(on_val, 1).test.size, sizes)
    np.testing.assert_array_equal(on_val.test.size, federation.train.size)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: swap_labels(share=1.5), "share=1.5 is out of its range"),
        (lambda: swap_labels(start=0), "start=0 is not positive"),
        (lambda: swap_labels(classes=(2, 2)), "give two different whole numbers from 0"),
        (lambda: swap_labels(degrees=90), "swap_labels has no 'degrees'; choose one of classes, share, start"),
        (lambda: swap_labels(classes=(0, 7)), "give two different classes from 0 to 3"),
        (lambda: rotate_images(degrees=400), "degrees=400 is out of its range"),
        (lambda: leave(share=1.0), "no client would be present"),
        (lambda: leave, r"^drift is <function .*leave.*>, not a Drift; call one of fljax.drift, such as "),
        (lambda: "leave", r"^drift is 'leave', not a Drift; call one of fljax.drift, such as "),
    ],
)
def test_drifts_that_cannot_be_are_refused(federation, make, message):
    with pytest.raises(ValueError, match=message):
        drifting(federation, make())


@pytest.mark.parametrize("classes", [(0.5, 1.0), (0, 1, 2), ("a", "b"), (True, 0), (-1, 0), [0, [1]], 3, np.arange(2)])
def test_classes_that_change_places_are_two_whole_numbers(classes):
    with pytest.raises(ValueError, match=r"^classes=.*: give two different whole numbers from 0, such as \(0, 1\)"):
        swap_labels(classes=classes)


def test_equal_arguments_of_other_types_make_the_same_drift():
    assert swap_labels(classes=[0, 2], share=np.array(0.25)) is swap_labels(classes=(0, 2), share=0.25)
    assert rotate_images(degrees=jnp.float32(45)) is rotate_images(degrees=45.0)


def test_only_images_are_turned(federation):
    pool = federation.train.pool._replace(x=jnp.zeros((len(federation.train.pool.y), 5)))
    with pytest.raises(ValueError, match=r"^rotate_images: examples have shape .*; give images"):
        drifting(federation._replace(train=federation.train._replace(pool=pool)), rotate_images())
    floats = federation.train.pool._replace(y=jnp.zeros(len(federation.train.pool.y)))
    with pytest.raises(ValueError, match="not classes, which the drift swap_labels needs; choose another"):
        drifting(federation._replace(train=federation.train._replace(pool=floats)), swap_labels())


def test_what_changes_cost_by_hand():
    accuracy = np.array([0.5, 0.8, np.nan, 0.2, np.nan, 0.6, 0.79, 0.9, 0.4])
    ari = np.array([0, 1, 1, 0.5, 0.5, 0.5, 0.7, 0.8, 0.1])
    first_change, second_change = after_changes({"accuracy_macro": accuracy, "ari": ari}, (2, 7))
    # Between the tests of rounds 4 and 6 (0.2, 0.6) round 5 counts as 0.4; round 3 as the first test after the change.
    assert first_change[:3] == (3, 0.8, 0.2)
    assert first_change.regret == pytest.approx(0.6 + 0.6 + 0.4 + 0.2 + 0.01)
    assert first_change.recovered == 4
    assert (first_change.ari_before, first_change.ari_after, first_change.ari_end) == (1, 1, 0.7)
    assert (second_change.ari_before, second_change.ari_after, second_change.ari_end) == (0.7, 0.8, 0.1)
    assert second_change.regret == pytest.approx(0.39)
    assert second_change.recovered == 0
    assert after_changes({"accuracy_macro": accuracy[:7]}, (2, 7))[0].ari_end is None
    assert len(after_changes({"accuracy_macro": accuracy[:7]}, (2, 7))) == 1
    assert change_rows({"a": [first_change]})[0]["algorithm"] == "a"
    assert "0.8000" in changes_table({"a": [first_change, second_change]})
    with pytest.raises(ValueError, match="measure='no' is not a metric"):
        after_changes({"accuracy_macro": accuracy}, (2,), measure="no")
    with pytest.raises(ValueError, match="tolerance=-1"):
        after_changes({"accuracy_macro": accuracy}, (2,), tolerance=-1)
    for rounds in ((-1,), (0,), (3, 1)):
        with pytest.raises(ValueError, match="give increasing rounds >= 1"):
            after_changes({"accuracy_macro": accuracy}, rounds)
    with pytest.raises(ValueError, match=r"federation=1\.5 is not a whole number"):
        after_changes({"accuracy_macro": accuracy}, (1.5,))
    assert after_changes({"accuracy_macro": accuracy}, np.array([2, 7]))[0][:3] == (3, 0.8, 0.2)
    for metrics, rounds, tolerance, message in (
        (5, (2,), 0, "metrics is 5, not a Mapping; give those of a run"),
        ({"accuracy_macro": accuracy}, 5, 0, "federation is of type int, not a list; give one of fljax.drift"),
        ({"accuracy_macro": accuracy}, (2,), "a", "tolerance='a' is not a number"),
    ):
        with pytest.raises(ValueError, match=message):
            after_changes(metrics, rounds, tolerance=tolerance)


def own_drift(**fields):
    """A drift of one's own with one change, whose timeline has these fields."""
    return Drift("own", lambda federation: Timeline.of(2, 9)._replace(**fields), start=1, changes=1)


EACH = np.ones((2, 9), int)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"owner": EACH[:1]}, r"own: owner of shape \(1, 9\) .*whole numbers of shape \(2, 9\), one row per stage"),
        ({"version": EACH[:, :8]}, r"own: version of shape \(2, 8\)"),
        ({"there": np.ones((3, 9), bool)}, r"own: there of shape \(3, 9\) .*True or False of shape \(2, 9\)"),
        ({"there": EACH}, "own: there of shape .* and dtype int64; give True or False"),
        ({"owner": EACH / 2}, "own: owner of shape .* and dtype float64; give whole numbers"),
        ({"owner": EACH * 9}, "own: owner from 9 to 9; choose from 0 to 8"),
        ({"owner": -EACH}, "own: owner from -1 to -1; choose from 0 to 8"),
        ({"version": EACH}, "own: version from 1 to 1; choose from 0 to 0"),
        ({"version": EACH, "versions": (lambda x, y: (x[::2], y[::2]),)}, "own: version 1 returned x of shape"),
        (
            {"version": EACH, "versions": (lambda x, y: (x, y + 2.0**31),)},
            "own: version 1 returned y from .*; return values from -2147483648 to 2147483647, for int32",
        ),
    ],
)
def test_a_drift_of_ones_own_that_does_not_fit_is_refused(federation, fields, message):
    with pytest.raises(ValueError, match=message):
        drifting(federation, own_drift(**fields))


def test_a_version_beyond_the_pixels_of_bytes_is_refused(federation):
    """They would wrap round: 255 + 100 is 99."""
    pool = federation.train.pool._replace(x=jnp.full(federation.train.pool.x.shape, 255, jnp.uint8))
    uint8_federation = federation._replace(**{name: getattr(federation, name)._replace(pool=pool) for name in SPLITS})
    version = EACH * np.array([[0], [1]])
    with pytest.raises(
        ValueError, match=r"own: version 1 returned x from 355\.0 to 355\.0; return values from 0 to 255, for uint8"
    ):
        drifting(uint8_federation, own_drift(version=version, versions=(lambda x, y: (x + 100.0, y),)))
    drifting_federation = drifting(
        uint8_federation, own_drift(version=version.tolist(), versions=(lambda x, y: (x - 100.0, y),))
    )
    assert (examples(at(drifting_federation, 1), "train", 4)[0] == 155).all()
    assert (examples(at(drifting_federation, 0), "train", 4)[0] == 255).all()
