"""Federations of one shape."""

import jax
import numpy as np
import pytest

import fljax
from fljax.data.padding import same_shapes


@pytest.fixture(scope="module")
def seeds():
    train, test = fljax.load("digits")
    return [fljax.PARTITIONS["dirichlet"](train, test, 5, seed=seed, beta=0.3, val_fraction=0.1) for seed in range(3)]


def test_shapes_are_equal_and_rows_are_as_they_were(seeds):
    padded = same_shapes(seeds)
    assert len({federation.train.index.shape for federation in seeds}) > 1  # the premise: tables of other widths
    assert len({str(jax.tree.map(np.shape, federation)) for federation in padded}) == 1
    for before, after in zip(seeds, padded, strict=True):
        for split in ("train", "val", "test"):
            expected, data = getattr(before, split), getattr(after, split)
            np.testing.assert_array_equal(expected.size, data.size)
            assert data.index.shape[1] == max(getattr(federation, split).index.shape[1] for federation in seeds)
            np.testing.assert_array_equal(expected.index, data.index[:, : expected.index.shape[1]])
    assert padded[2].train.pool is padded[0].train.pool is padded[1].test.pool  # stored once


def test_pools_of_other_lengths_are_filled_up():
    rng = np.random.default_rng(0)
    federations = [
        fljax.federation_from_arrays(rng.normal(size=(n, 2)), np.arange(n) % 2, np.arange(n) % 3) for n in (30, 42)
    ]
    short, long = same_shapes(federations)
    assert short.train.pool.x.shape == long.train.pool.x.shape == (42, 2)
    assert short.train.pool is short.test.pool
    np.testing.assert_array_equal(short.train.pool.x[:30], federations[0].train.pool.x)


def test_federations_that_are_not_alike_are_refused(seeds):
    with pytest.raises(ValueError, match="federations is a single federation; give several"):
        same_shapes(seeds[0])
    with pytest.raises(ValueError, match="federation 1 is None, not a Federation"):
        same_shapes([seeds[0], None])
    train, test = fljax.load("digits")
    six_clients = fljax.PARTITIONS["dirichlet"](train, test, 6, beta=0.3, val_fraction=0.1)
    with pytest.raises(ValueError, match=r"federation 1 is .'6 clients'"):
        same_shapes([seeds[0], six_clients])
    with pytest.raises(
        ValueError, match=r"federation 1 is .*'tested on one set'.* federation 0 .*'tested on their own"
    ):
        same_shapes([seeds[0], fljax.with_common_test(seeds[0], test)])
    with pytest.raises(ValueError, match="federations=None is not a sequence; give several federations"):
        same_shapes(None)
    assert same_shapes([]) == []


def test_results_do_not_depend_on_the_padding_and_another_seed_compiles_nothing(seeds, key):
    algorithm, hyper = (
        fljax.fedavg(fljax.MODELS["logistic_regression"]((8, 8, 1)), fljax.Work(1, 32)),
        fljax.fedavg.Hyper(),
    )
    narrowest = min(range(3), key=lambda i: seeds[i].train.index.shape[1])
    padded, compiled = same_shapes(seeds), []
    runs = [fljax.simulate(algorithm, hyper, federations[narrowest], key, 2) for federations in (seeds, padded)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), *runs)

    def listener(event, seconds, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        _, metrics = fljax.simulate(algorithm, hyper, padded[(narrowest + 1) % 3], key, 2)
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    assert compiled == []
    assert not np.array_equal(metrics["client_loss"], runs[1][1]["client_loss"])


def test_public_data_of_other_sizes_are_refused(seeds):
    """A server reads all of them: it would read what fills them up."""
    public = seeds[0].public
    changed = seeds[1]._replace(public=public._replace(x=public.x[:-1], y=public.y[:-1]))
    with pytest.raises(ValueError, match=r"federation 1 is .*'\d+ public examples'.* and federation 0 "):
        same_shapes([seeds[0], changed])


def test_other_kinds_of_labels_are_refused(seeds):
    data = seeds[1].train
    targets = data._replace(pool=data.pool._replace(y=data.pool.y.astype("float32")))
    with pytest.raises(ValueError, match=r"federation 1 is .*'labels \(\) float32'"):
        same_shapes([seeds[0], seeds[1]._replace(train=targets)])
