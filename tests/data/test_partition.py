import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from fljax.data import partition
from fljax.data.federation import on_host
from fljax.data.partition import PARTITIONS
from fljax.data.users import with_users

from .counting import histograms

SHARING = {"primary_secondary"}  # clients may own the same image
ALL_TRAIN = {"iid", "dirichlet", "classes_per_client", "log_normal", "shards", "similarity", "dirichlet_sizes"}
ALL_TRAIN |= {"noisy_features", "proportional_sizes"}
ALL_BOTH = {"rotated_groups", "permuted_label_groups", "writers", "natural"}
GROUPED = {"rotated_groups", "permuted_label_groups", "dominant_label_groups", "writers"}


def partition_by(name, data, n_clients=8, **options):
    train, test = data
    if name == "natural":
        names = tuple("abcdefgh")
        users = [np.arange(len(examples.y)) % 8 for examples in data]
        train, test = (
            with_users(examples.x, examples.y, user, names) for examples, user in zip(data, users, strict=True)
        )
    return PARTITIONS[name](train, test, n_clients, **options)


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_partition(name, make_examples):
    data = make_examples(1000, 200, side=8)
    federation = partition_by(name, data, seed=3, val_fraction=0.1)
    assert federation.train.pool is federation.test.pool is federation.val.pool
    splits = [
        np.asarray(s.index)[i, :n]
        for s in (federation.train, federation.val, federation.test)
        for i, n in enumerate(np.asarray(s.size))
    ]
    rows = np.concatenate(splits)
    assert (len(np.unique(rows)) == len(rows)) == (name not in SHARING)
    if name in ALL_TRAIN | ALL_BOTH:
        assert len(rows) == (1000 if name in ALL_TRAIN else 1200)
    assert (federation.group is not None) == (name in GROUPED)
    if federation.group is not None:
        np.testing.assert_array_equal(federation.group, [0, 0, 1, 1, 2, 2, 3, 3])
    assert federation.test.size.min() >= 1


@pytest.mark.parametrize("name", PARTITIONS)
def test_deterministic_in_the_seed(name, make_examples):
    data = make_examples(600, 200, side=8)
    first, repeated, other_seed = (partition_by(name, data, seed=seed) for seed in (5, 5, 6))
    for actual, expected in ((first.train, repeated.train), (first.test, repeated.test)):
        np.testing.assert_array_equal(actual.index, expected.index)
        np.testing.assert_array_equal(actual.pool.x, expected.pool.x)
    differs = (
        first.train.index.shape != other_seed.train.index.shape or (first.train.index != other_seed.train.index).any()
    )
    assert differs or (first.train.pool.x != other_seed.train.pool.x).any()


@pytest.mark.parametrize("name", PARTITIONS)
def test_train_and_test_labels_of_a_client_agree(name, make_examples):
    federation = partition_by(name, make_examples(6000, 1500), seed=1)
    train, test = histograms(federation)
    for a, b in zip(train, test, strict=True):
        occurs = a + b > 0
        if occurs.sum() > 1:  # chi-square of homogeneity: these splits must not be told apart even at one in a million
            assert stats.chi2_contingency(np.stack([a, b])[:, occurs]).pvalue > 1e-6


@pytest.mark.parametrize("name", PARTITIONS)
def test_documented_and_typed_for_a_command_line(name):
    signature = inspect.signature(PARTITIONS[name])
    assert list(signature.parameters)[:4] == ["train", "test", "n_clients", "seed"]
    for parameter in signature.parameters.values():
        assert f"\n    {parameter.name}: " in inspect.getdoc(PARTITIONS[name])
        assert parameter.annotation is not inspect.Parameter.empty


@pytest.mark.parametrize(
    ("name", "n_clients", "options", "message"),
    [
        ("iid", 0, {}, "n_clients=0"),
        ("iid", 101, {}, "n_clients=101: give a whole number from 1 to 100"),
        ("iid", 100, {}, "too few"),
        ("iid", 4, {"test_fraction": 1.0}, "nothing to train on"),
        ("iid", 4, {"test_fraction": 0.0}, "test_fraction=0.0: give a number from 1e-06 to 1"),
        ("iid", 4, {"val_fraction": 0.5, "test_fraction": 0.5}, "sum to less than 1"),
        ("rotated_groups", 4, {"val_fraction": 1.0}, "val_fraction=1.0: nothing to train on"),
        ("dirichlet", 4, {"beta": 0.0}, "beta=0.0"),
        ("dirichlet", 9, {"beta": 0.01}, "raise beta"),
        ("dirichlet", 50, {}, "min_size=10: give a whole number from 1 to 2"),
        ("classes_per_client", 4, {"classes": 11}, "classes=11: give a whole number from 1 to 10"),
        ("classes_per_client", 4, {"classes": 2}, "n_clients=4: they hold 8 classes together.* a class would have no"),
        ("few_shot", 4, {"gamma": 1.5}, "gamma=1.5"),
        ("few_shot", 4, {"gamma": 1, "classes": 0}, "classes=0: give a whole number from 1 to 10"),
        ("few_shot", 4, {"classes": 2}, "a class would have no client"),
        ("few_shot", 60, {"classes": 9}, "n_clients=60, classes=9: too few images"),
        ("dirichlet_prior", 4, {"alpha": 0.0}, "alpha=0.0"),
        (
            "dirichlet_prior",
            50,
            {"sigma": 0.3, "val_fraction": 0.1},
            r"client \d+ has \d examples, too few for 3 splits",
        ),
        ("dirichlet_prior", 4, {"sigma": 11.0}, "sigma=11.0: give a number from 0 to 10"),
        ("rotated_groups", 4, {"n_groups": 5}, "n_groups=5: give a whole number from 1 to 4"),
        ("rotated_groups", 4, {"examples": 26}, "examples=26"),
        ("rotated_groups", 40, {}, "n_clients=40: give a whole number from 1 to 20"),
        (
            "dominant_label_groups",
            12,
            {"n_groups": 11},
            "n_groups=11: give a whole number from 1 to 10, for 12 clients and 10",
        ),
        ("dominant_label_groups", 4, {"beta": 1.1}, "beta=1.1"),
        ("dominant_label_groups", 4, {"examples": 25, "beta": 0.9}, "class . has \\d+ examples"),
        ("permuted_label_groups", 4, {"n_groups": 5}, "n_groups=5: give a whole number from 1 to 4"),
        ("shards", 50, {"n_shards": 3}, "n_shards=3: give a whole number from 1 to 2"),
        ("similarity", 4, {"share": 1.5}, "share=1.5"),
        ("dirichlet_sizes", 4, {"beta": 0.0}, "beta=0.0"),
        ("dirichlet_sizes", 50, {}, "min_size=10: give a whole number from 1 to 2"),
        ("noisy_features", 4, {"sigma": -1.0}, "sigma=-1.0"),
        ("primary_secondary", 4, {"band": "huge"}, "band='huge'"),
        ("primary_secondary", 4, {"examples": 50}, "class . has \\d+ examples"),
        ("writers", 4, {"strength": 3.0}, "strength=3.0"),
        ("natural", 9, {}, "n_clients=9: give a whole number from 0 to 8"),
        ("natural", 0, {"min_size": 99}, "no user has so many"),
    ],
)
def test_bad_parameters_are_one_clear_line(make_examples, name, n_clients, options, message):
    with pytest.raises(ValueError, match=message) as error:
        partition_by(name, make_examples(100, 20), n_clients, **options)
    assert "\n" not in str(error.value)


FIELDS = [(name, field) for name in PARTITIONS for field in inspect.signature(PARTITIONS[name]).parameters]
NUMBERS = [(name, f) for name, f in FIELDS if PARTITIONS[name].__annotations__[f] in (int, float, int | None)]
ZERO = {"seed", "n_public", "natural n_clients", "natural min_size"}  # whole numbers that may be 0
UNLIMITED = {"seed", "side", "natural min_size"}


def bad_values(name, field):
    if PARTITIONS[name].__annotations__[field] is float:
        return -0.1, 1e10, np.nan, np.inf, "0.5", True
    zero = () if {field, f"{name} {field}"} & ZERO else (0,)
    too_large = () if {field, f"{name} {field}"} & UNLIMITED else (10**9,)
    return 2.5, 2.0, -1, np.nan, "3", True, *zero, *too_large


@pytest.mark.parametrize(("name", "field"), NUMBERS)
def test_every_number_is_checked(make_examples, name, field):
    data = make_examples(400, 80)
    for value in bad_values(name, field):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            partition_by(name, data, **{field: value})
        assert str(error.value).startswith(f"{field}={value!r}: give a ")
        assert "\n" not in str(error.value)


def test_numbers_of_numpy_are_numbers(make_examples):
    federation = partition.few_shot(
        *make_examples(), np.int64(10), seed=np.uint8(3), gamma=np.float32(0.5), classes=np.int32(4)
    )
    expected = partition.few_shot(*make_examples(), 10, seed=3, gamma=0.5, classes=4)
    np.testing.assert_array_equal(federation.train.index, expected.train.index)


def test_an_image_of_each_class_is_enough(make_examples):
    """Ten images of ten classes, for two clients of five classes: of each client, one image is for test."""
    federation = partition.few_shot(*make_examples(8, 2), 2, val_fraction=0.0)
    np.testing.assert_array_equal([federation.train.size, federation.test.size], [[4, 4], [1, 1]])


@pytest.mark.parametrize("name", [name for name in PARTITIONS if name != "natural"])
def test_arrays_are_no_pools(make_examples, name):
    train, test = make_examples()
    for pools, name_of_pool in (((train.x, train.y), "train"), ((train, test.y), "test")):
        with pytest.raises(
            ValueError, match=rf"^{name_of_pool} is of type ndarray, not an Examples; give fljax.Examples\(x, y"
        ):
            PARTITIONS[name](*pools, n_clients=3)


def test_natural_needs_users(make_examples):
    with pytest.raises(ValueError, match="this data set has none"):
        partition.natural(*make_examples(), 4)


def test_partitions_take_jax_arrays_too(make_examples):
    train, test = make_examples(100, 20)
    federation = partition.iid(on_host(jnp.asarray(train.x), jnp.asarray(train.y)), test, 4)
    assert federation.train.size.shape == (4,)


@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dominant_label_groups", {"n_groups": 2}),
        ("dominant_label_groups", {"n_groups": 4, "examples": 20}),
        ("classes_per_client", {"classes": 3}),
        ("few_shot", {"classes": 3}),
        ("few_shot", {"classes": 2, "consecutive": True}),
        ("primary_secondary", {}),
    ],
)
def test_classes_without_examples_change_nothing(name, options, first):
    """Labels that begin at 1, or leave every second class out, are dealt as those from 0 are."""
    rng = np.random.default_rng(0)
    labels = [rng.permutation(np.arange(n) % 5) for n in (400, 100)]
    expected, relabelled = (
        partition_by(
            name, [on_host(np.zeros((len(y), 1, 1, 1), np.uint8), offset + step * y) for y in labels], **options
        )
        for offset, step in ((0, 1), (first, 2))
    )
    for split in ("train", "test"):
        np.testing.assert_array_equal(getattr(expected, split).index, getattr(relabelled, split).index)
        np.testing.assert_array_equal(getattr(expected, split).size, getattr(relabelled, split).size)


def test_a_class_without_test_examples_is_named():
    train, test = (
        on_host(np.zeros((len(y), 1, 1, 1), np.uint8), y) for y in (1 + np.arange(40) % 4, np.arange(40) % 4)
    )
    with pytest.raises(ValueError, match="class 4 has 10 training examples and no test examples"):
        partition.dominant_label_groups(train, test, 4)
