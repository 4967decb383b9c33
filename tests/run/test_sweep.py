"""Sweeps: a cell equals its single run, one compilation, one copy of the data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.algorithms.fedavg import FedAvgHyper
from fljax.run import sweep as sweep_module
from fljax.run.simulate import as_traced, simulate
from fljax.run.sweep import count_points, sweep


@pytest.mark.parametrize("at_once", [1, 2, 6])
def test_a_cell_equals_its_single_run(key, averaging, federation, at_once):
    hypers = FedAvgHyper(lr=jnp.asarray([0.01, 0.1, 0.3]), momentum=0.5)
    metrics = sweep(averaging, hypers, federation, key, 2, 3, participation=0.5, at_once=at_once)
    assert metrics["accuracy_macro"].shape == (3, 2, 3)
    for point, lr in enumerate((0.01, 0.1, 0.3)):
        for seed in range(2):
            hyper, key_run = FedAvgHyper(lr=lr, momentum=0.5), jax.random.fold_in(key, seed)
            _, single = simulate(averaging, hyper, federation, key_run, 3, participation=0.5)
            np.testing.assert_allclose(metrics["loss"][point, seed], single["loss"], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(metrics["client_loss"][point, seed], single["client_loss"], rtol=1e-5)


def test_points_share_cohorts(key, averaging, federation):
    metrics = sweep(averaging, FedAvgHyper(lr=jnp.asarray([0.01, 0.3])), federation, key, 2, 5, participation=0.3)
    np.testing.assert_array_equal(metrics["ids"][0], metrics["ids"][1])
    assert not np.array_equal(metrics["ids"][0, 0], metrics["ids"][0, 1])


def test_64_learning_rates_hold_the_data_once(key, averaging, federation):
    def memory(n_points):
        hypers = as_traced(FedAvgHyper(lr=jnp.linspace(0.01, 0.1, n_points)))
        lowered = sweep_module._sweep.lower(averaging, 9, 2, 1, 1, 64, hypers, federation, key, None)
        return lowered.compile().memory_analysis()

    one, many = memory(1), memory(64)
    data = sum(leaf.nbytes for leaf in jax.tree.leaves(federation))
    assert many.argument_size_in_bytes - one.argument_size_in_bytes == 63 * 4
    # What 64 runs at once need beside the data is 64 models and their metrics, not 64 copies of the pool.
    assert many.temp_size_in_bytes - 64 * one.temp_size_in_bytes < data


def test_a_diverging_point_spoils_no_other(key, averaging, federation):
    together = sweep(averaging, FedAvgHyper(lr=jnp.asarray([0.1, 1e38])), federation, key, 1, 3)
    alone = sweep(averaging, FedAvgHyper(lr=jnp.asarray([0.1])), federation, key, 1, 3)
    np.testing.assert_allclose(together["accuracy_macro"][0], alone["accuracy_macro"][0])
    assert not together["ok"][1].any()


@pytest.mark.parametrize(
    ("hypers", "message"),
    [
        (FedAvgHyper(lr=jnp.zeros(3), momentum=jnp.zeros(2)), "different numbers of points"),
        (FedAvgHyper(lr=jnp.zeros((2, 2))), r"lr has shape \(2, 2\)"),
        (FedAvgHyper(lr=jnp.zeros(0)), r"lr has shape \(0,\)"),
    ],
)
def test_ill_shaped_points_are_refused(hypers, message):
    with pytest.raises(ValueError, match=message):
        count_points(hypers)
