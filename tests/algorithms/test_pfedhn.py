"""pFedHN: hypernetwork and embeddings by backpropagation in NumPy, and what must not move."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.algorithms.pfedhn import pfedhn
from fljax.run.one_round import as_traced
from tests import oracle
from tests.algorithms.normalised import batch_normalised
from tests.algorithms.round_by_round import jitted, one_round
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, assert_models, reference, run  # noqa: F401
from tests.oracle import as_float64

SMALL = {"embedding_width": 3, "hidden_width": 5, "n_hidden": 2}
SHAPES = {"fc1": {"kernel": (16, 6), "bias": (6,)}, "fc2": {"kernel": (6, 4), "bias": (4,)}}
SERVER_LR, SERVER_MOMENTUM, DECAY, MOST = 0.05, 0.8, 0.01, 1.285


def forward(phi, v):
    """(the generated model, the input of every layer of the hypernetwork)."""
    inputs, value = [v], v @ phi["hidden0"]["kernel"] + phi["hidden0"]["bias"]
    for name in ("hidden1", "hidden2"):
        inputs.append(np.maximum(value, 0))
        value = inputs[-1] @ phi[name]["kernel"] + phi[name]["bias"]
    inputs.append(value)
    model = {"fc1": {}, "fc2": {}}
    for (layer, leaf), head in phi["heads"].items():
        model[layer][leaf] = (value @ head["kernel"] + head["bias"]).reshape(SHAPES[layer][leaf])
    return model, inputs


def backward(phi, inputs, delta):
    """(gradient of phi, of v) of ``<delta, h(v; phi)>``."""
    gradient, error = {"heads": {}}, 0.0
    for (layer, leaf), head in phi["heads"].items():
        of_outputs = delta[layer][leaf].ravel()
        gradient["heads"][layer, leaf] = {"kernel": np.outer(inputs[-1], of_outputs), "bias": of_outputs}
        error = error + head["kernel"] @ of_outputs
    for i in (2, 1, 0):
        layer = phi[f"hidden{i}"]
        gradient[f"hidden{i}"] = {"kernel": np.outer(inputs[i], error), "bias": error}
        error = (layer["kernel"] @ error) * (inputs[i] > 0 if i else 1)
    return gradient, error


def step(value, velocity, gradient):
    """SGD with momentum and weight decay, as PyTorch's."""
    velocity = jax.tree.map(lambda m, g, w: SERVER_MOMENTUM * m + g + DECAY * w, velocity, gradient, value)
    return jax.tree.map(lambda w, m: w - SERVER_LR * m, value, velocity), velocity


def squares(gradient):
    return sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(gradient))


def test_pfedhn_in_numpy(key, model, federation, reference):  # noqa: F811
    algorithm = pfedhn(model, WORK, **SMALL, weighting="size")
    numbers = {"server_lr": SERVER_LR, "server_momentum": SERVER_MOMENTUM, "server_weight_decay": DECAY}
    hyper = pfedhn.Hyper(lr=LR, momentum=MOMENTUM, server_max_norm=MOST, **numbers)
    begun = as_float64(jitted(algorithm.init)(reference.keys.init, as_traced(hyper), federation.train))
    phi, phi_velocity = begun.server
    v, v_velocity = map(list, begun.clients.embedding)
    norms = []
    for cohort in reference.rounds():
        total, g_phi, g_v = sum(size for *_, size in cohort), jax.tree.map(np.zeros_like, phi), {}
        for i, k, size in cohort:
            theta, inputs = forward(phi, v[i])
            delta = oracle.combine(np.subtract, theta, reference.train(theta, i, k))
            own_phi, g_v[i] = backward(phi, inputs, delta)
            g_phi = jax.tree.map(lambda g, own, share=size / total: g + share * own, g_phi, own_phi)
        norms.append(np.sqrt(squares(g_phi) + sum(size / total * squares(g_v[i]) for i, _, size in cohort)))
        clip = min(1.0, MOST / norms[-1])
        phi, phi_velocity = step(phi, phi_velocity, jax.tree.map(lambda g, clip=clip: clip * g, g_phi))
        for i, gradient in g_v.items():
            v[i], v_velocity[i] = step(v[i], v_velocity[i], clip * gradient)
    assert min(norms) < MOST < max(norms)  # the premise: some steps are clipped
    deployed, state = run(algorithm, hyper, federation, key)
    chex.assert_trees_all_close(state.server.value, phi, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.clients.embedding.value, np.stack(v), rtol=1e-4, atol=1e-5)
    assert_models(deployed, [forward(phi, embedding)[0] for embedding in v])


@pytest.mark.slow
def test_generated_models_are_the_networks_own_shapes(key, federation):
    network = batch_normalised((4, 4, 1), 4, hidden=6)
    algorithm = pfedhn(network, WORK, **SMALL)
    hyper = as_traced(pfedhn.Hyper())
    state = jitted(algorithm.init)(key, hyper, federation.train)
    models = algorithm.deploy(key, hyper, state, federation.train)
    chex.assert_trees_all_equal_shapes_and_dtypes(tree.first(models.params), network.init(key))
    # Statistics are each client's own and not generated: those of its training, and of no other client's.
    next_state, _ = one_round(algorithm, hyper, federation, key, state, 0)
    means = np.asarray(jax.tree.leaves(next_state.clients.own)[0])
    assert len(np.unique(means, axis=0)) == federation.train.n_clients


@pytest.mark.slow
def test_where_nobody_answers_nothing_moves(key, model, federation):
    """Neither by momentum nor by weight decay, which steps without gradients would have."""
    algorithm, hyper = pfedhn(model, WORK, **SMALL), as_traced(pfedhn.Hyper())
    state = jitted(algorithm.init)(key, hyper, federation.train)
    state, _ = one_round(algorithm, hyper, federation, key, state, 0)
    pool = federation.train.pool
    nobodys = federation._replace(train=federation.train._replace(pool=pool._replace(x=jnp.full_like(pool.x, jnp.nan))))
    after, metrics = one_round(algorithm, hyper, nobodys, key, state, 1)
    assert not np.asarray(metrics["ok"]).any()
    chex.assert_trees_all_equal(after, state)


def test_equal_embeddings_have_equal_models(key, model, federation):
    algorithm, hyper = pfedhn(model, WORK, **SMALL), as_traced(pfedhn.Hyper())
    state = jitted(algorithm.init)(key, hyper, federation.train)
    v = state.clients.embedding
    equal = v._replace(value=v.value.at[1].set(v.value[0]))
    models = algorithm.deploy(
        key, hyper, state._replace(clients=state.clients._replace(embedding=equal)), federation.train
    )
    first, second, third = (tree.take(models.params, i) for i in range(3))
    chex.assert_trees_all_equal(first, second)
    assert all(np.any(a != b) for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(third), strict=True))


@pytest.mark.slow
def test_personal_layers_are_neither_generated_nor_sent(key, model, federation):
    """Two clients of one embedding then differ in their last layer alone, which each has trained for itself."""
    algorithm, hyper = pfedhn(model, WORK, **SMALL, n_personal=1), as_traced(pfedhn.Hyper(lr=LR))
    state = jitted(algorithm.init)(key, hyper, federation.train)
    assert all(path[0] == "fc1" for path in state.server.value["heads"])
    begun = algorithm.deploy(key, hyper, state, federation.train).params["fc2"]
    chex.assert_trees_all_equal(begun, tree.broadcast(tree.first(begun), federation.train.n_clients))
    after, metrics = one_round(algorithm, hyper, federation, key, state, 0)
    np.testing.assert_array_equal([metrics["uplink"], metrics["downlink"]], 16 * 6 + 6)
    heads = np.asarray(algorithm.deploy(key, hyper, after, federation.train).params["fc2"]["kernel"])
    assert len(np.unique(heads.reshape(len(heads), -1), axis=0)) == len(heads)


def test_a_layer_must_be_generated(model):
    with pytest.raises(ValueError, match=r"n_personal=2: the hypernetwork generates no layer .* choose 0 to 1"):
        pfedhn(model, WORK, n_personal=2)
