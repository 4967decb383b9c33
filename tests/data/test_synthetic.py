import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from fljax.data.synthetic import linear_groups, ragged_sizes


def rows(data, clients):
    index, size = np.asarray(data.index), np.asarray(data.size)
    chosen = np.concatenate([index[i, : size[i]] for i in clients])
    return np.asarray(data.pool.x)[chosen].reshape(len(chosen), -1), np.asarray(data.pool.y)[chosen]


@pytest.mark.parametrize("differ", ["labels", "features"])
def test_a_linear_model_fits_a_group_and_fails_on_the_others(differ):
    f = linear_groups(differ=differ, seed=1)
    group = np.asarray(f.group)
    for g in range(3):
        model = LogisticRegression(max_iter=500).fit(*rows(f.train, np.flatnonzero(group == g)))
        assert model.score(*rows(f.test, np.flatnonzero(group == g))) > 0.95
        if differ == "labels":
            assert model.score(*rows(f.test, np.flatnonzero(group != g))) < 0.05
        else:
            assert model.score(*rows(f.test, np.flatnonzero(group != g))) < 0.8


def test_classes_are_normal_about_their_means():
    pool = linear_groups(4, 1, examples=1000, side=5, n_classes=6, noise=0.7).train.pool
    x, y = np.asarray(pool.x, np.float64).reshape(-1, 25), np.asarray(pool.y)
    means = np.stack([x[y == label].mean(axis=0) for label in range(6)])
    assert stats.kstest(((x - means[y]) / 0.7).ravel()[:20_000], "norm").pvalue > 1e-3
    assert stats.kstest(means.ravel(), "norm").pvalue > 1e-3
    assert np.bincount(y).std() < 4 * np.sqrt(len(y) / 6)  # uniform classes


def test_groups_are_even_and_in_order():
    f = linear_groups(7, 3)
    np.testing.assert_array_equal(f.group, [0, 0, 0, 1, 1, 2, 2])


def test_ragged_sizes_vary_and_equal_ones_do_not():
    assert np.ptp(np.asarray(linear_groups(ragged=0.8).train.size)) > 10
    assert np.ptp(np.asarray(linear_groups().train.size)) == 0
    size = ragged_sizes(np.random.default_rng(0), 5000, 100.0, 0.5)
    assert abs(size.mean() - 100) < 4  # standard error of the mean: 0.75
    assert abs(np.log(size).std() - 0.5) < 0.02
    assert ragged_sizes(np.random.default_rng(0), 100, 3.0, 2.0).min() == 4


def test_deterministic_in_the_seed():
    first, again, other = (linear_groups(seed=s).train.pool.x for s in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("options", [{"n_groups": 5}, {"n_groups": 0}, {"n_groups": 1.5}, {"n_clients": 2}])
def test_too_many_groups_are_refused(options):
    with pytest.raises(ValueError, match="n_groups"):
        linear_groups(**options)


def test_what_tells_groups_apart_and_the_seed_are_named():
    with pytest.raises(ValueError, match=r"^seed=-1 is negative; choose seed >= 0"):
        linear_groups(seed=-1)
    with pytest.raises(ValueError, match="differ='label' is unknown; choose one of 'labels', 'features'"):
        linear_groups(4, 2, differ="label")


@pytest.mark.parametrize("change", [{"n_clients": 0}, {"n_classes": 0}, {"side": 0}, {"examples": 0}])
def test_sizes_that_are_none_are_named(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"^{name}={value}: give a whole number of at least"):
        linear_groups(**{"n_groups": 1, "differ": "features"} | change)


@pytest.mark.parametrize("ragged", [-0.5, np.nan, np.inf])
def test_sizes_vary_by_a_number(ragged):
    with pytest.raises(ValueError, match=f"^ragged={ragged:g} is .*choose .*ragged >= 0"):
        linear_groups(ragged=ragged)
