import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

from fljax.data.datasets import load
from fljax.data.partition import PARTITIONS
from fljax.data.synthetic import linear_groups, logistic_users, ragged_sizes, synthetic


def examples_of(data, clients):
    index, size = np.asarray(data.index), np.asarray(data.size)
    rows = np.concatenate([index[i, : size[i]] for i in clients])
    return np.asarray(data.pool.x)[rows].reshape(len(rows), -1), np.asarray(data.pool.y)[rows]


@pytest.mark.parametrize("differ", ["labels", "features"])
def test_a_linear_model_fits_a_group_and_fails_on_the_others(differ):
    federation = linear_groups(differ=differ, seed=1)
    group = np.asarray(federation.group)
    for g in range(3):
        model = LogisticRegression(max_iter=500).fit(*examples_of(federation.train, np.flatnonzero(group == g)))
        assert model.score(*examples_of(federation.test, np.flatnonzero(group == g))) > 0.95
        if differ == "labels":
            assert model.score(*examples_of(federation.test, np.flatnonzero(group != g))) < 0.05
        else:
            assert model.score(*examples_of(federation.test, np.flatnonzero(group != g))) < 0.8


def test_classes_are_normal_about_their_means():
    pool = linear_groups(4, 1, examples=1000, side=5, n_classes=6, noise=0.7).train.pool
    x, y = np.asarray(pool.x, np.float64).reshape(-1, 25), np.asarray(pool.y)
    means = np.stack([x[y == label].mean(axis=0) for label in range(6)])
    assert stats.kstest(((x - means[y]) / 0.7).ravel()[:20_000], "norm").pvalue > 1e-3
    assert stats.kstest(means.ravel(), "norm").pvalue > 1e-3
    assert np.bincount(y).std() < 4 * np.sqrt(len(y) / 6)  # uniform classes


def test_groups_are_even_and_in_order():
    federation = linear_groups(7, 3)
    np.testing.assert_array_equal(federation.group, [0, 0, 0, 1, 1, 2, 2])


def test_ragged_sizes_vary_and_equal_ones_do_not():
    assert np.ptp(np.asarray(linear_groups(ragged=0.8).train.size)) > 10
    assert np.ptp(np.asarray(linear_groups().train.size)) == 0
    size = ragged_sizes(np.random.default_rng(0), 5000, 100.0, 0.5)
    assert abs(size.mean() - 100) < 4  # standard error of the mean: 0.75
    assert abs(np.log(size).std() - 0.5) < 0.02
    assert ragged_sizes(np.random.default_rng(0), 100, 3.0, 2.0).min() == 4


def test_deterministic_in_the_seed():
    first, repeated, other_seed = (linear_groups(seed=s).train.pool.x for s in (0, 0, 1))
    np.testing.assert_array_equal(first, repeated)
    assert (first != other_seed).any()


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


def split_by_user(alpha, beta, n_users, **options):
    x, y, user = logistic_users(alpha, beta, n_users, **options)
    cuts = np.flatnonzero(np.diff(user)) + 1
    return np.split(np.float64(x), cuts), np.split(y, cuts)


@pytest.mark.slow
def test_features_of_synthetic_have_the_variances_that_the_paper_says():
    """Within a client j^-1.2; of the clients' means over all features beta^2 + (1 + noise) / 60."""
    for beta in (0.0, 2.0):
        xs, _ = split_by_user(1.0, beta, 200, seed=3)
        size = np.array([len(x) for x in xs])
        variance = sum(x.var(axis=0) * len(x) for x in xs) / (size - 1).sum()
        np.testing.assert_allclose(variance, np.arange(1, 61) ** -1.2, rtol=0.05)
        means = np.array([x.mean(axis=0) for x in xs])
        assert stats.kstest(means.mean(axis=1) / np.sqrt(beta**2 + 1 / 60), "norm").pvalue > 1e-3
        assert (
            stats.kstest((means - means.mean(axis=1, keepdims=True)).ravel() / np.sqrt(59 / 60), "norm").pvalue > 1e-4
        )
    assert size.min() >= 50
    log_size = np.log(size[size > 200] - 50)  # whose rounding down no longer shows
    assert stats.kstest(log_size, stats.truncnorm((np.log(150) - 4) / 2, np.inf, 4, 2).cdf).pvalue > 1e-3


def test_labels_of_synthetic_are_those_of_a_linear_model_of_each_client():
    xs, ys = split_by_user(1.0, 1.0, 12, seed=1, n_features=6, n_classes=3)
    large = [i for i in range(12) if len(xs[i]) > 150 and len(np.unique(ys[i])) > 1]
    assert len(large) >= 3
    for i in large:
        model = LogisticRegression(C=1e4, max_iter=200).fit(xs[i], ys[i])
        assert model.score(xs[i], ys[i]) > 0.97
        assert min(model.score(xs[j], ys[j]) for j in large if j != i) < 0.7
    xs, ys = (np.concatenate(parts) for parts in split_by_user(0.0, 0.0, 12, iid=True, n_features=6, n_classes=3))
    assert LogisticRegression(C=1e4, max_iter=200).fit(xs, ys).score(xs, ys) > 0.97


def test_alpha_adds_the_same_to_the_logits_of_all_classes_and_changes_no_label():
    """So it is in the paper and in its authors' code: of Synthetic(alpha, beta) beta alone shows."""
    without_alpha, with_alpha = (logistic_users(alpha, 1.0, 30, seed=2) for alpha in (0.0, 3.0))
    np.testing.assert_array_equal(without_alpha[0], with_alpha[0])
    np.testing.assert_array_equal(without_alpha[1], with_alpha[1])


def test_synthetic_is_a_federation_and_a_data_set_with_users():
    federation = synthetic(0.5, 0.5, 7, seed=4, val_fraction=0.1)
    size = np.asarray(federation.train.size) + np.asarray(federation.val.size) + np.asarray(federation.test.size)
    _, y, user = logistic_users(0.5, 0.5, 7, seed=4)
    np.testing.assert_array_equal(size, np.bincount(user))
    np.testing.assert_array_equal(np.sort(np.asarray(federation.train.pool.y)), np.sort(y))
    train, test = load("synthetic_1_1")
    assert train.x.shape[1:] == (60,)
    assert len(set(train.names)) == 30
    np.testing.assert_array_equal(
        np.bincount(train.user), (0.9 * np.bincount(np.append(train.user, test.user))).astype(int)
    )
    by_users = PARTITIONS["natural"](train, test, seed=0)
    assert by_users.train.size.shape == (30,)
    assert int(by_users.train.size.sum()) + int(by_users.test.size.sum()) == len(train.y) + len(test.y)
    assert len({load(f"synthetic_{name}")[0].x.tobytes() for name in ("iid", "0_0", "0.5_0.5", "1_1")}) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -1.0}, "alpha=-1 is"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"n_clients": 0}, "n_clients=0"),
        ({"n_classes": 1}, "n_classes=1"),
        ({"n_features": 0}, "n_features=0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_what_synthetic_refuses(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        synthetic(**options)


def test_the_last_tenth_of_what_a_user_of_the_data_set_has_is_for_test():
    x, _, user = logistic_users(0.0, 0.0, seed=0)
    train, test = load("synthetic_0_0")
    for u in range(30):
        train_x, test_x = (np.asarray(split.x)[split.user == u] for split in (train, test))
        assert len(train_x) == int(0.9 * (len(train_x) + len(test_x)))
        np.testing.assert_array_equal(np.concatenate([train_x, test_x]), x[user == u])
