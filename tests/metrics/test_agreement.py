"""Agreement of clusters with the true groups, round by round, beside scikit-learn's of labels kept in plain Python."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import fljax
from fljax.drift.stages import at
from fljax.folder.resume import Begun
from fljax.metrics.agreement import Truth, ari_of_rounds, truth_of
from fljax.metrics.churn import churn_of_rounds
from fljax.rounds.named_samplings import uniform
from fljax.run.record import Record
from fljax.run.sweep import search
from fljax.run.together import Runs, train_together
from fljax.types import Rows, Stages, State

N, ROUNDS, BEGINS = 9, 12, np.array([0, 5, 8])


@pytest.fixture
def reported():
    """Three of nine clients a round, one of whom may have dropped out; a label of -1 is noise."""
    rng = np.random.default_rng(0)
    ids = np.stack([np.sort(rng.choice(N, 3, replace=False)) for _ in range(ROUNDS)])
    return {"ids": ids, "active": rng.random((ROUNDS, 3)) < 0.8, "label": rng.integers(-1, 3, (ROUNDS, 3))}


@pytest.fixture
def truth():
    """Groups that change twice, and a client that is there in the last stage alone."""
    rng = np.random.default_rng(1)
    return Truth(BEGINS, rng.integers(0, 3, (3, N)), np.array([[True] * 8 + [False]] * 2 + [[True] * 9]))


def by_hand(reported, truth):
    last_label, scores = {}, []
    for r in range(ROUNDS):
        for client, active, label in zip(*(reported[name][r] for name in ("ids", "active", "label")), strict=True):
            if active:
                last_label[client] = label
        stage = max(s for s in range(3) if BEGINS[s] <= r)
        present = [client for client in sorted(last_label) if truth.there[stage][client]]
        score = adjusted_rand_score(truth.group[stage][present], [last_label[client] for client in present])
        scores.append(score if len(present) > 1 else np.nan)
    return scores


def test_ari_is_of_the_labels_that_clients_last_reported(reported, truth):
    expected = by_hand(reported, truth)
    np.testing.assert_allclose(ari_of_rounds(reported, truth), expected, atol=1e-6)
    assert len(np.unique(np.round(expected, 3))) > 5  # or the test sees little


def test_ari_in_chunks_is_the_same(reported, truth):
    expected, labels, chunks = ari_of_rounds(reported, truth), None, []
    record = Record(None, {}, Begun(State((), ()), 0, None, N), None, None, truth=truth)  # that of a run
    for first, stop in ((0, 1), (1, 6), (6, 9), (9, ROUNDS)):
        chunk, before = {name: value[first:stop] for name, value in reported.items()}, copy.copy(labels)
        chunks.append(ari_of_rounds(chunk, truth, first, labels))
        np.testing.assert_array_equal(labels, before)  # which the churn is told from then
        labels = churn_of_rounds(chunk, N, labels)[1]
        np.testing.assert_array_equal(record.took(chunk)["ari"], chunks[-1])
    np.testing.assert_array_equal(np.concatenate(chunks), expected)


def test_the_groups_of_a_federation_that_changes_are_those_of_each_round(federation, truth):
    assert truth_of(federation._replace(group=None)) is None
    constant = truth_of(federation)
    np.testing.assert_array_equal(constant.group, np.asarray(federation.group)[None])
    assert constant.there.all()
    there = np.arange(N) != 3
    np.testing.assert_array_equal(truth_of(federation._replace(there=there)).there, there[None])
    rows = Rows(federation.train.index[None].repeat(3, 0), federation.train.size[None].repeat(3, 0))
    arrays = (jnp.asarray(array, dtype) for array, dtype in zip(truth, (jnp.int32, jnp.int32, bool), strict=True))
    begins, group, there = arrays
    changing = federation._replace(group=group[0], stages=Stages(begins, rows, None, rows, group, there))
    truth_of_stages = truth_of(changing)
    for r in range(ROUNDS):
        of_round, stage = at(changing, r), int((truth_of_stages.begins <= r).sum()) - 1
        np.testing.assert_array_equal(truth_of_stages.group[stage], of_round.group)
        np.testing.assert_array_equal(truth_of_stages.there[stage], of_round.there)


def test_fewer_than_two_clients_agree_with_nothing(reported, truth):
    inactive = reported | {"active": np.zeros((ROUNDS, 3), bool)}
    assert np.isnan(ari_of_rounds(inactive, truth)).all()
    inactive["active"][3, 0] = True
    assert np.isnan(ari_of_rounds(inactive, truth)).all()


@pytest.mark.slow
def test_every_way_to_run_reports_ari(federation, model, key, tmp_path):
    """Of three clients a round, which a run whole, in chunks, and in a sweep has alike."""
    algorithm, hyper = fljax.ifca(model, fljax.Work(1, 8), n_clusters=3), fljax.ifca.Hyper(lr=0.2)
    options = {"participation": 1 / 3}
    sweep_metrics = fljax.sweep(algorithm, hyper, federation, key, 1, 6, **options)
    seed_key = jax.random.fold_in(key, 0)
    _, metrics = fljax.simulate(algorithm, hyper, federation, seed_key, 6, **options)
    run = fljax.train(algorithm, hyper, federation, seed_key, 6, seconds_per_chunk=1e-9, **options)
    np.testing.assert_array_equal(metrics["ari"], sweep_metrics["ari"][0, 0])
    np.testing.assert_array_equal(run.metrics["ari"], metrics["ari"])
    np.testing.assert_array_equal(metrics["ari"], ari_of_rounds(run.metrics, truth_of(federation)))
    folders, sampling = [tmp_path / "a", tmp_path / "b"], uniform(1 / 3)
    runs = Runs(algorithm, hyper, [federation] * 2, [seed_key, key], 6, folders, sampling, compile="full")
    np.testing.assert_array_equal(train_together(runs)[0].metrics["ari"], metrics["ari"])
    participants = {int(client) for ids in run.metrics["ids"] for client in ids}
    assert len(participants) > 3  # more than those of the last round, who alone would count otherwise
    last_label = {}
    for ids, labels in zip(run.metrics["ids"], run.metrics["label"], strict=True):
        last_label |= dict(zip(ids.tolist(), labels.tolist(), strict=True))
    group = np.asarray(federation.group)
    expected = adjusted_rand_score([group[i] for i in last_label], list(last_label.values()))
    assert float(metrics["ari"][-1]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("share", "is_known"), [(1.0, True), (1 / 3, False)])
def test_a_search_on_disk_has_ari_where_all_take_part(federation, model, key, tmp_path, share, is_known):
    """Its batches have the participants' agreement, which is that of all clients where all take part."""
    algorithm, hyper = fljax.ifca(model, fljax.Work(1, 8), n_clusters=3), fljax.ifca.Hyper(lr=0.2)
    result = search(algorithm, hyper, federation, key, 1, 3, participation=share, folder=tmp_path)
    (loaded,) = fljax.load_sweep(tmp_path).found
    assert ("ari" in loaded.metrics) is is_known
    if is_known:
        np.testing.assert_allclose(loaded.metrics["ari"], result.metrics["ari"], atol=1e-6)
