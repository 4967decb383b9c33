import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax.data.holdout import hold_out_clients, some_clients, some_of
from fljax.data.synthetic import linear_groups

WHOLE = linear_groups(10, 2, examples=20, ragged=0.5, val_fraction=0.2)

OF_NUMPY = jax.tree.map(np.asarray, WHOLE)  # of JAX's arrays each number of clients compiles its programs


def all_rows(data):
    """Each client's rows of the pool, as a set of tuples."""
    return {tuple(index[:size].tolist()) for index, size in zip(np.asarray(data.index), data.size, strict=True)}


@settings(deadline=None, max_examples=10)
@given(share=st.floats(0.06, 0.94), seed=st.integers(0, 50))
def test_every_client_is_on_one_side(share, seed):
    training, new = hold_out_clients(OF_NUMPY, share, seed)
    assert len(new.train.size) == round(share * 10)
    for split in ("train", "val", "test"):
        kept, held_out = all_rows(getattr(training, split)), all_rows(getattr(new, split))
        assert kept | held_out == all_rows(getattr(WHOLE, split))
        assert not kept & held_out
    assert sorted([*training.group.tolist(), *new.group.tolist()]) == WHOLE.group.tolist()


def test_the_splits_of_a_client_stay_together_and_the_pool_is_shared():
    _, new = hold_out_clients(WHOLE, 0.3, seed=1)
    assert new.train.pool is WHOLE.train.pool
    positions = [WHOLE.train.index.tolist().index(row) for row in new.train.index.tolist()]
    assert positions == sorted(positions)
    np.testing.assert_array_equal(new.test.index, np.asarray(WHOLE.test.index)[positions])
    np.testing.assert_array_equal(new.group, np.asarray(WHOLE.group)[positions])


def test_the_seed_decides_who_is_new():
    new_rows = [all_rows(hold_out_clients(WHOLE, 0.3, seed)[1].train) for seed in (1, 1, 2)]
    assert new_rows[0] == new_rows[1] != new_rows[2]


def test_some_clients_are_in_their_old_order_with_all_that_is_theirs():
    there = np.arange(10) % 3 > 0
    federation = OF_NUMPY._replace(there=there, triggered=OF_NUMPY.test)
    some, ids = some_clients(federation, 6, seed=1), some_of(10, 6, seed=1)
    assert ids.tolist() == sorted(set(ids.tolist()))
    np.testing.assert_array_equal(some.there, there[ids])
    for data, all_data in ((some.train, federation.train), (some.triggered, federation.triggered)):
        np.testing.assert_array_equal(data.index, all_data.index[ids])
        np.testing.assert_array_equal(data.size, all_data.size[ids])


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.0, "new_clients=0.0 is not a share of the clients; choose 0 < new_clients < 1"),
        (1.0, "new_clients=1.0 is not"),
        (-0.2, "new_clients=-0.2 is not"),
        (float("nan"), "new_clients=nan is not"),
        ("a", "new_clients='a' is not a number; give a number"),
        (0.04, "new_clients=0.04 of 10 clients leaves no new client"),
        (0.96, "new_clients=0.96 of 10 clients leaves no client to train"),
    ],
)
def test_shares_that_leave_a_side_empty_are_refused(share, message):
    with pytest.raises(ValueError, match=message):
        hold_out_clients(WHOLE, share)
