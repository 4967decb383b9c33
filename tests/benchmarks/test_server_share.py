"""A round whose clients' work is left out."""

import jax
import numpy as np
import pytest
import server_share
from server_share import System, left_out, made_data, server_side

from fljax.client import training_loss
from fljax.models import mlp
from fljax.numbers import LocalHyper
from fljax.rounds.local import train
from fljax.types import Cohort, Work

SHAPE, N_CLIENTS = (2, 2, 1), 4
SYSTEM = System(mlp(SHAPE, (3,), 10), SHAPE, N_CLIENTS, N_CLIENTS, 6, Work(1, 3))


def test_training_in_a_round_sends_what_is_given():
    sent = {"kernel": np.arange(8.0, dtype=np.float32).reshape(N_CLIENTS, 2)}
    data, key = made_data(SYSTEM, N_CLIENTS, SYSTEM.examples), jax.random.split(jax.random.key(0), N_CLIENTS)
    ids = jax.numpy.arange(N_CLIENTS)
    cohort = Cohort(jax.numpy.int32(0), ids, data, ids >= 0, None, key)
    with left_out(sent):
        result = train(LocalHyper(), None, cohort, training_loss(SYSTEM.model), SYSTEM.work)
    np.testing.assert_array_equal(result.params["kernel"], sent["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize("name", server_share.systems())
def test_clients_do_nothing_in_the_round_of_every_system(name):
    options = {"fesem": {"n_clusters": 2}, "layercfl": {"layers": "all"}, "fedtsdp": {"public_batch": 6}}
    hyper = {"threshold": 0.0} if name == "fedtsdp" else {}
    run = server_side(name, SYSTEM._replace(options=options.get(name, {}), hyper=hyper))
    assert jax.tree.leaves(jax.eval_shape(run))
