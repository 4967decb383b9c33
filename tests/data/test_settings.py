"""Each setting against its paper's numbers and descriptions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fljax.data import partition
from fljax.data.federation import on_host
from fljax.data.partition.deal import deal_classes
from fljax.data.users import with_users

from .counting import counts, histograms


def test_iid_sizes_differ_by_at_most_one(make_examples):
    federation = partition.iid(*make_examples(1003, 50), 20, seed=0)
    total = np.asarray(federation.train.size) + np.asarray(federation.test.size)
    assert sorted(set(total.tolist())) == [50, 51]
    assert federation.public.x.shape[0] == 50


def test_dirichlet_is_even_for_large_beta_and_skewed_for_small(make_examples):
    data = make_examples(10_000)
    even = sum(histograms(partition.dirichlet(*data, 10, seed=0, beta=1e6)))
    np.testing.assert_allclose(even, 100, atol=3)
    skewed = sum(histograms(partition.dirichlet(*data, 10, seed=0, beta=0.1)))
    assert (skewed.max(axis=1) / skewed.sum(axis=1)).mean() > 0.4
    np.testing.assert_array_equal(skewed.sum(axis=0), np.bincount(data[0].y))
    # Who has as many as the least is not too small.
    one_client = partition.dirichlet(*make_examples(40), 1, min_size=40)
    assert int(one_client.train.size[0] + one_client.test.size[0]) == 40


@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_shares_of_a_class_vary_as_a_dirichlet_distribution_does(make_examples, beta):
    data, n = make_examples(10_000), 10
    counts_by_seed = [
        sum(histograms(partition.dirichlet(*data, n, seed=seed, beta=beta, min_size=1))) for seed in range(30)
    ]
    share = np.stack([counts / counts.sum(axis=0) for counts in counts_by_seed])
    expected = stats.dirichlet(np.full(n, beta))
    np.testing.assert_allclose(share.mean(axis=(0, 2)), expected.mean(), atol=0.05)
    np.testing.assert_allclose(share.var(), expected.var()[0], rtol=0.15)  # of twice the beta 0.55 or 0.67 times it


@pytest.mark.parametrize("iid_share", [0.0, 0.2999])
def test_dirichlet_is_that_of_numpy_class_by_class(make_examples, iid_share):
    """Of `iid_share` 0 the draws are those of before it was a setting."""
    train, test = make_examples(600)
    federation = partition.dirichlet(train, test, 4, seed=5, beta=2.0, iid_share=iid_share)
    rng, rows = np.random.default_rng(5), np.arange(600)
    rows = rng.permutation(600) if iid_share else rows
    n_uniform = round(600 * iid_share)
    owned = [list(part) for part in np.array_split(rows[:n_uniform], 4)]
    rows = rows[n_uniform:]
    shares = rng.dirichlet([2.0] * 4, size=10)
    for label, share in enumerate(shares):
        shuffled = rng.permutation(np.flatnonzero(train.y[rows] == label))
        stops = [*np.floor(np.cumsum(share) * len(shuffled)).astype(int)[:-1], len(shuffled)]
        for client, (begin, end) in enumerate(zip([0, *stops[:-1]], stops, strict=True)):
            owned[client] += list(rows[shuffled[begin:end]])
    for actual, expected in zip(rows_by_client(federation), owned, strict=True):
        np.testing.assert_array_equal(np.sort(actual), np.sort(expected))


def test_a_share_of_the_examples_is_iid_and_the_rest_dirichlet(make_examples):
    """FL-bench's mixture: a share of a class is ``(0.6 / n + 0.4 p) ``, p as a Dirichlet distribution says."""
    data, n = make_examples(10_000), 10
    held = [sum(histograms(partition.dirichlet(*data, n, seed=seed, beta=0.2, iid_share=0.6))) for seed in range(30)]
    share = np.stack([counts / counts.sum(axis=0) for counts in held])
    assert all(counts.sum() == 10_000 for counts in held)
    assert min(counts.min() for counts in held) > 30  # of a class 60 of the 6,000 that are iid, give or take 7
    np.testing.assert_allclose(share.var(), 0.4**2 * stats.dirichlet(np.full(n, 0.2)).var()[0], rtol=0.15)
    uniform = sum(histograms(partition.dirichlet(*data, n, seed=0, beta=0.2, iid_share=1)))
    np.testing.assert_array_equal(uniform.sum(axis=1), 1000)
    assert stats.chi2_contingency(uniform).pvalue > 1e-3


def test_classes_per_client_on_the_papers_numbers():
    """Twenty clients, two of ten classes: four shards a class; a client has 1,250 images of each of its classes."""
    y = np.repeat(np.arange(10), 5000)
    train = on_host(np.zeros((50_000, 1, 1, 1), np.uint8), y)
    held_counts = sum(histograms(partition.classes_per_client(train, train, 20, seed=0, public=False)))
    assert np.all((held_counts > 0).sum(axis=1) == 2)
    assert np.all((held_counts > 0).sum(axis=0) == 4)
    assert set(np.unique(held_counts)) == {0, 1250}


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.data())
def test_dealt_classes_are_distinct_and_balanced(n_classes, data):
    wants = np.array(data.draw(st.lists(st.integers(1, n_classes), min_size=n_classes, max_size=30)))
    holds = deal_classes(np.random.default_rng(data.draw(st.integers(0, 99))), wants, n_classes)
    np.testing.assert_array_equal(holds.sum(axis=1), wants)
    assert np.ptp(holds.sum(axis=0)) <= 1


def test_which_classes_are_dealt_once_more_is_drawn():
    n_holders = {tuple(deal_classes(np.random.default_rng(seed), np.ones(3, int), 2).sum(axis=0)) for seed in range(9)}
    assert n_holders == {(1, 2), (2, 1)}


@pytest.mark.parametrize(("consecutive", "gamma"), [(False, 0.0), (False, 0.3), (True, 0.0)])
def test_few_shot_on_the_papers_numbers(make_examples, consecutive, gamma):
    """One hundred clients, 60,000 images: 120 a class; 600 for a regular client, 240 for a few-shot one."""
    federation = partition.few_shot(*make_examples(50_000, 10_000), 100, seed=0, gamma=gamma, consecutive=consecutive)
    total = sum(np.asarray(s.size) for s in (federation.train, federation.val, federation.test))
    assert sorted(total.tolist()) == [240] * round(100 * gamma) + [600] * round(100 - 100 * gamma)
    np.testing.assert_allclose(federation.train.size / total, 0.6, atol=1e-6)
    classes = sum(counts(s, 10) for s in (federation.train, federation.val, federation.test))
    assert set(np.unique(classes)) == {0, 120}
    if consecutive:
        np.testing.assert_array_equal(np.flatnonzero(classes[8]), [0, 1, 2, 8, 9])
    else:  # at random: about 80 of the 252 sets of five classes, and not the ten of neighbours
        assert len(np.unique(classes > 0, axis=0)) > 50


@pytest.mark.parametrize("gamma", [0.0, 0.34, 0.5])
def test_images_of_each_class_do_not_depend_on_who_is_few_shot(make_examples, gamma):
    """Eleven clients of 5 of 10 classes: 6 clients may share the 59 images of a class."""
    federation = partition.few_shot(*make_examples(500, 90), 11, gamma=gamma)
    total = sum(np.asarray(s.size) for s in (federation.train, federation.val, federation.test))
    n_few = round(gamma * 11)  # of 3.74 clients 4
    assert sorted(total.tolist()) == [2 * 9] * n_few + [5 * 9] * (11 - n_few)


def test_few_shot_lowers_the_quota_to_the_rarest_class():
    y = np.repeat(np.arange(10), 7000)[: 70_000 - 687]  # class 9 has 6,313 images, as MNIST's fives
    pool = on_host(np.zeros((len(y), 1, 1, 1), np.uint8), y)
    federation = partition.few_shot(pool, on_host(pool.x[:0], pool.y[:0]), 100, seed=0)
    assert int(federation.train.size[0] + federation.val.size[0] + federation.test.size[0]) == 5 * 126


def test_dirichlet_prior_on_the_papers_description(make_examples):
    """About four classes hold 70 % (the prior alone: 3.4, with 81 % in the top four), one or none missing."""
    n_needed, top_share, n_missing = [], [], []
    for seed in range(3):
        federation = partition.dirichlet_prior(*make_examples(50_000, 10_000), 100, seed=seed)
        share = np.sort(sum(histograms(federation)) / 600, axis=1)[:, ::-1]
        n_needed.append((np.cumsum(share, axis=1) < 0.7).sum(axis=1).mean() + 1)
        top_share.append(share[:, :4].sum(axis=1).mean())
        n_missing.append((share == 0).sum(axis=1).mean())
    assert 3.1 < np.mean(n_needed) < 4.0
    assert 0.74 < np.mean(top_share) < 0.86
    assert 0.2 < np.mean(n_missing) < 1.5
    np.testing.assert_array_equal(federation.train.size, 420)
    np.testing.assert_array_equal(federation.test.size, 180)


def test_dirichlet_prior_in_log_normal_sizes(make_examples):
    """FedLab's unbalanced Dirichlet: the sizes' logarithms are normal, the classes follow each client's own prior."""
    residuals, matches = [], []
    for seed in range(10):
        data = make_examples(9_000, 1_000, side=2)
        federation = partition.dirichlet_prior(*data, 20, seed=seed, sigma=0.5, alpha=0.3)
        held = sum(histograms(federation))
        size = held.sum(axis=1)
        assert size.sum() == 10_000
        assert len(np.unique(np.concatenate(rows_by_client(federation)))) == 10_000
        logs = np.log(size)
        residuals.append((logs - logs.mean()) * np.sqrt(20 / 19))
        prior = np.random.default_rng(seed).dirichlet(np.full(10, 0.3), size=20)
        matches.append(np.corrcoef(prior.ravel(), (held / size[:, None]).ravel())[0, 1])
    assert stats.kstest(np.concatenate(residuals), stats.norm(0, 0.5).cdf).pvalue > 1e-3
    assert min(matches) > 0.85  # of classes that are used up other clients get more
    again = partition.dirichlet_prior(*data, 20, seed=9, sigma=0.5, alpha=0.3)
    np.testing.assert_array_equal(again.train.index, federation.train.index)
    smallest = partition.dirichlet_prior(*data, 20, seed=0, sigma=9.0, val_fraction=0.1)  # one client has nearly all
    assert (smallest.train.size.min(), smallest.val.size.min(), smallest.test.size.min()) == (1, 1, 1)


def test_rotated_groups_turn_their_images_and_nothing_else(make_examples):
    train, test = make_examples(400, 120)
    federation = partition.rotated_groups(train, test, 8, seed=0, examples=40)
    images = np.concatenate([train.x, test.x])
    for client, group in enumerate(np.asarray(federation.group)):
        for data, numbers in ((federation.train, range(400)), (federation.test, range(400, 520))):
            for row in np.asarray(data.index)[client, : data.size[client]]:
                upright = np.rot90(np.asarray(data.pool.x)[row], -group)  # its number is in the corner again
                number = int(upright[0, 0, 0]) * 256 + int(upright[0, 1, 0])
                assert number in numbers
                np.testing.assert_array_equal(upright, images[number])
    np.testing.assert_array_equal(federation.train.size, 40)
    assert counts(federation.train, 10).min() >= 3  # all classes on every client


def test_rotated_groups_resize(make_examples):
    federation = partition.rotated_groups(*make_examples(40, 20, side=28), 2, n_groups=2, side=32)
    assert federation.train.pool.x.shape[1:] == (32, 32, 1)


@pytest.mark.parametrize("name", ["rotated_groups", "permuted_label_groups", "dominant_label_groups", "writers"])
def test_the_servers_images_are_nobodys(make_examples, name):
    """An image has its number in its corner: the server's are test images as they were, no client tests on them."""
    train, test = make_examples(400, 120)
    options = {"writers": {"strength": 0.0, "jitter": 0.0}}.get(name, {})
    with_public, without_public = (
        partition.PARTITIONS[name](train, test, 8, seed=0, n_public=n, **options) for n in (20, 0)
    )
    number = lambda x: np.asarray(x)[:, 0, 0, 0] * 256 + np.asarray(x)[:, 0, 1, 0]  # noqa: E731
    public = number(with_public.public.x.astype(int))
    assert len(np.unique(public)) == 20
    assert public.min() >= 400
    assert np.all(np.asarray(with_public.public.y) == -1)
    n_upright = 2 if name == "rotated_groups" else 8  # the clients of the first group
    rows = np.asarray(with_public.test.index)
    test_rows = np.concatenate([rows[i, : with_public.test.size[i]] for i in range(n_upright)])
    assert not np.isin(number(with_public.test.pool.x[test_rows].astype(int)), public).any()
    assert without_public.public is None
    public_of_seed_1 = partition.PARTITIONS[name](train, test, 8, seed=1, n_public=20, **options).public
    assert set(number(public_of_seed_1.x.astype(int))) != set(public)
    if name != "writers":  # whose test images are dealt with the others
        np.testing.assert_array_equal(with_public.train.index, without_public.train.index)


def test_rotated_groups_resize_the_servers_images(make_examples):
    federation = partition.rotated_groups(*make_examples(40, 20, side=28), 2, n_groups=2, side=32, n_public=5)
    assert federation.public.x.shape == (5, 32, 32, 1)


def test_log_normal_sizes_have_their_sigma(make_examples):
    federation = partition.log_normal(
        *make_examples(200_000, 10, side=2), 1000, seed=0, sigma=0.8, min_size=2, public=False
    )
    total = np.asarray(federation.train.size) + np.asarray(federation.test.size)
    assert total.sum() == 200_000
    assert total.min() >= 2
    assert abs(np.log(total - 2 + 0.5).std() - 0.8) < 0.08  # spread of 1,000 draws, and rounding
    equal = partition.log_normal(*make_examples(1000), 10, sigma=0.0)
    np.testing.assert_array_equal(np.asarray(equal.train.size) + np.asarray(equal.test.size), 100)


def test_proportional_sizes_have_their_proportions(make_examples):
    """Ends of shares are rounded, so that a size is the real number or its neighbour; given sizes are kept."""
    for proportions, expected in (
        (None, 1000 * np.arange(1, 6) / 15),
        ([0.5, 2.0, 2.0, 0.5, 5.0], [50, 200, 200, 50, 500]),
        (np.array([10, 500, 2, 8, 480]), [10, 500, 2, 8, 480]),
        (np.exp(np.arange(5.0)), 1000 * np.exp(np.arange(5)) / np.exp(np.arange(5)).sum()),
        ([1e300] * 5, [200] * 5),
    ):
        federation = partition.proportional_sizes(*make_examples(1000), 5, proportions=proportions, min_size=2)
        total = np.asarray(federation.train.size) + np.asarray(federation.test.size)
        assert total.sum() == 1000
        np.testing.assert_allclose(total, expected, atol=1 - 1e-6)
    for proportions, expected in (
        ([1, 1, 1e9], [40, 40, 920]),
        ([1, 20, 20], [40, 480, 480]),
        ([1, 41, 958], [40, 40, 920]),  # the second has too few only after the first has got its least
        ([1] * 25, [40] * 25),
    ):
        least = partition.proportional_sizes(*make_examples(1000), len(expected), proportions=proportions, min_size=40)
        total = np.asarray(least.train.size) + np.asarray(least.test.size)
        np.testing.assert_array_equal(total, expected)
    for proportions, message in (
        ([1, 2], r"^proportions: 2 numbers for 3 clients; give one for each client$"),
        ([1, 0, 2], r"^proportions: 0 of client 1; give numbers above 0$"),
        ([1, np.inf, 2], r"^proportions: inf of client 1; give"),
        ([1, "a", 2], r"^proportions: 'a' of client 1; give"),
    ):
        with pytest.raises(ValueError, match=message):
            partition.proportional_sizes(*make_examples(100), 3, proportions=proportions)


def test_natural_clients_are_users(make_examples):
    train, test = make_examples(100, 20)
    rng = np.random.default_rng(0)
    user = rng.choice(4, p=[0.5, 0.3, 0.17, 0.03], size=120)
    size = np.bincount(user, minlength=4)
    data = [with_users(p.x, p.y, u, ("a", "b", "c", "d")) for p, u in ((train, user[:100]), (test, user[100:]))]
    federation = partition.natural(*data, 0, min_size=10)
    np.testing.assert_array_equal(
        np.asarray(federation.train.size) + np.asarray(federation.test.size), size[size >= 10]
    )
    x = np.asarray(federation.train.pool.x)
    images = x[np.asarray(federation.train.index)[1, : federation.train.size[1]]]
    number = images[:, 0, 0, 0].astype(int) * 256 + images[:, 0, 1, 0]
    assert np.all(user[number] == np.flatnonzero(size >= 10)[1])
    for seed in (0, 5, 10):
        two_users = partition.natural(*data, 2, seed=seed, min_size=10)
        first = np.asarray(two_users.train.index)[:, 0]
        a, b = user[numbers_of(np.asarray(two_users.train.pool.x)[first])]
        assert a < b  # in the order of their names


def numbers_of(x):
    """Which image each of `make_examples` is."""
    return np.asarray(x)[:, 0, 0, 0].astype(int) * 256 + np.asarray(x)[:, 0, 1, 0]


def rows_by_client(federation, splits=("train", "test")):
    """Rows of the pool of each client."""
    data_of_splits = [getattr(federation, name) for name in splits]
    return [
        np.concatenate([np.asarray(data.index)[i, : int(data.size[i])] for data in data_of_splits])
        for i in range(len(federation.train.size))
    ]


def balanced(n):
    """Images of ten classes, as many of each, in random order."""
    y = np.random.default_rng(0).permutation(np.arange(n) % 10)
    return on_host(np.zeros((n, 1, 1, 1), np.uint8), y), on_host(np.zeros((10, 1, 1, 1), np.uint8), np.arange(10))


def class_counts(federation):
    """(clients, classes) training and test examples."""
    return sum(histograms(federation))


def test_shards_are_runs_of_the_sorted_labels():
    """FedAvg's: 600 images in the order of their labels are 20 shards of 30, two of each class; a client has two."""
    counts = class_counts(partition.shards(*balanced(600), 10, seed=2))
    assert set(counts.ravel().tolist()) <= {0, 30, 60}
    np.testing.assert_array_equal(counts.sum(axis=0), 60)
    np.testing.assert_array_equal(counts.sum(axis=1), 60)
    np.testing.assert_array_equal((class_counts(partition.shards(*balanced(600), 30, n_shards=1)) > 0).sum(axis=1), 1)
    assert class_counts(partition.shards(*balanced(600), 6, n_shards=100)).min() >= 3
    pairs = {
        tuple(np.flatnonzero(row))
        for s in range(60)
        for row in class_counts(partition.shards(*balanced(200), 10, seed=s))
    }
    assert len(pairs) == 55  # each pair of ten classes is met, and each class alone


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_a_share_of_each_client_is_of_all_labels_and_the_rest_sorted(share):
    """Of 60 examples of each of 10 clients ``60 (1 - share)`` are of one class or of two that follow each other."""
    counts = class_counts(partition.similarity(*balanced(600), 10, seed=1, share=share))
    assert np.ptp(counts.sum(axis=1)) <= 2
    largest = counts.argmax(axis=1)
    if share == 0:
        np.testing.assert_array_equal(np.sort(counts.max(axis=1)), 60)
        assert sorted(largest) == list(range(10))
    if share == 0.4:
        is_near = abs(np.arange(10) - largest[:, None]) <= 1
        assert np.where(is_near, counts, 0).sum(axis=1).min() >= 36
        assert 1.9 < counts[~is_near].mean() < 2.9  # 24 of ten classes at random
    if share == 1:
        assert stats.chi2_contingency(counts).pvalue > 1e-3


def test_dirichlet_sizes_are_shares_of_a_dirichlet(make_examples):
    """Shares of the rest over 400 draws are Beta(beta, (n - 1) beta)."""
    sizes = []
    for seed in range(100):
        federation = partition.dirichlet_sizes(
            *make_examples(4000, 10, side=2), 4, seed=seed, beta=0.7, min_size=5, public=False
        )
        sizes.append(np.asarray(federation.train.size) + np.asarray(federation.test.size))
        assert sizes[-1].sum() == 4000
    share = (np.concatenate(sizes[::4]) - 5) / (4000 - 20)
    assert min(map(min, sizes)) >= 5
    assert stats.kstest(share[::4], stats.beta(0.7, 2.1).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_noise_grows_from_client_to_client(dtype):
    scale, rng = (255 if dtype == np.uint8 else 1), np.random.default_rng(0)
    x = np.full((800, 8, 8, 1), 0.5 * scale).astype(dtype)
    train, test = on_host(x, rng.integers(0, 3, 800)), on_host(x[:9], np.zeros(9, int))
    federation = partition.noisy_features(train, test, 5, sigma=0.08)
    assert federation.train.pool.x.dtype == dtype
    for i, rows in enumerate(rows_by_client(federation)):
        noise = (np.asarray(federation.train.pool.x, np.float64)[rows] - x[0]) / scale
        np.testing.assert_allclose(noise.std(), 0.08 * i / 4, rtol=0.05, atol=1e-6)
        assert abs(noise.mean()) < 0.005
    np.testing.assert_array_equal(federation.public.x, test.x)  # without noise
    assert partition.noisy_features(train, test, 1).train.size.shape == (1,)
    with pytest.raises(ValueError, match="x has dtype int32, as tokens have"):
        partition.noisy_features(on_host(np.zeros((9, 4), np.int32), np.zeros(9, int)), test, 2)


def test_groups_call_the_classes_by_other_names(make_examples):
    """An image has its number in its corner: in a group its label is a permutation of the one that it has."""
    train, test = make_examples(400, 120)
    true_labels = np.concatenate([train.y, test.y])

    def names_of_groups(seed):
        federation = partition.permuted_label_groups(train, test, 8, seed=seed, examples=40)
        for group in range(4):
            rows = np.concatenate(
                [rows_by_client(federation)[i] for i in np.flatnonzero(np.asarray(federation.group) == group)]
            )
            labels, new_labels = (
                true_labels[numbers_of(np.asarray(federation.train.pool.x)[rows])],
                np.asarray(federation.train.pool.y)[rows],
            )
            pairs = {(int(a), int(b)) for a, b in zip(labels, new_labels, strict=True)}
            assert len(pairs) == 10  # each class has one name
            assert sorted(b for _, b in pairs) == list(range(10))
            yield tuple(b for _, b in sorted(pairs))

    names = [*names_of_groups(4)]
    assert names[0] == tuple(range(10))
    assert len({*names, *names_of_groups(5)}) == 7  # another seed's are others
    two_classes = [on_host(np.asarray(examples.x), np.asarray(examples.y) % 2 * 3) for examples in (train, test)]
    assert set(np.asarray(partition.permuted_label_groups(*two_classes, 4, n_groups=2).train.pool.y)) == {0, 3}
    with pytest.raises(ValueError, match="n_groups=3: give a whole number from 1 to 2"):
        partition.permuted_label_groups(*two_classes, 4, n_groups=3)
