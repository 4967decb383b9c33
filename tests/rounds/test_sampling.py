"""Who takes part: uniform, common to all methods, and dealt fairly to devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.run.mesh import over_devices
from fljax.rounds.sampling import cohort_size, dealt, sample_cohort


@pytest.mark.parametrize(("share", "n", "size"), [(1.0, 20, 20), (0.1, 100, 10), (0.001, 100, 1), (0.25, 10, 2)])
def test_cohort_size(share, n, size):
    assert cohort_size(share, n) == size


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, float("nan")])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match=r"participation=.*choose 0 < participation <= 1"):
        cohort_size(share, 10)


def cohorts(key, federation, size, dropout=None, n_rounds=2000):
    draw = jax.jit(jax.vmap(lambda r: sample_cohort(key, r, federation, size, dropout)[1:4:2]))
    return jax.tree.map(np.asarray, draw(jnp.arange(n_rounds, dtype=jnp.int32)))


def test_every_client_is_drawn_equally_often_and_never_twice(key, federation):
    ids, active = cohorts(key, federation, 4)
    assert all(len(set(row)) == 4 for row in ids)
    assert active.all()
    counts = np.bincount(ids.ravel(), minlength=9)
    # Binomial(2000, 4/9): standard deviation 22; five of them.
    np.testing.assert_allclose(counts, 2000 * 4 / 9, atol=5 * 22.3)


def test_dropout_has_its_rate_and_leaves_someone(key, federation):
    _, active = cohorts(key, federation, 4, 0.7)
    assert active.any(axis=1).all()
    # Those whom the rule keeps: P(all four drop) = 0.7^4, one of four then stays.
    expected = 0.3 + 0.7**4 / 4
    np.testing.assert_allclose(active.mean(), expected, atol=5 * np.sqrt(0.25 / 8000))


def test_a_clients_key_depends_on_seed_round_and_id_only(key, federation):
    few = sample_cohort(key, jnp.int32(3), federation, 4, None)
    everyone = sample_cohort(key, jnp.int32(3), federation, 9, None)
    np.testing.assert_array_equal(jax.random.key_data(few.key), jax.random.key_data(everyone.key[few.ids]))
    later = sample_cohort(key, jnp.int32(4), federation, 9, None)
    assert not np.array_equal(jax.random.key_data(later.key), jax.random.key_data(everyone.key))


def test_dealing_balances_the_shares():
    size = jnp.asarray([100, 1, 90, 2, 80, 3])
    shares = np.asarray(size[dealt(jnp.arange(6), size, 2)]).reshape(2, 3).sum(axis=1)
    np.testing.assert_array_equal(shares, [100 + 80 + 2, 90 + 3 + 1])


def test_devices_change_the_order_only(key, federation):
    alone = sample_cohort(key, jnp.int32(0), federation, 4, None)
    with over_devices():
        spread = jax.jit(lambda: sample_cohort(key, jnp.int32(0), federation, 4, None))()
    order = np.argsort(np.asarray(spread.ids))
    np.testing.assert_array_equal(np.asarray(spread.ids)[order], alone.ids)
    np.testing.assert_array_equal(np.asarray(spread.data.size)[order], alone.data.size)
