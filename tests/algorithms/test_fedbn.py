"""FedBN: whose normalisation is whose, and what it is in the limit."""

import chex
import numpy as np
import pytest

import fljax
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedbn import STAYS, fedbn
from fljax.algorithms.standalone import standalone
from fljax.data.synthetic import linear_groups
from fljax.models import resnet18
from fljax.rounds import all_but_paths
from fljax.run.one_round import split_key
from fljax.types import Work
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.table import NORMALISED

NORM = all_but_paths(STAYS["norm"])


def run(algorithm, hyper, federation, key, rounds=3, **options):
    """The final state, and the models that clients are tested with."""
    state, _ = simulate(algorithm, hyper, federation, key, rounds, **options)
    return state, jitted(algorithm.deploy)(key, hyper, state, federation.train).params


@pytest.mark.slow
def test_kept_statistics_leave_the_rest_to_fedavg(key, work, federation):
    # Training normalises by the moments of its batch, so no running statistic ever enters a gradient.
    silo, _ = run(
        fedbn(NORMALISED, work, kept="statistics"), fljax.fedbn.Hyper(lr=0.1), federation, key, participation=0.5
    )
    theta, _ = run(fedavg(NORMALISED, work), fljax.fedavg.Hyper(lr=0.1), federation, key, participation=0.5)
    shared, averaged = all_but_paths(STAYS["statistics"]).split(theta.server)
    chex.assert_trees_all_close(silo.server, shared, rtol=1e-6, atol=1e-7)
    means = silo.clients["batch_stats", "norm", "mean"]
    assert means.shape == (8, 6)
    assert not np.allclose(means, averaged["batch_stats", "norm", "mean"], atol=1e-3)


def test_kept_statistics_are_moving_moments_of_the_clients_own_batches(key):
    # Full batches and hardly a step: after s batches a tenth each, (1 - 0.9^s) of the moments, 0.9^s of the start's.
    federation = linear_groups(8, 2, examples=24)
    size = int(federation.train.size[0])
    algorithm, hyper = fedbn(NORMALISED, Work(2, size), kept="statistics"), fljax.fedbn.Hyper(lr=1e-30)
    _, models = run(algorithm, hyper, federation, key)
    first_layer = NORMALISED.init(split_key(key).init)["first"]
    start_share = 0.9 ** (3 * 2)
    for i in range(8):
        rows = federation.train.index[i, :size]
        features = np.asarray(federation.train.pool.x)[rows].reshape(len(rows), -1) @ np.asarray(first_layer["kernel"])
        statistics = {name: leaf[i] for name, leaf in models["batch_stats"]["norm"].items()}
        np.testing.assert_allclose(statistics["mean"], (1 - start_share) * features.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            statistics["var"], start_share + (1 - start_share) * features.var(0), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_the_normalisation_of_clients_that_sit_out_stays(key, work, federation):
    algorithm, hyper = fedbn(NORMALISED, work), fljax.fedbn.Hyper(lr=0.1)
    state, _ = run(algorithm, hyper, federation, key, rounds=1, participation=0.25)
    is_changed = np.abs(state.clients["norm", "scale"] - 1).max(1) > 0
    assert is_changed.sum() == 2
    assert set(state.clients).isdisjoint(state.server)
    assert {("first", "kernel"), ("last", "bias")} <= set(state.server)


@pytest.mark.slow
def test_one_client_is_standalone_training(key, work, federation):
    rows = federation.train._replace(size=federation.train.size.at[1:].set(0))
    one_client = federation._replace(train=rows)
    _, models = run(fedbn(NORMALISED, work), fljax.fedbn.Hyper(lr=0.1), one_client, key)
    _, standalone_models = run(standalone(NORMALISED, work), fljax.standalone.Hyper(lr=0.1), one_client, key)
    shared, normalisation = NORM.split(models)
    for path, leaf in NORM.split(standalone_models)[0].items():
        np.testing.assert_allclose(shared[path][0], leaf[0], rtol=1e-6, atol=4e-7)  # two programs: some last digits
    for path, leaf in NORM.split(standalone_models)[1].items():
        np.testing.assert_allclose(normalisation[path][0], leaf[0], rtol=1e-6, atol=4e-7)


def test_group_norm_can_be_kept_but_has_no_statistics(model, work):
    fedbn(resnet18(norm="group"), work)
    with pytest.raises(ValueError, match=r"kept='statistics'.*BatchNorm"):
        fedbn(resnet18(norm="group"), work, kept="statistics")
    with pytest.raises(ValueError, match=r"kept='norm'.*nothing to keep"):
        fedbn(model, work)
    with pytest.raises(ValueError, match="kept='all'"):
        fedbn(NORMALISED, work, kept="all")
