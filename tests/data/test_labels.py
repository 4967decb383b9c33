"""Labels keep what they say: classes are whole numbers, targets are not cut to them."""

import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.data.federation import as_arrays, build, class_histogram, n_classes, on_host
from fljax.data.labels import as_labels, counts_classes
from fljax.data.partition import PARTITIONS
from fljax.types import Examples


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([0, 3], np.int64), np.array([0, 3], np.int32)),
        (np.array([True, False]), np.array([1, 0], np.int32)),
        (np.array([0.25, 0.75]), np.array([0.25, 0.75], np.float32)),
        (np.array([[0, 1], [1, 1]]), np.array([[0, 1], [1, 1]], np.float32)),
        ([1, 2], np.array([1, 2], np.int32)),
        ([0, 2**31 - 1], np.array([0, 2**31 - 1], np.int32)),
    ],
)
def test_labels_become_what_they_are(y, expected):
    labels = as_labels(y)
    assert labels.dtype == expected.dtype
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_array_equal(on_host(np.zeros((2, 1), np.float32), y).y, expected)
    np.testing.assert_array_equal(as_arrays(Examples(np.zeros((2, 1), np.float32), y)).y, expected)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.array(["cat", "dog"]), "dtype <U3.*federation_from_arrays"),
        (np.array([[0, 2], [1, 1]]), "go from 0 to 2"),
        (np.array([[0], [2]]), r"labels have shape \(2, 1\); give classes as \(examples,\), y\[:, 0\]"),
        (np.arange(24).reshape(2, 12), "each position of a sequence is not supported: cut windows.*next_characters"),
        (np.zeros((2, 2, 2)), "shape"),
        (np.array([2**31, 1]), "too large"),
        (np.array([1 - 2**32, 1]), "label -4294967295 is too small"),
        (np.array([1j]), "dtype complex128"),
    ],
)
def test_other_labels_are_refused(y, message):
    with pytest.raises(ValueError, match=message):
        as_labels(y)


def test_numbers_count_classes_where_half_of_them_are_there():
    answers = [counts_classes(np.array(numbers)) for numbers in ([0, 3], [0, 4], [0, 0, 1], [1, 2])]
    assert answers == [True, False, True, False]


@pytest.fixture
def numbers():
    """Four clients whose labels are numbers in [0, 1]."""
    rng = np.random.default_rng(0)
    pool = on_host(rng.normal(size=(40, 3)).astype(np.float32), rng.random(40))
    return build(pool, np.split(np.arange(40), 4))


def test_numbers_are_not_cut_to_classes(numbers, key):
    assert numbers.train.pool.y.dtype == jnp.float32
    assert len(np.unique(numbers.train.pool.y)) == 40
    assert n_classes(numbers) == 1
    model, work = fljax.MODELS["logistic_regression"]((3,), 2), fljax.Work(1, 8)
    for run in (fljax.simulate, fljax.train):
        with pytest.raises(ValueError, match=r"labels are float32 of shape \(40,\).*fljax\.regression"):
            run(fljax.fedavg(model, work), fljax.fedavg.Hyper(), numbers, key, 1)
    with pytest.raises(ValueError, match="not classes"):
        class_histogram(numbers.train, 2)


def test_of_several_labels_it_is_one_class_that_is_wanted(numbers):
    several = numbers.train._replace(pool=numbers.train.pool._replace(y=np.zeros((40, 3), np.float32)))
    with pytest.raises(ValueError, match=r"of shape \(40, 3\), not classes, .* give one class for each example"):
        class_histogram(several, 2)


def test_a_partition_by_classes_refuses_numbers(numbers):
    examples = on_host(np.asarray(numbers.train.pool.x), np.asarray(numbers.train.pool.y))
    with pytest.raises(ValueError, match="not classes"):
        PARTITIONS["dirichlet"](examples, examples, 4)
    assert len(PARTITIONS["iid"](examples, examples, 4, public=False).train.size) == 4


def test_more_classes_than_outputs_are_refused(make_examples, key):
    train, _ = make_examples(60)
    federation, model = build(train, np.split(np.arange(60), 4)), fljax.MODELS["mlp"](train.x.shape[1:], (4,), 5)
    # Two functions do not say how many outputs they have.
    functions = fljax.from_functions(model.init, lambda params, x: model.apply(params, x, None)[0], model.layers)
    for network, run in ((model, fljax.simulate), (functions, fljax.simulate), (functions, fljax.train)):
        with pytest.raises(ValueError, match="there is a label 9, but the network has 5 outputs; give it 10 or more"):
            run(fljax.fedavg(network, fljax.Work(1, 8)), fljax.fedavg.Hyper(), federation, key, 1)


def test_ids_in_place_of_rows_are_refused_with_the_way_out(make_examples):
    train, _ = make_examples(20)
    with pytest.raises(ValueError, match=r"owned\[0\] is a number, 0.*federation_from_arrays"):
        build(train, np.repeat(np.arange(4), 5))
    with pytest.raises(ValueError, match=r"owned\[1\] is an array of shape \(2,\) and dtype float64"):
        build(train, [[0, 1, 2], [3.5, 4.0]])


def test_splits_with_other_labels_are_refused(numbers):
    pool = on_host(np.zeros((4, 3), np.float32), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="test has labels"):
        build(
            Examples(numbers.train.pool.x, numbers.train.pool.y),
            [np.arange(10)],
            (1, 0, 0),
            test_owned=[[0]],
            test_pool=pool,
        )
    with pytest.raises(ValueError, match="x has 3 examples and y 2"):
        as_arrays(Examples(np.zeros((3, 1), np.float32), np.zeros(2, np.int32)))
