import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fljax.data import federation as fed
from fljax.data.federation import build, class_histogram, minibatch, n_classes, on_host, present, select
from fljax.data.synthetic import linear_groups
from fljax.data.validation import validate
from fljax.types import Examples


def rows_of(data):
    return [np.asarray(data.index)[i, :n] for i, n in enumerate(np.asarray(data.size))]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(3, 40), min_size=1, max_size=6), st.integers(0, 99), st.booleans())
def test_splits_cover_each_client_once_and_none_is_empty(size, seed, stratify):
    rng, n = np.random.default_rng(seed), sum(size)
    pool = on_host(np.zeros((n, 2, 2, 1), np.uint8), rng.integers(4, size=n))
    rows_by_client = np.split(rng.permutation(n), np.cumsum(size)[:-1])
    federation = build(pool, rows_by_client, (0.6, 0.2, 0.2), seed, stratify=stratify)
    assert federation.train.pool is federation.test.pool
    assert federation.val.pool is federation.test.pool
    for parts in zip(
        rows_by_client, *(rows_of(s) for s in (federation.train, federation.val, federation.test)), strict=True
    ):
        assert all(len(part) for part in parts)
        np.testing.assert_array_equal(np.sort(np.concatenate(parts[1:])), np.sort(parts[0]))
        assert abs(len(parts[3]) - max(1, 0.2 * len(parts[0]))) <= 0.5


@settings(max_examples=30, deadline=None)
@given(st.integers(20, 200), st.floats(0.1, 0.6), st.integers(0, 99))
def test_stratified_split_gives_each_class_its_share_within_one(n, fraction, seed):
    y = np.random.default_rng(seed).integers(5, size=n)
    federation = build(
        on_host(np.zeros((n, 1, 1, 1), np.uint8), y), [np.arange(n)], (1 - fraction, 0.0, fraction), seed
    )
    share = int(federation.test.size[0]) / n
    test = np.bincount(y[rows_of(federation.test)[0]], minlength=5)
    assert np.all(np.abs(test - share * np.bincount(y, minlength=5)) <= 1 + 1e-9)


def test_histogram_counts_only_real_rows_and_is_jittable(make_examples):
    train, _ = make_examples(60)
    federation = build(train, [np.arange(10), np.arange(10, 45), np.arange(45, 60)], seed=3)
    counts = jax.jit(class_histogram, static_argnums=1)(federation.train, n_classes(federation))
    expected = [np.bincount(np.asarray(train.y)[rows], minlength=10) for rows in rows_of(federation.train)]
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(present(federation.train).sum(axis=1), federation.train.size)


def test_a_class_that_no_client_has_still_counts():
    pool = on_host(np.zeros((6, 1, 1, 1), np.uint8), [0, 1, 0, 1, 1, 5])
    federation = build(pool, [np.arange(5)], (0.6, 0.0, 0.4))
    assert n_classes(federation) == 6
    assert class_histogram(federation.train, 6)[0, 2:].sum() == 0


def test_select_takes_rows_and_shares_the_pool(make_examples):
    federation = build(make_examples(40)[0], np.split(np.arange(40), 4))
    selected = select(federation.train, jnp.array([2, 0]))
    assert selected.pool is federation.train.pool
    np.testing.assert_array_equal(selected.index, federation.train.index[jnp.array([2, 0])])
    np.testing.assert_array_equal(jax.jit(select)(federation.train, jnp.array([2, 0])).size, selected.size)


def test_minibatch_normalises_bytes_and_passes_floats_through():
    x = np.array([0, 51, 255], np.uint8).reshape(3, 1, 1, 1)
    rows, weight = jnp.array([2, 1]), jnp.ones(2)
    batch = minibatch(fed.as_arrays(on_host(x, [0, 1, 2])), rows, weight)
    np.testing.assert_allclose(batch.x.ravel(), [1.0, 0.2], rtol=1e-6)
    np.testing.assert_array_equal(batch.y, [2, 1])
    floats = fed.as_arrays(on_host(np.float32([[-3], [7.5], [2]]).reshape(3, 1, 1, 1), [0, 1, 2]))
    np.testing.assert_array_equal(minibatch(floats, rows, weight).x.ravel(), [2.0, 7.5])


def test_public_data_has_no_labels(make_examples):
    train, test = make_examples(20, 10)
    federation = build(train, [np.arange(20)], public=test)
    assert np.all(np.asarray(federation.public.y) == -1)
    assert federation.public.x.shape[0] == 10


def test_test_rows_from_another_pool(make_examples):
    train, test = make_examples(20, 10)
    federation = build(
        train, [np.arange(10), np.arange(10, 20)], (1.0, 0.0, 0.0), test_owned=[[0, 1], [2]], test_pool=test
    )
    assert federation.val is None
    np.testing.assert_array_equal(federation.test.pool.y, test.y)
    np.testing.assert_array_equal(federation.test.size, [2, 1])


@pytest.mark.parametrize("split", [(0.1, 0.1, 0.8), (0.05, 0.9, 0.05), (0.9, 0.05, 0.05)])
def test_small_clients_have_an_example_in_every_split(make_examples, split):
    federation = build(make_examples(20)[0], [np.arange(3), np.arange(5, 10)], split)
    assert min(int(data.size.min()) for data in (federation.train, federation.val, federation.test)) == 1


POOL = on_host(np.zeros((10, 1, 1, 1), np.float32), np.arange(10) % 2)
NAN = on_host(np.full((10, 1, 1, 1), np.nan, np.float32), np.arange(10) % 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((POOL, [np.arange(5), np.array([], int)]), "client 1 has 0 examples, too few for 2 splits; leave it out, or"),
        ((POOL, [np.arange(5), np.array([7])]), "client 1 has 1 examples"),
        (
            ((POOL.x, POOL.y), [np.arange(5)]),
            r"^pool is of type tuple, not Examples; give fljax.Examples\(x, y\)",
        ),
        ((POOL, []), "owned has 0 clients; give the rows of at least one"),
        (
            (POOL, [np.arange(5), np.array([7, 9, 8, 9])]),
            r"owned\[1\] has row 9 2 times; give each row of a client once",
        ),
        ((POOL, [np.arange(5, 12)]), "rows"),
        ((POOL, [np.arange(5), np.array([10, 8])]), "rows 8 to 10; the pool has 0 to 9"),
        ((POOL, [np.arange(5), np.array([1, 2**32])]), "rows 1 to 4294967296; the pool has 0 to 9"),
        ((POOL, [np.arange(5)], (0.5, 0.0, 0.2)), "sum to 1"),
        (
            (POOL, [np.arange(5)], (1.0, 0.0, 0.0)),
            r"no client would be tested; give a test fraction \(the last\) above 0",
        ),
        ((NAN, [np.arange(5)]), "not finite"),
        ((on_host(POOL.x, np.full(10, -1)), [np.arange(5)]), "label -1"),
        ((on_host(np.zeros((3, 1), bool), [0, 1, 0]), [np.arange(3)]), "dtype bool; give uint8 pixels"),
        (
            (on_host(np.full((3, 1), 2**32 - 1, np.uint32), [0, 1, 0]), [np.arange(3)]),
            "tokens 4294967295 to",
        ),
        ((on_host(np.full((3, 1), 2**31), [0, 1, 0]), [np.arange(3)]), "2147483648"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        build(*arguments)
    assert "\n" not in str(error.value)


def test_a_test_fraction_beside_the_test_rows_is_refused():
    with pytest.raises(ValueError, match=r"^split=\(0.8, 0.0, 0.2\) .*, but test_owned .*; give a test fraction of 0$"):
        build(POOL, [np.arange(5)], test_owned=[[0]])


def test_numbers_whose_sum_is_not_finite_are():
    targets = np.full(10, 3e38, np.float32)
    build(on_host(POOL.x, targets), [np.arange(10)])
    targets[7] = np.inf
    with pytest.raises(ValueError, match="train target of example 7 of the pool is not finite"):
        build(on_host(POOL.x, targets), [np.arange(10)], (1.0, 0.0, 0.0), test_owned=[[0]])
    build(on_host(POOL.x, targets), [np.arange(7)])  # nobody's


@pytest.mark.parametrize(
    ("group", "numbers"),
    [([1, 0, 1], [1, 0, 1]), ([0, 0, 3], [0, 0, 1]), (["b", "a", "b"], [1, 0, 1]), (["b", None, "b"], [1, 0, 1])],
)
def test_groups_that_are_numbers_below_that_of_clients_stay_and_others_are_numbered(group, numbers):
    rows_by_client = np.array_split(np.arange(10), 3)
    np.testing.assert_array_equal(build(POOL, rows_by_client, (0.5, 0.0, 0.5), group=np.array(group)).group, numbers)


def test_group_of_another_length_is_refused():
    with pytest.raises(ValueError, match="group"):
        build(POOL, [np.arange(10)], group=np.array([0, 1]))


def test_a_test_row_given_twice_is_refused():
    with pytest.raises(ValueError, match=r"test_owned\[0\] has row 3 3 times"):
        build(POOL, [np.arange(10)], (1.0, 0.0, 0.0), test_owned=[[3, 1, 3, 3]])


def test_a_test_row_that_int32_does_not_hold_is_refused():
    with pytest.raises(ValueError, match="rows 1 to 4294967296; the pool has 0 to 9"):
        build(POOL, [np.arange(10)], (1.0, 0.0, 0.0), test_owned=[np.array([1, 2**32])])


def test_an_empty_test_split_is_refused():
    with pytest.raises(ValueError, match=r"^no client has test examples; give some$"):
        build(POOL, [np.arange(10)], (1.0, 0.0, 0.0), test_owned=[np.array([], int)])


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.uint16, np.uint32, np.uint64, np.int64])
def test_whole_numbers_of_any_type_are_tokens_or_classes(dtype):
    tokens, classes = np.arange(20, dtype=dtype).reshape(10, 2), (np.arange(10) % 2).astype(dtype)
    pool = build(Examples(tokens, classes), [np.arange(10)]).train.pool
    assert (pool.x.dtype, pool.y.dtype) == (np.int32, np.int32)
    np.testing.assert_array_equal(pool.x, tokens)
    np.testing.assert_array_equal(pool.y, classes)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int32])
def test_what_becomes_of_the_users_arrays_later_does_not_matter(dtype):
    x, y = np.ones((1000, 8), dtype), np.zeros(1000, np.int32)
    examples = fed.as_arrays(Examples(x, y))
    x[:], y[:] = 7, 5
    assert (np.asarray(examples.x) == 1).all()
    assert (np.asarray(examples.y) == 0).all()


def test_true_groups_of_some_of_the_clients_are_as_they_are():
    federation = linear_groups(4, 2, examples=12)
    validate(federation._replace(group=np.array([5, 5, 7, 7])))
    for group, message in (([-1] * 4, "-1 to -1"), (["a"] * 4, "values of type <U1"), ([0.5] * 4, "0.5 to 0.5")):
        with pytest.raises(ValueError, match=f"^group has {message}; number the groups 0, 1, 2, ..., or leave it out"):
            validate(federation._replace(group=np.array(group)))


@pytest.mark.parametrize("x", [np.zeros((20, 5), np.float32), np.zeros((20, 2, 3), np.uint8), np.zeros((20, 6), int)])
def test_test_and_public_examples_unlike_those_to_train_on_are_refused(x):
    """Bytes are scaled and floats are not: a model would be tested on another scale than it was trained on."""
    pool, other_pool = (on_host(rows, np.arange(20) % 2) for rows in (np.zeros((20, 6), np.float32), x))
    with pytest.raises(ValueError, match=r"^test has examples \(.*\) and train \('float32', 6\)"):
        build(pool, [np.arange(20)], (1, 0, 0), test_owned=[np.arange(20)], test_pool=other_pool)
    with pytest.raises(ValueError, match=r"^public has examples .* and train \('float32', 6\)"):
        build(pool, [np.arange(20)], public=other_pool)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1.0]] * 4, "x is a list; give an array"),
        (np.full((4, 2, 2), "a"), "x has dtype <U1"),
        (np.full((4, 2, 2), None), "x has dtype object"),
        (np.full((4, 2), -(2**40)), r"x has tokens -\d+ to -\d+"),
    ],
)
def test_examples_that_no_pool_holds_are_refused(x, message):
    with pytest.raises(ValueError, match=message):
        build(Examples(x, np.zeros(4, int)), [np.arange(4)])


@pytest.mark.parametrize("name", ["val", "test"])
def test_a_class_of_another_splits_pool_counts(make_examples, name):
    train, _ = make_examples(20)
    federation = build(train, [np.arange(20)], (0.6, 0.2, 0.2))
    split = getattr(federation, name)
    changed = split._replace(pool=split.pool._replace(y=split.pool.y + 7))
    assert n_classes(federation._replace(**{name: changed})) == n_classes(federation) + 7
