import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax.data.holdout import hold_out_clients, some_clients, some_of
from fljax.data.synthetic import linear_groups

WHOLE = linear_groups(10, 2, examples=20, ragged=0.5, val_fraction=0.2)

OF_NUMPY = jax.tree.map(np.asarray, WHOLE)  # of JAX's arrays each number of clients compiles its programs


def owned(data):
    """Each client's rows of the pool, as a set of tuples."""
    return {tuple(index[:size].tolist()) for index, size in zip(np.asarray(data.index), data.size, strict=True)}


@settings(deadline=None, max_examples=10)
@given(share=st.floats(0.06, 0.94), seed=st.integers(0, 50))
def test_every_client_is_on_one_side(share, seed):
    training, new = hold_out_clients(OF_NUMPY, share, seed)
    assert len(new.train.size) == round(share * 10)
    for split in ("train", "val", "test"):
        ours, theirs = owned(getattr(training, split)), owned(getattr(new, split))
        assert ours | theirs == owned(getattr(WHOLE, split))
        assert not ours & theirs
    assert sorted([*training.group.tolist(), *new.group.tolist()]) == WHOLE.group.tolist()


def test_the_splits_of_a_client_stay_together_and_the_pool_is_shared():
    _, new = hold_out_clients(WHOLE, 0.3, seed=1)
    assert new.train.pool is WHOLE.train.pool
    place = [WHOLE.train.index.tolist().index(row) for row in new.train.index.tolist()]
    assert place == sorted(place)
    np.testing.assert_array_equal(new.test.index, np.asarray(WHOLE.test.index)[place])
    np.testing.assert_array_equal(new.group, np.asarray(WHOLE.group)[place])


def test_the_seed_decides_who_is_new():
    drawn = [owned(hold_out_clients(WHOLE, 0.3, seed)[1].train) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_some_clients_are_in_their_old_order_with_all_that_is_theirs():
    there = np.arange(10) % 3 > 0
    whole = OF_NUMPY._replace(there=there, triggered=OF_NUMPY.test)
    few, chosen = some_clients(whole, 6, seed=1), some_of(10, 6, seed=1)
    assert chosen.tolist() == sorted(set(chosen.tolist()))
    np.testing.assert_array_equal(few.there, there[chosen])
    for data, of_all in ((few.train, whole.train), (few.triggered, whole.triggered)):
        np.testing.assert_array_equal(data.index, of_all.index[chosen])
        np.testing.assert_array_equal(data.size, of_all.size[chosen])


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.0, "new_clients=0.0 is not a share of the clients; choose 0 < new_clients < 1"),
        (1.0, "new_clients=1.0 is not"),
        (-0.2, "new_clients=-0.2 is not"),
        (float("nan"), "new_clients=nan is not"),
        (0.04, "new_clients=0.04 of 10 clients leaves no new client"),
        (0.96, "new_clients=0.96 of 10 clients leaves no client to train"),
    ],
)
def test_shares_that_leave_a_side_empty_are_refused(share, message):
    with pytest.raises(ValueError, match=message):
        hold_out_clients(WHOLE, share)
