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
from fljax.models.norm import ConvNorm
from fljax.run.confusion import confusion_matrices
from fljax.run.mesh import over_devices
from fljax.types import ModelTable


class Ours(nn.Module):
    """A block of ours and a dense layer."""

    norm: str = "untracked"

    @nn.compact
    def __call__(self, x, train):
        x = ConvNorm(4, self.norm, kernel=1, name="block")(x, train)
        return nn.Dense(4, name="head")(x.reshape(x.shape[0], -1))


class Own(nn.Module):
    """A user's normalisation, that says of itself what it does."""

    reads_batch = True

    @nn.compact
    def __call__(self, x):
        flat = x.reshape(x.shape[0], -1)
        mean, var = flat.mean(axis=0, keepdims=True), flat.var(axis=0, keepdims=True)
        return (flat - mean) / jnp.sqrt(var + 1e-5)


class OfOwn(nn.Module):
    """A dense layer under it."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4, name="head")(Own(name="norm")(x))


BY_BATCH = {"ours": fljax.from_linen(Ours(), (3, 3, 1)), "a user's": fljax.from_linen(OfOwn(), (3, 3, 1))}


def losses(network, data, make=lambda params, n: tree.own(tree.broadcast(params, n))):
    params = jax.jit(network.init)(jax.random.key(0))
    return jax.jit(lambda: client_loss(network, make(params, data.n_clients), data))()


@pytest.mark.parametrize("network", BY_BATCH)
def test_what_a_client_gets_is_its_own_whoever_else_has_the_model(ragged, network):
    network = BY_BATCH[network]
    alone = losses(network, ragged)
    one, two = (jax.devices()[:n] for n in (1, 2))
    np.testing.assert_allclose(losses(network, ragged, tree.everyone), alone, rtol=1e-6)
    with over_devices(two):
        np.testing.assert_allclose(losses(network, ragged, tree.everyone), alone, rtol=1e-6)
    with over_devices(one):
        some = ragged._replace(index=ragged.index[1:3], size=ragged.size[1:3])
        np.testing.assert_allclose(losses(network, some, tree.everyone), alone[1:3], rtol=1e-6)
        params = jax.jit(network.init)(jax.random.key(0))
        of_two = jax.jit(lambda: cross_loss(network, tree.broadcast(params, 2), ragged))()
    np.testing.assert_allclose(of_two, np.stack([alone, alone], axis=1), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("network", BY_BATCH)
def test_the_longest_client_changes_nothing_for_the_others(ragged, network):
    network = BY_BATCH[network]
    params = jax.jit(network.init)(jax.random.key(0))
    wide = ragged._replace(index=jnp.pad(ragged.index, ((0, 0), (0, 15)), mode="edge"))

    @jax.jit
    def found(data):
        held = tree.everyone(params, data.n_clients)
        matrices = confusion_matrices(predictor(network), held, data, 4)
        losses = example_loss(network, tree.broadcast(params, 1), data)
        return client_loss(network, held, data), client_features(network, held, data), losses, matrices

    for narrow, padded in zip(found(ragged), found(wide), strict=True):
        rows = padded[:, : narrow.shape[1]] if narrow.ndim > 1 else padded
        np.testing.assert_allclose(rows, narrow, rtol=1e-5, atol=1e-6)


def test_features_after_a_norm_are_normal_over_a_client_s_own_examples(ragged):
    network = BY_BATCH["a user's"]
    held = tree.everyone(network.init(jax.random.key(0)), ragged.size.shape[0])
    features = np.asarray(client_features(network, held, ragged))
    # 100 places hold 20 examples five times each, and 5 examples twenty times.
    for client in (3, 4):
        own = features[client, : int(ragged.size[client])]
        np.testing.assert_allclose(own.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(own.std(axis=0), 1, atol=1e-3)


@pytest.mark.slow
def test_whether_a_network_looks_at_its_batch_is_found_out(ragged):
    def of(network):
        held = tree.everyone(network.init(jax.random.key(0)), ragged.size.shape[0])
        return batching(lambda params, batch: predictor(network)(params, batch.x), held, ragged)

    for network in BY_BATCH.values():
        assert (of(network).is_mixing, of(network).size) == (True, BATCH_SIZE)
    for norm in ("none", "group", "batch"):
        plain = fljax.from_linen(Ours(norm), (3, 3, 1))
        assert (of(plain).is_mixing, of(plain).size) == (False, ragged.index.shape[1])


def test_other_networks_still_pass_over_all_clients_at_once(ragged):
    plain = fljax.from_linen(Ours("group"), (3, 3, 1))
    seen = []

    def score(params, batch):
        seen.append(batch.x.shape[0])
        return predictor(plain)(params, batch.x)

    models = ModelTable(tree.broadcast(plain.init(jax.random.key(0)), 1), jnp.zeros(5, jnp.int32))
    jax.eval_shape(lambda: client_sums(score, models, ragged))
    assert BATCH_SIZE in seen
