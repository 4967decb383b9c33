"""Running statistics where models are added and subtracted: a variance below 0 would make every test NaN."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fljax
from fljax import tree
from fljax.client import training_loss
from fljax.client.sharpness import sharpness_aware
from fljax.data.federation import build, on_host
from fljax.models import variational
from fljax.rounds.clock import asynchronous, buffered
from fljax.types import Batch
from tests.algorithms.normalised import batch_normalised

N_CLIENTS = 6


@pytest.fixture(scope="module")
def federation():
    """Clients whose inputs are alternately wide and narrow, and with them the running variances."""
    rng, n = np.random.default_rng(0), 40
    x = rng.standard_normal((N_CLIENTS * n, 4)).astype(np.float32)
    y = (x @ rng.standard_normal((4, 3))).argmax(axis=1)
    x *= np.repeat(np.tile([5, 0.1], N_CLIENTS // 2), n)[:, None].astype(np.float32)
    return build(on_host(x, y), list(np.arange(len(x)).reshape(N_CLIENTS, n)), (0.8, 0.0, 0.2))


@pytest.fixture(scope="module")
def model():
    return batch_normalised((4,), 3, hidden=4)


def dpsgd(model, work):
    return fljax.dpsgd(model, work, mixing="beside"), fljax.dpsgd.Hyper(lr=0.01), {}


def late(model, work):
    schedule = asynchronous([1, 1.3, 1.7, 1.1, 2.1, 1.9], concurrency=6, buffer=1, n_rounds=12)
    algorithm = buffered(fljax.fedavg(model, work), schedule, mixing="updates")
    return algorithm, fljax.fedavg.Hyper(lr=0.01), {"sampling": schedule.sampling}


def beyond(model, work):
    return fljax.scaffold(model, work), fljax.scaffold.Hyper(lr=0.01, step=1.5), {"participation": 0.2}


@pytest.mark.slow
@pytest.mark.parametrize("method", [dpsgd, late, beyond])
def test_variances_stay_above_zero(model, federation, key, method):
    algorithm, hyper, options = method(model, fljax.Work(12, 8))
    state, metrics = fljax.simulate(algorithm, hyper, federation, key, 12, **options)
    deployed = algorithm.deploy(key, hyper, state, federation.train).params
    assert float(deployed[tree.STATISTICS]["norm"]["var"].min()) > 0
    assert np.isfinite(metrics["client_loss"]).all()


@pytest.mark.slow
def test_a_gradient_of_all_data_moves_statistics_as_a_step_on_it_does(model, federation, key):
    """FedAvg of one full batch is FedSGD, and so is IFCA of gradients with one cluster."""
    work, arguments = fljax.Work(1, 32), (federation, key, 3)
    fedavg_state, _ = fljax.simulate(fljax.fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), *arguments)
    fedsgd_state, _ = fljax.simulate(fljax.fedsgd(model, work), fljax.fedsgd.Hyper(lr=0.1), *arguments)
    chex.assert_trees_all_close(fedsgd_state.server, fedavg_state.server, rtol=1e-4, atol=1e-5)
    assert np.abs(np.asarray(fedsgd_state.server[tree.STATISTICS]["norm"]["var"]) - 1).max() > 0.1
    one_cluster = fljax.ifca(model, work, 1, averaging="gradient")
    ifca_state, _ = fljax.simulate(one_cluster, fljax.ifca.Hyper(lr=0.1), *arguments)
    var = np.asarray(jax.tree.leaves(ifca_state.server.centers[tree.STATISTICS])[1])
    assert np.abs(var - 1).max() > 0.1


def test_a_sharpness_aware_step_moves_statistics_as_a_plain_one_does(model, federation, key):
    """Those of the batch where the client is, not of where it looks."""
    pool, params, loss = federation.train.pool, model.init(key), training_loss(model)
    batch = Batch(pool.x[:8], pool.y[:8], jnp.ones(8))
    sharpness_aware_loss = sharpness_aware(loss, fljax.compose("fedavg+sam").Hyper(rho=3.0))
    updated, expected = jax.jit(lambda p: (sharpness_aware_loss(p, batch, key, p)[1], loss(p, batch, key)[1]))(params)
    chex.assert_trees_all_close(updated[tree.STATISTICS], expected[tree.STATISTICS], rtol=1e-6)
    assert (np.asarray(expected[tree.STATISTICS]["norm"]["mean"]) != params[tree.STATISTICS]["norm"]["mean"]).all()


@pytest.mark.parametrize("name", ["dcpfl", "fedtsdp", "fedma"])
def test_statistics_of_no_layer_are_refused_where_layers_count(federation, key, name):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.Dense(4, name="first")(x)
            x = nn.BatchNorm(use_bias=False, use_scale=False, use_running_average=not train, name="alone")(x)
            return nn.Dense(3, name="last")(nn.relu(x))

    method, public = fljax.ALGORITHMS[name], jax.tree.map(lambda leaf: leaf[:8], federation.train.pool)
    algorithm = method(fljax.from_linen(Net(), (4,)), fljax.Work(1, 8))
    with pytest.raises(ValueError, match="'alone' has running statistics but no parameters, so it is not a layer"):
        jax.eval_shape(
            lambda key: fljax.simulate(algorithm, method.Hyper(), federation._replace(public=public), key, 1), key
        )


def test_networks_in_halves_keep_no_statistics(model):
    halves = variational((4,), 3, latent=2, hidden=(4,), channels=()).halves
    with pytest.raises(ValueError, match="a network in halves keeps no running statistics"):
        fljax.fedsr(model._replace(halves=halves), fljax.Work(1, 8))


def test_noise_on_a_mean_is_refused_where_statistics_travel_beside_it(model, federation, key):
    private = fljax.compose("fedavg+client_dp")
    with pytest.raises(ValueError, match="running statistics of a network are sent without noise"):
        fljax.simulate(private(model, fljax.Work(1, 8)), private.Hyper(), federation, key, 1)


@pytest.mark.slow
def test_feddbe_shares_statistics_as_such(model, federation, key):
    """A server's optimiser does not step along them."""
    work, method = fljax.Work(1, 8), fljax.compose("feddbe+adam")
    state, _ = fljax.simulate(method(model, work), method.Hyper(lr=0.1), federation, key, 1)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(state.server)]
    assert not [path for path in paths if "moments" in path and tree.STATISTICS in path]
    assert any("moments" in path for path in paths)


def test_a_server_that_goes_beyond_the_mean_leaves_statistics_at_it():
    beyond_the_mean = fljax.rounds.interpolated(fljax.rounds.mean, lambda hyper, weight: 2.0)
    shared = {"layer": jnp.zeros(2), tree.STATISTICS: {"var": jnp.full(2, 4.0)}}
    received = {"layer": jnp.ones((3, 2)), tree.STATISTICS: {"var": jnp.full((3, 2), 1.0)}}
    new_shared, _ = beyond_the_mean.apply(None, (), shared, received, jnp.ones(3))
    np.testing.assert_allclose(new_shared["layer"], 2.0)
    np.testing.assert_allclose(new_shared[tree.STATISTICS]["var"], 1.0)
