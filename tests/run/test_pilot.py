"""The choice of K on federations whose number of groups is known, and its rules by hand."""

from functools import partial

import jax
import numpy as np
import pytest

from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fesem import fesem
from fljax.data.synthetic import linear_groups
from fljax.run import pilot
from fljax.run.pilot import choose_k, elbow, layer_gaps
from fljax.types import Work

HYPER = fesem.Hyper(lr=0.5)
WORK = Work(epochs=3, batch_size=8)


@pytest.fixture(scope="module")
def groups():
    """Sixteen clients in three hidden groups."""
    return linear_groups(16, 3, examples=40)


def choose(model, federation, candidates=(1, 3), **options):
    return choose_k(partial(fesem, model, WORK), HYPER, federation, jax.random.key(0), candidates, **options)


@pytest.mark.slow
def test_as_many_clusters_as_groups_do_best(model, groups):
    choice = choose(model, groups, (3, 1, 2), n_rounds=5)
    assert choice.n_clusters == 3
    assert list(choice.scores) == [1, 2, 3]
    assert choice.scores[3] > choice.scores[1] + 0.1
    assert choice == choose(model, groups, (1, 2, 3), n_rounds=5)


@pytest.mark.slow
def test_the_elbow_of_distances_is_at_the_groups(model, groups):
    choice = choose(model, groups, (1, 2, 3, 4, 5), n_rounds=5, score="distance")
    assert choice.n_clusters == 3
    assert choice.scores[1] > choice.scores[2] > choice.scores[3]


def test_pilots_run_on_some_of_the_clients(model, groups, monkeypatch):
    federations = []
    monkeypatch.setattr(pilot, "_pilot_score", lambda a, h, federation, *rest: federations.append(federation) or 0.0)
    assert choose(model, groups, n_clients=6).n_clusters == 1  # the least of those equal
    first, second = federations
    assert first is second
    assert first.train.size.shape == first.test.size.shape == first.group.shape == (6,)
    rows = {tuple(row) for row in np.asarray(groups.train.index).tolist()}
    assert {tuple(row) for row in np.asarray(first.train.index).tolist()} < rows
    assert first.train.pool is groups.train.pool


def test_elbow_by_hand():
    # The line from (1, 10) to (5, 2) has 8, 6, 4 at 2, 3, 4; the points lie 4, 3 and 1.5 below it.
    assert elbow(np.array([1, 2, 3, 4, 5]), np.array([10, 4, 3, 2.5, 2])) == 1
    assert elbow(np.array([2, 3, 4]), np.array([3.0, 2.0, 1.0])) == 0


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        ((), {}, "candidates="),
        ((0, 2), {}, "candidates=.0, 2.: give numbers of clusters from 1 to the 16 clients"),
        ((2, 17), {}, "from 1 to the 16 clients"),
        ((2, 3), {"n_clients": 2}, "from 1 to the 2 clients"),
        ((2, 3), {"n_clients": 0}, "n_clients=0"),
        ((2, 3), {"score": "loss"}, "score='loss'"),
        ((2, 3), {"score": "distance"}, "no elbow"),
        ((2, 3), {"n_rounds": 0}, "n_rounds=0"),
        ((2, 3), {"n_clients": "8"}, "n_clients='8' is not a whole number"),
        (None, {}, "candidates=None is not a sequence; give several numbers of clusters"),
        ((2, 3.0), {}, "a number of candidates=3.0 is not a whole number"),
    ],
)
def test_what_has_no_choice_is_refused(model, groups, candidates, options, message):
    with pytest.raises(ValueError, match=message):
        choose(model, groups, candidates, **options)


@pytest.mark.slow
def test_a_method_without_distances_is_refused(model, groups):
    with pytest.raises(ValueError, match="reports no such metric"):
        choose_k(lambda k: fedavg(model, WORK), fedavg.Hyper(), groups, jax.random.key(0), (1, 2, 3), score="distance")


def test_pilots_that_diverge_choose_nothing(model, groups, monkeypatch):
    scores = iter([0.5, float("nan")])
    monkeypatch.setattr(pilot, "_pilot_score", lambda *arguments: next(scores))
    with pytest.raises(ValueError, match=r"the pilots of K=\[3\] have no finite accuracy"):
        choose(model, groups, (1, 3))


def test_a_method_without_gaps_is_refused(model, groups):
    with pytest.raises(ValueError, match="reports no gaps"):
        layer_gaps(fedavg(model, WORK), fedavg.Hyper(), groups, jax.random.key(0), 1)
