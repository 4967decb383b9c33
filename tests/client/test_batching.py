"""Networks that normalise by the batch at hand in evaluation: nobody's output depends on other clients' data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fljax
from fljax import tree
from fljax.client import client_loss, client_sums, cross_loss, predictor
from fljax.client.batching import BATCH_SIZE, batching
from fljax.client.example_loss import example_loss
from fljax.client.features import client_features
from fljax.devices.mesh import over_devices
from fljax.metrics.confusion import confusion_matrices
from fljax.models.norm import ConvNorm
from fljax.types import ModelTable
from tests.slow import slow


class BlockNet(nn.Module):
    """A block of ours and a dense layer."""

    norm: str = "untracked"

    @nn.compact
    def __call__(self, x, train):
        x = ConvNorm(4, self.norm, kernel=1, name="block")(x, train)
        return nn.Dense(4, name="head")(x.reshape(x.shape[0], -1))


class BatchNormal(nn.Module):
    """A user's normalisation, that says of itself what it does."""

    reads_batch = True

    @nn.compact
    def __call__(self, x):
        rows = x.reshape(x.shape[0], -1)
        mean, var = rows.mean(axis=0, keepdims=True), rows.var(axis=0, keepdims=True)
        return (rows - mean) / jnp.sqrt(var + 1e-5)


class BatchNormalNet(nn.Module):
    """A dense layer under it."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4, name="head")(BatchNormal(name="norm")(x))


BY_BATCH = {"ours": fljax.from_linen(BlockNet(), (3, 3, 1)), "a user's": fljax.from_linen(BatchNormalNet(), (3, 3, 1))}


def losses(network, data, make=lambda params, n: tree.own(tree.broadcast(params, n))):
    params = jax.jit(network.init)(jax.random.key(0))
    return jax.jit(lambda: client_loss(network, make(params, data.n_clients), data))()


@pytest.mark.parametrize("network", [*slow("ours"), "a user's"])
def test_what_a_client_gets_is_its_own_whoever_else_has_the_model(ragged, network):
    network = BY_BATCH[network]
    expected = losses(network, ragged)
    one_device, two_devices = (jax.devices()[:n] for n in (1, 2))
    np.testing.assert_allclose(losses(network, ragged, tree.everyone), expected, rtol=1e-6)
    with over_devices(two_devices):
        np.testing.assert_allclose(losses(network, ragged, tree.everyone), expected, rtol=1e-6)
    with over_devices(one_device):
        two_clients = ragged._replace(index=ragged.index[1:3], size=ragged.size[1:3])
        np.testing.assert_allclose(losses(network, two_clients, tree.everyone), expected[1:3], rtol=1e-6)
        params = jax.jit(network.init)(jax.random.key(0))
        cross_losses = jax.jit(lambda: cross_loss(network, tree.broadcast(params, 2), ragged))()
    np.testing.assert_allclose(cross_losses, np.stack([expected, expected], axis=1), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("network", BY_BATCH)
def test_the_longest_client_changes_nothing_for_the_others(ragged, network):
    network = BY_BATCH[network]
    params = jax.jit(network.init)(jax.random.key(0))
    padded_data = ragged._replace(index=jnp.pad(ragged.index, ((0, 0), (0, 15)), mode="edge"))

    @jax.jit
    def measured(data):
        models = tree.everyone(params, data.n_clients)
        matrices = confusion_matrices(predictor(network), models, data, 4)
        losses = example_loss(network, tree.broadcast(params, 1), data)
        return client_loss(network, models, data), client_features(network, models, data), losses, matrices

    for expected, with_padding in zip(measured(ragged), measured(padded_data), strict=True):
        rows = with_padding[:, : expected.shape[1]] if expected.ndim > 1 else with_padding
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


def test_features_after_a_norm_are_normal_over_a_client_s_own_examples(ragged):
    network = BY_BATCH["a user's"]
    models = tree.everyone(network.init(jax.random.key(0)), ragged.size.shape[0])
    features = np.asarray(client_features(network, models, ragged))
    # 100 places hold 20 examples five times each, and 5 examples twenty times.
    for client in (3, 4):
        client_features_of_examples = features[client, : int(ragged.size[client])]
        np.testing.assert_allclose(client_features_of_examples.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(client_features_of_examples.std(axis=0), 1, atol=1e-3)


@pytest.mark.slow
def test_whether_a_network_looks_at_its_batch_is_found_out(ragged):
    def batching_of(network):
        models = tree.everyone(network.init(jax.random.key(0)), ragged.size.shape[0])
        return batching(lambda params, batch: predictor(network)(params, batch.x), models, ragged)

    for network in BY_BATCH.values():
        assert (batching_of(network).is_mixing, batching_of(network).size) == (True, BATCH_SIZE)
    for norm in ("none", "group", "batch"):
        per_example = fljax.from_linen(BlockNet(norm), (3, 3, 1))
        assert (batching_of(per_example).is_mixing, batching_of(per_example).size) == (False, ragged.index.shape[1])


def test_other_networks_still_pass_over_all_clients_at_once(ragged):
    network = fljax.from_linen(BlockNet("group"), (3, 3, 1))
    batch_sizes = []

    def score(params, batch):
        batch_sizes.append(batch.x.shape[0])
        return predictor(network)(params, batch.x)

    models = ModelTable(tree.broadcast(network.init(jax.random.key(0)), 1), jnp.zeros(5, jnp.int32))
    jax.eval_shape(lambda: client_sums(score, models, ragged))
    assert BATCH_SIZE in batch_sizes
