"""The plan against sizes worked out by hand, and against the run that it foretells."""

from functools import partial

import jax
import numpy as np
import pytest

from fljax.algorithms.ditto import DittoHyper, ditto
from fljax.algorithms.fedavg import FedAvgHyper, fedavg
from fljax.models import mlp
from fljax.run.plan import plan, step_flops
from fljax.types import Work


@pytest.fixture
def planned(key, model, federation):
    return partial(plan, partial(fedavg, model), Work(2, 4), model, FedAvgHyper(), federation, key)


def test_what_is_held(key, planned, model, federation):
    got = planned(participation=0.5)
    n_parameters = sum(leaf.size for leaf in jax.tree.leaves(model.init(key)))
    assert got.parameters == n_parameters
    assert got.state == 4 * n_parameters  # FedAvg keeps one model and nothing per client
    assert got.data >= federation.train.pool.x.nbytes
    assert got.fixed >= federation.train.pool.x.nbytes + got.state
    # A participant has its trained model at least, and its row of metrics is small beside a few copies of it.
    assert 4 * n_parameters <= got.per_client <= 40 * n_parameters
    assert got.largest_cohort == federation.train.size.shape[0]
    assert got.at_once == 1
    assert got.rounds_per_second > 0


def test_what_each_client_keeps_is_counted(key, planned, model, federation):
    kept = plan(partial(ditto, model), Work(2, 4), model, DittoHyper(), federation, key, memory=1)
    n_clients = federation.train.size.shape[0]
    assert kept.state == (1 + n_clients) * planned(memory=1).state


def test_memory_bounds_the_cohort(planned):
    enough = planned()
    tight = planned(memory=int((enough.fixed + 2.5 * enough.per_client) / 0.9))
    assert tight.largest_cohort == 2
    assert np.isnan(tight.rounds_per_second)  # all clients do not fit: nothing is run


def test_flops_of_a_dense_net_by_hand(federation):
    shape = federation.train.pool.x.shape[1:]
    flops = step_flops(mlp(shape, (64,), 10), federation, Work(1, 32))
    n_inputs = int(np.prod(shape))
    matrices = 2 * 32 * (2 * n_inputs * 64 + 3 * 64 * 10)  # the first layer needs no gradient for its input
    assert matrices <= flops <= 1.5 * matrices  # biases, ReLU and the loss beside them


def test_the_fastest_candidate_is_chosen(planned):
    got = planned(candidates=(1, 3))
    assert got.at_once in (1, 3)
    assert planned(memory=10**12).limit == 9 * 10**11


def test_bad_input(key, planned, model, federation):
    with pytest.raises(ValueError, match="memory=0"):
        planned(memory=0)
    with pytest.raises(ValueError, match="candidates"):
        planned(candidates=(0,))
    with pytest.raises(ValueError, match="participation"):
        planned(participation=1.5)
