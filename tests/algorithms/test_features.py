"""Methods at the layer of features: what clients share of it, and what they are without."""

from functools import partial
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from scipy.special import log_softmax, softmax
from sklearn.neighbors import KNeighborsClassifier

import fljax
from fljax import tree
from fljax.algorithms.fedcp import GLOBAL, POLICY, context_of, fedcp, gated
from fljax.algorithms.feddbe import BIAS, feddbe
from fljax.algorithms.fedgen import fedgen, generated, generator_of, on_generated, with_generated_loss
from fljax.algorithms.fedproto import fedproto
from fljax.algorithms.fedrod import PERSONAL, fedrod
from fljax.algorithms.gpfl import EMBEDDING, SHARE, TRAINED, VALVE, gpfl, two_ways
from fljax.algorithms.moon import contrasted, moon
from fljax.client.class_means import ClassSums, others_last
from fljax.client.discrepancy import discrepancy
from fljax.client.features import linear, see
from fljax.data.synthetic import linear_groups
from fljax.models import cnn, lenet, lora, mlp, only_trained, resnet18
from fljax.rounds.cohort import everyone
from fljax.rounds.prototypes import average_prototypes
from fljax.run.newcomers import new_models
from fljax.run.one_round import as_traced, split_key
from fljax.types import Batch, State, Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.test_oracles import (  # noqa: F401
    LR,
    WORK,
    Reference,
    assert_models,
    assert_sent,
    reference,
    rounds_of,
    run,
    without_a_class,
)
from tests.algorithms.test_personal import fedavg_server, final, numpy_features
from tests.oracle import as_float64, examples_of, rows_of
from tests.slow import slow


def towards_prototypes(params, batches, mean, is_known, lam):
    """A client's training with FedProto's penalty."""
    for x, y in batches:
        g, h = oracle.gradient(params, x, y), numpy_features(params, x)
        feature_slope = 2 * lam * (h - mean[y]) * is_known[y, None] / h.size * (h > 0)
        prototype_gradient = {"kernel": x.reshape(len(x), -1).T @ feature_slope, "bias": feature_slope.sum(0)}
        g |= {"fc1": {name: g["fc1"][name] + prototype_gradient[name] for name in prototype_gradient}}
        params = oracle.combine(lambda w, g: w - LR * g, params, g)
    return params


def test_fedproto_in_numpy(key, model, federation, reference):  # noqa: F811
    """Half of the clients a round: features are pulled to the prototypes of those who came before."""
    models, lam = reference.everyone(), 3.0
    mean, is_known, uplink, downlink = np.zeros((4, 6)), np.zeros(4), [], []
    for cohort in reference.rounds():
        total, count = np.zeros((4, 6)), np.zeros(4)
        uplink, downlink = [*uplink, {}], [*downlink, {i: 6 * is_known.sum() for i, *_ in cohort}]
        for i, k, _ in cohort:
            models[i] = towards_prototypes(models[i], reference.batches(i, k), mean, is_known, lam)
            x, y = examples_of(federation.train, i)
            np.add.at(total, y, numpy_features(models[i], x))
            np.add.at(count, y, 1)
            uplink[-1][i] = len(np.unique(y)) * 7
        mean = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], mean)
        is_known = np.maximum(is_known, count > 0)
    state, metrics = rounds_of(fedproto(model, WORK), fedproto.Hyper(lr=LR, lam=lam), federation, key)
    assert_sent(metrics, "uplink", uplink)
    assert_sent(metrics, "downlink", downlink)
    assert_models(state.clients, models)
    np.testing.assert_allclose(state.server["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(state.server["known"], is_known)
    is_shown = np.array([1, 0, 1, 1])  # as if nobody had shown class 1
    x, model_of_first = np.asarray(federation.train.pool.x)[:20], jax.tree.map(lambda leaf: leaf[0], state.clients)
    distance = np.square(numpy_features(models[0], x)[:, None] - mean).sum(-1)
    prototypes = {"mean": state.server["mean"], "known": is_shown.astype(np.float32)}
    scores = jax.jit(fedproto(model, WORK).predict)(model_of_first | {"prototypes": prototypes}, x)
    np.testing.assert_array_equal(scores.argmax(1), np.where(is_shown, distance, np.inf).argmin(1))


@pytest.mark.parametrize("weighting", ["size", "uniform"])
def test_a_classs_prototype_is_the_mean_over_those_who_came_and_have_it(weighting):
    rng = np.random.default_rng(0)
    old_prototypes = {"mean": rng.normal(size=(4, 3)).astype(np.float32), "known": np.array([1, 0, 1, 0], np.float32)}
    count = np.array([[3, 1, 0, 0], [1, 5, 0, 0], [7, 0, 2, 0], [2, 2, 2, 2]])
    mean = rng.normal(size=(4, 4, 3)) * (count > 0)[..., None]
    ok, active = np.array([True, True, False, True]), np.array([True, True, True, False])
    sums = ClassSums(np.float32(mean * count[..., None]), np.float32(count))
    cohort = SimpleNamespace(active=active, data=SimpleNamespace(size=jnp.asarray(count.sum(1))))
    prototypes = jax.jit(lambda *sums_of_classes: average_prototypes(*sums_of_classes, weighting, cohort, ok))(
        old_prototypes, sums
    )
    weight = count[:2] if weighting == "size" else count[:2] > 0
    for c in range(2):
        np.testing.assert_allclose(prototypes["mean"][c], np.average(mean[:2, c], 0, weight[:, c]), rtol=1e-5)
    np.testing.assert_array_equal(prototypes["mean"][2:], old_prototypes["mean"][2:])
    np.testing.assert_array_equal(prototypes["known"], [1, 1, 1, 0])


def test_classes_that_are_not_known_come_last_at_a_finite_distance():
    score, known = np.float32([[1, 2, 9, -3], [-5, 4, 0, 1]]), np.array([True, True, False, False])
    np.testing.assert_array_equal(jax.jit(others_last)(score, known), [[1, 2, -9, -9], [-5, 4, -15, -15]])


def test_the_mean_of_a_class_without_examples_is_0():
    sums = ClassSums(np.float32([[[2, 4], [0, 0]]]), np.float32([[4, 0]]))
    np.testing.assert_array_equal(sums.mean, [[[0.5, 1], [0, 0]]])


def test_feddistill_in_numpy(key, model, federation, reference):  # noqa: F811
    """Each learns what the others put out on average for an example's class, never what it put out itself."""
    method, gamma, models = fljax.ALGORITHMS["feddistill"], 0.7, reference.everyone()
    total, count, uplink, downlink = np.zeros((8, 4, 4)), np.zeros((8, 4)), [], []
    for cohort in reference.rounds():
        old_tables, uplink, downlink = (total.copy(), count.copy()), [*uplink, {}], [*downlink, {}]
        for i, k, _ in cohort:
            sum_of_others, n_others = (np.delete(table, i, 0).sum(0) for table in old_tables)
            teacher, downlink[-1][i] = sum_of_others / np.maximum(n_others, 1)[:, None], 4 * (n_others > 0).sum()
            for x, y in reference.batches(i, k):
                g, target = oracle.gradient(models[i], x, y), teacher[y].ravel()  # of an example for each class
                if target.any():
                    h = oracle.gradient(models[i], np.repeat(x, 4, 0), np.tile(range(4), len(x)), target)
                    scale = gamma * target.sum() / len(x)  # classes that no other has teach nothing
                    g = oracle.combine(lambda g, h, scale=scale: g + scale * h, g, h)
                models[i] = oracle.combine(lambda w, g: w - LR * g, models[i], g)
            x, y = examples_of(federation.train, i)
            p = softmax(oracle.forward(models[i], x)[0], axis=1)
            for c in np.unique(y):
                total[i, c], count[i, c] = p[y == c].mean(0), 1
            uplink[-1][i] = 4 * count[i].sum()
    state, metrics = rounds_of(method(model, WORK), method.Hyper(lr=LR, gamma=gamma), federation, key)
    assert_sent(metrics, "uplink", uplink)
    assert_sent(metrics, "downlink", downlink)
    assert_models(state.clients["w"], models)
    np.testing.assert_allclose(state.server["taught"]["total"], total.sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(state.clients["taught"]["count"], count)


@pytest.mark.slow
def test_newcomers_to_feddistill_are_taught_by_all_others_in_every_round(key, model, federation):
    method, newcomers = fljax.ALGORITHMS["feddistill"], linear_groups(3, 2, examples=24, seed=1)
    algorithm, hyper = method(model, Work(1, 64)), method.Hyper(lr=0.5, gamma=1.0)
    state = simulate(algorithm, hyper, federation, key, 2, evaluate_every=2)[0]
    teacher_sums = jax.tree.map(np.asarray, state.server["taught"])
    # Newcomers begin with the first model of all, here with one full batch a round.
    start, data, n_rounds = as_float64(model.init(split_key(key).init)), newcomers.train, 3
    models = jax.jit(new_models, static_argnums=0)(algorithm, as_traced(hyper), state, data, key, jnp.int32(n_rounds))
    for i in range(3):
        w, rows = start, rows_of(data, i)
        x, y = np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.y)[rows]
        target = (teacher_sums["total"] / np.maximum(teacher_sums["count"], 1)[:, None])[
            y
        ].ravel()  # of an example for each class
        for _ in range(n_rounds):
            g, h = oracle.gradient(w, x, y), oracle.gradient(w, np.repeat(x, 4, 0), np.tile(range(4), len(x)), target)
            w = oracle.combine(lambda w, g, h: w - 0.5 * (g + h), w, g, h)
        trained_model = jax.tree.map(lambda leaf, i=i: leaf[i], models.params)
        chex.assert_trees_all_close(trained_model, jax.tree.map(np.float32, w), rtol=1e-4, atol=1e-5)
    assert (teacher_sums["count"] > 0).all()


def test_fedrod_in_numpy(key, model, federation):
    """A gradient of the balanced softmax is that of the softmax at biases shifted by log n_c, -18 where it is of 0."""
    federation = without_a_class(federation)
    reference = Reference(key, model, federation)  # noqa: F811
    theta = reference.start
    heads = [dict(theta["fc2"]) for _ in range(8)]
    data = federation.train
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            w, client_labels = theta, np.asarray(data.pool.y)[rows_of(data, i)]
            prior = np.log(np.maximum(np.bincount(client_labels, minlength=4), 1e-8))
            for x, y in reference.batches(i, k):
                balanced_w = w | {"fc2": w["fc2"] | {"bias": w["fc2"]["bias"] + prior}}
                both_heads = w | {"fc2": {name: w["fc2"][name] + heads[i][name] for name in heads[i]}}
                g, head_gradient = oracle.gradient(balanced_w, x, y), oracle.gradient(both_heads, x, y)["fc2"]
                w = oracle.combine(lambda w, g: w - LR * g, w, g)
                heads[i] = {name: heads[i][name] - LR * head_gradient[name] for name in heads[i]}
            sent.append(w)
        theta = oracle.average(sent, [size for *_, size in cohort])
    deployed, _ = run(fedrod(model, WORK), fedrod.Hyper(lr=LR), federation, key)
    assert_models(deployed, [theta | {PERSONAL: head} for head in heads])
    x, model_of_first = np.asarray(federation.train.pool.x)[:20], jax.tree.map(lambda leaf: leaf[0], deployed)
    both_heads = theta | {"fc2": {name: theta["fc2"][name] + heads[0][name] for name in heads[0]}}
    logits = jax.jit(fedrod(model, WORK).predict)(model_of_first, x)
    np.testing.assert_allclose(logits, oracle.forward(both_heads, np.float64(x))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_moon_without_contrast_is_fedavg(key, model, work, federation):
    state = final(moon(model, work), moon.Hyper(lr=0.1, mu=0.0), federation, key)
    chex.assert_trees_all_close(state.server, fedavg_server(model, work, federation, key), rtol=1e-5, atol=1e-6)
    deployed = jitted(moon(model, work).deploy)(key, moon.Hyper(), state, federation.train)
    chex.assert_trees_all_equal(tree.stacked(deployed), jax.tree.map(lambda leaf: jnp.stack([leaf] * 8), state.server))
    assert (deployed.row == 0).all()  # the one row that there is


def test_a_client_of_moon_steps_towards_the_servers_features_and_away_from_its_last(key, model, federation):
    """One full batch: a step of the contrast's gradient, whose value is NumPy's below."""
    algorithm, hyper = moon(model, Work(1, None)), as_traced(moon.Hyper(lr=0.1, mu=3.0))
    theta, last_models = model.init(key), jax.vmap(model.init)(jax.random.split(key, 8))
    data = federation.train
    next_state, _ = jax.jit(algorithm.round)(key, hyper, State(theta, last_models), everyone(key, jnp.int32(0), data))

    @jax.jit
    def step(theta, last_models, batch):
        gradient = jax.grad(lambda w: contrasted(model, hyper)(w, batch, key, theta, last_models)[0])(theta)
        return tree.subtract(theta, jax.tree.map(lambda g: 0.1 * g, gradient))

    i = 5
    rows = np.asarray(data.index[i, : int(data.size[i])])
    batch = Batch(np.asarray(data.pool.x)[rows], np.asarray(data.pool.y)[rows], np.ones(len(rows), np.float32))
    expected = step(theta, tree.row(last_models, i), batch)
    chex.assert_trees_all_close(tree.row(next_state.clients, i), expected, rtol=1e-5, atol=1e-6)


def test_moons_contrast_in_numpy(key, model, federation):
    params = [as_float64(model.init(jax.random.fold_in(key, i))) for i in range(3)]
    x, y = np.asarray(federation.train.pool.x, np.float64)[:9], np.asarray(federation.train.pool.y)[:9]
    h, h_server, h_last = (numpy_features(w, x) for w in params)

    def cosine(a, b):
        return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    positive, negative = np.exp(cosine(h, h_server) / 0.4), np.exp(cosine(h, h_last) / 0.4)
    expected = oracle.training_loss(params[0], x, y) - 0.7 * np.log(positive / (positive + negative)).mean()
    float32_params = [jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), w) for w in params]
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(9))
    value, _ = jax.jit(contrasted(model, moon.Hyper(mu=0.7, temperature=0.4)))(
        float32_params[0], batch, key, *float32_params[1:]
    )
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        partial(mlp, (8, 8, 1), (6,), 4),
        partial(cnn, (12, 12, 1), 4, (2, 3)),
        *slow(partial(lenet, (16, 16, 1), 4), partial(resnet18, (8, 8, 1), 4)),
    ],
)
def test_features_are_what_the_last_layer_is_given(key, make):
    network = make()
    shapes = dict(network.about)["input_shape"]

    def logits_and_params(key):
        params = network.init(key)
        outputs = see(network, params | {"other": jnp.zeros(3)}, jax.random.normal(key, (5, *shapes)), None)
        return outputs.logits, linear(params[network.layers[-1]], outputs.features), outputs.params

    logits, logits_of_features, params = jax.eval_shape(logits_and_params, key)
    assert logits.shape == logits_of_features.shape == (5, 4)
    assert "other" in params
    if network.layers == ("fc1", "fc2"):
        chex.assert_trees_all_close(*jax.jit(logits_and_params)(key)[:2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kappa", [0.0, 4.0])
def test_feddbe_in_numpy(key, model, federation, reference, kappa):  # noqa: F811
    """The client's own vector learns with the model, and stays; features' running mean is pulled to the consensus."""
    hyper, rate = feddbe.Hyper(lr=LR, kappa=kappa, rate=0.3), 0.3
    theta, biases = reference.start, [np.zeros(6) for _ in range(8)]
    key_beforehand, features = jax.random.fold_in(reference.keys.init, 1), []
    for i in range(8):  # a round of everyone before the first finds the consensus of all examples
        w = oracle.local_sgd(theta, reference.batches(i, jax.random.fold_in(key_beforehand, i)), LR)
        features.append(numpy_features(w, examples_of(federation.train, i)[0]))
    consensus = np.concatenate(features).mean(0)
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            w, running = theta, np.zeros(6)
            for x, y in reference.batches(i, k):
                h = numpy_features(w, x)
                z = (h + biases[i]) @ w["fc2"]["kernel"] + w["fc2"]["bias"]
                delta = np.exp(z - z.max(1, keepdims=True))
                delta = (delta / delta.sum(1, keepdims=True) - np.eye(4)[y]) / len(y)
                feature_gradient = delta @ w["fc2"]["kernel"].T
                running = (1 - rate) * running + rate * h.mean(0)
                mean_gradient = kappa * (running - consensus) / 6 * rate / len(y)
                body_gradient = (feature_gradient + mean_gradient) * (h > 0)
                g = {
                    "fc1": {"kernel": x.reshape(len(x), -1).T @ body_gradient, "bias": body_gradient.sum(0)},
                    "fc2": {"kernel": (h + biases[i]).T @ delta, "bias": delta.sum(0)},
                }
                w, biases[i] = oracle.combine(lambda w, g: w - LR * g, w, g), biases[i] - LR * feature_gradient.sum(0)
            sent.append(w)
        theta = oracle.average(sent, [size for *_, size in cohort])
    deployed, state = run(feddbe(model, WORK), hyper, federation, key)
    np.testing.assert_allclose(state.server["consensus"], consensus, rtol=1e-4, atol=1e-6)
    x, model_of_first = np.asarray(federation.train.pool.x)[:20], jax.tree.map(lambda leaf: leaf[0], deployed)
    expected = (numpy_features(theta, np.float64(x)) + biases[0]) @ theta["fc2"]["kernel"] + theta["fc2"]["bias"]
    np.testing.assert_allclose(jax.jit(feddbe(model, WORK).predict)(model_of_first, x), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(deployed.pop(BIAS), np.stack(biases), rtol=1e-4, atol=1e-5)
    assert_models(deployed, [theta] * 8)


def third_at_first(algorithm, hyper):
    """The model that the third client is tested with before the first round."""

    @jax.jit
    def third_model(key, data):
        deployed = algorithm.deploy(key, hyper, algorithm.init(key, hyper, data), data)
        return tree.take(tree.stacked(deployed), 2)

    return third_model


def test_gpfls_loss_in_numpy(key, model, federation):
    """All three parts of it, on one batch."""
    algorithm, hyper = gpfl(model, Work(1, 8)), gpfl.Hyper(lam=0.7, mu=0.3)
    params = jax.device_get(third_at_first(algorithm, hyper)(key, federation.train))
    rows, valve = np.asarray(params[EMBEDDING]["rows"], np.float64), as_float64(params[VALVE])
    x, y = np.asarray(federation.train.pool.x, np.float64)[:9], np.asarray(federation.train.pool.y)[:9]
    h, condition = numpy_features(as_float64(params), x), np.asarray(params[SHARE], np.float64) @ rows

    def conditioned(c):
        def normalised(layer):
            value = np.maximum(c @ layer["kernel"] + layer["bias"], 0)
            return (value - value.mean()) / np.sqrt(value.var() + 1e-5)

        return np.maximum((normalised(valve["gamma"]) + 1) * h + normalised(valve["beta"]), 0)

    def cross_entropy(z):
        return np.log(np.exp(z).sum(1)) - z[np.arange(9), y]

    fc2, common_features = as_float64(params["fc2"]), conditioned(rows.mean(0))
    cosine = common_features @ rows.T / np.linalg.norm(common_features, axis=1)[:, None] / np.linalg.norm(rows, axis=1)
    expected = cross_entropy(conditioned(condition) @ fc2["kernel"] + fc2["bias"]) + cross_entropy(cosine)
    received = rows[::-1]  # the distance is to the embeddings that it was sent
    expected = (expected + 0.7 * np.linalg.norm(common_features - received[y], axis=1)).mean()
    squared_norms = sum(np.square(leaf).sum() for leaf in (rows, *jax.tree.leaves(valve)))
    batch = Batch(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(9))
    value, _ = jax.jit(two_ways(model, hyper))(
        params, batch, key, np.float32(received), params[EMBEDDING]["rows"], params[SHARE]
    )
    np.testing.assert_allclose(value, expected + 0.15 * squared_norms, rtol=1e-4)
    logits = jax.jit(algorithm.predict)(params, batch.x)
    np.testing.assert_allclose(logits, conditioned(condition) @ fc2["kernel"] + fc2["bias"], rtol=1e-4, atol=1e-5)


def test_a_client_of_gpfl_steps_along_its_loss_under_its_own_classes(key, model, federation):
    """One full batch of everyone: the loss is NumPy's above, of a client's own share of each class."""
    algorithm, hyper, data = gpfl(model, Work(1, None)), as_traced(gpfl.Hyper(lr=0.1, lam=0.7)), federation.train
    state = jitted(algorithm.init)(split_key(key).init, hyper, data)
    deployed = jax.jit(lambda state, data: tree.stacked(algorithm.deploy(key, hyper, state, data)))(state, data)
    next_state, _ = simulate(algorithm, hyper, federation, key, 1)
    size, labels = np.asarray(data.size), np.asarray(data.pool.y)
    share = np.stack(
        [
            np.bincount(labels[rows_of_client[:n]], minlength=4) / n
            for rows_of_client, n in zip(data.index, size, strict=True)
        ]
    )

    @jax.jit
    @jax.vmap
    def step(w, index, n, share):
        batch, rows = Batch(data.pool.x[index], data.pool.y[index], jnp.arange(len(index)) < n), w[EMBEDDING]["rows"]
        batch = batch._replace(weight=batch.weight.astype(jnp.float32))
        gradient = jax.grad(lambda w: two_ways(model, hyper)(w, batch, key, rows, rows, share)[0])(w)
        return tree.subtract(w, jax.tree.map(lambda g: 0.1 * g, gradient))

    expected = step({k: deployed[k] for k in deployed if k != SHARE}, data.index, data.size, share.astype(np.float32))
    chex.assert_trees_all_close(next_state.clients["fc2"], expected["fc2"], rtol=1e-5, atol=1e-6)
    for part in ("fc1", EMBEDDING, VALVE):
        mean = jax.tree.map(lambda leaf: np.average(leaf, 0, size).astype(np.float32), expected[part])
        chex.assert_trees_all_close(next_state.server[part], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_gpfls_conditions_of_what_clients_trained(key, model, federation):
    """Zeros before the first round; then a client's own embeddings, whose mean by size is what the server has."""
    algorithm, hyper = gpfl(model, Work(1, 8), condition="trained"), gpfl.Hyper(lr=0.1, mu=0.1, weight_decay=0.1)
    params, x = third_at_first(algorithm, hyper)(key, federation.train), np.asarray(federation.train.pool.x)[:9]
    assert not np.asarray(params[TRAINED]["rows"]).any()
    changed_params = params | {EMBEDDING: jax.tree.map(lambda rows: rows + 1, params[EMBEDDING])}
    predict = jax.jit(algorithm.predict)
    np.testing.assert_array_equal(predict(params, x), predict(changed_params, x))
    changed_params = params | {TRAINED: params[EMBEDDING]}
    expected = jax.jit(gpfl(model, Work(1, 8)).predict)(
        {name: leaf for name, leaf in params.items() if name != TRAINED}, x
    )
    np.testing.assert_allclose(predict(changed_params, x), expected, rtol=1e-6)
    state = simulate(algorithm, hyper, federation, key, 2)[0]
    embeddings, size = np.asarray(state.clients[TRAINED]["rows"], np.float64), np.asarray(federation.train.size)
    np.testing.assert_allclose(state.server[EMBEDDING]["rows"], np.average(embeddings, 0, size), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_fedgen_that_teaches_nothing_is_fedavg(key, model, work, federation):
    algorithm = fedgen(model, work, noise_width=3, generator_width=5, server_steps=2)
    state = final(algorithm, fedgen.Hyper(lr=0.1, alpha=0.0), federation, key)
    chex.assert_trees_all_close(state.server.own, fedavg_server(model, work, federation, key), rtol=1e-5, atol=1e-6)
    _, counts = np.unique(taught_labels(federation), return_counts=True)
    np.testing.assert_array_equal(state.server.prior, counts)


def taught_labels(federation):
    """The classes of all clients' training examples."""
    data = jax.device_get(federation.train)
    return np.concatenate([data.pool.y[data.index[i, : data.size[i]]] for i in range(len(data.size))])


def test_fedgens_generator_needs_the_size_of_a_batch(model):
    with pytest.raises(ValueError, match="fedgen: batch_size=None does not set the number of generated features"):
        fedgen(model, Work(1, None))


def test_fedgens_loss_on_generated_features_in_numpy(key, model):
    generator = jax.device_get(jax.jit(lambda key: generator_of(key, 3, 5, 6, 4))(key))
    generator = generator | {"scale": np.linspace(0.5, 2, 5, dtype=np.float32), "shift": np.full(5, 0.1, np.float32)}
    head, prior = jax.device_get(jax.jit(model.init)(key))["fc2"], jnp.array([0.0, 0.0, 1.0, 0.0])
    value = jax.jit(partial(on_generated, model=model, n=9))(generator, key, head=head, prior=prior)
    key_noise, float64_generator = jax.random.split(key)[1], as_float64(generator)
    eps, y = np.asarray(jax.random.uniform(key_noise, (9, 3), jnp.float32)), np.eye(4)[np.full(9, 2)]
    hidden = np.concatenate([eps, y], 1) @ float64_generator["first"]
    hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    z = (
        np.maximum(hidden * float64_generator["scale"] + float64_generator["shift"], 0)
        @ float64_generator["last"]["kernel"]
        + float64_generator["last"]["bias"]
    )
    np.testing.assert_allclose(jax.jit(generated)(generator, key_noise, jnp.asarray(y, jnp.float32)), z, rtol=1e-4)
    logits = z @ as_float64(head)["kernel"] + head["bias"]
    np.testing.assert_allclose(value, (np.log(np.exp(logits).sum(1)) - logits[:, 2]).mean(), rtol=1e-5)


def test_a_client_of_fedgen_learns_its_own_examples_and_alpha_times_generated_ones(key, model, federation):
    algorithm, hyper = fedgen(model, Work(1, 8)), fedgen.Hyper(alpha=3.0)
    server, params = jitted(algorithm.init)(key, hyper, federation.train).server, model.init(key)
    x, y = federation.train.pool.x[:9], federation.train.pool.y[:9]
    value, _ = jax.jit(with_generated_loss(model, hyper, server))(params, Batch(x, y, jnp.ones(9)), key)
    generated_loss = partial(on_generated, model=model, n=9, head=params["fc2"], prior=server.prior)
    value_on_generated = jax.jit(generated_loss)(server.generator, jax.random.split(key)[1])
    value_on_examples = oracle.training_loss(as_float64(params), np.asarray(x, np.float64), np.asarray(y))
    np.testing.assert_allclose(value, value_on_examples + 3 * float(value_on_generated), rtol=1e-5)


def test_fedgens_generator_takes_adams_steps_along_the_loss_of_the_new_head(key, model, federation):
    """Two rounds of two steps each, whose moments go on from round to round."""
    algorithm = fedgen(model, Work(1, 8), noise_width=3, generator_width=5, server_steps=2)
    hyper, cohort = fedgen.Hyper(lr=0.1, generator_lr=0.05), everyone(key, jnp.int32(0), federation.train)
    state = jitted(algorithm.init)(key, hyper, federation.train)
    gradient = jax.jit(jax.grad(partial(on_generated, model=model, n=8)))
    parameters = as_float64(state.server.generator)
    mean, mean_square = (jax.tree.map(np.zeros_like, parameters) for _ in range(2))
    for number in range(2):
        key_round = jax.random.fold_in(key, number)
        state, _ = jitted(algorithm.round)(key_round, hyper, state, cohort)
        for t, k in enumerate(jax.random.split(jax.random.fold_in(key_round, 1), 2), start=1 + 2 * number):
            float32_parameters = jax.tree.map(np.float32, parameters)
            g = as_float64(gradient(float32_parameters, k, head=state.server.own["fc2"], prior=state.server.prior))
            mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, g)
            mean_square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, mean_square, g)
            parameters = jax.tree.map(
                lambda p, m, v, t=t: p - 0.05 * m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8),
                parameters,
                mean,
                mean_square,
            )
    chex.assert_trees_all_close(as_float64(state.server.generator), parameters, rtol=1e-3, atol=1e-4)


def test_a_batch_of_one_is_taught_features_that_differ(key, model):
    """Normalised over one alone every feature would be the same, whatever its class and noise."""
    generator, head = generator_of(key, 3, 5, 6, 4), model.init(key)["fc2"]
    gradient = jax.jit(jax.grad(partial(on_generated, key=key, model=model, head=head, prior=jnp.ones(4), n=1)))(
        generator
    )
    assert float(jnp.abs(gradient["first"]).max()) > 1e-6


@pytest.mark.slow
def test_fedgens_generator_learns_features_of_each_class(key, model, work, federation):
    """They begin as chance; after three rounds the averaged head tells their class."""
    algorithm = fedgen(model, work, noise_width=3, generator_width=16, server_steps=150)
    hyper, accuracies = fedgen.Hyper(lr=0.1, generator_lr=0.02), []
    for n_rounds in (1, 3):
        without_steps = fedgen.Hyper(lr=0.1, generator_lr=0.0)
        server = final(algorithm, hyper if n_rounds > 1 else without_steps, federation, key, n_rounds).server
        y = jnp.tile(jnp.arange(4), 25)
        features = jax.jit(generated)(server.generator, key, jax.nn.one_hot(y, 4, dtype=jnp.float32))
        accuracies.append(float((jax.jit(linear)(server.own["fc2"], features).argmax(1) == y).mean()))
    assert accuracies[0] < 0.6
    assert accuracies[1] > 0.95


def test_fedcps_discrepancy_in_numpy():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(6, 5)), rng.normal(size=(6, 5)) + 1

    def kernel(x, y):
        squared = np.square(x[:, None] - y[None]).sum(-1)
        return sum(np.exp(-squared / (2 * width)) for width in (10, 15, 20, 50)).mean()

    arguments = (np.concatenate([v, v[:1] + 9]).astype(np.float32) for v in (a, b))
    weight = np.array([1.0] * 6 + [0.0], np.float32)  # the last row only fills the batch
    expected = kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)
    np.testing.assert_allclose(
        jax.jit(discrepancy, static_argnums=3)(*arguments, weight, False), expected, rtol=1e-4, atol=1e-6
    )


def test_fedcps_loss_and_predictions_in_numpy(key, model, federation):
    rng, algorithm = np.random.default_rng(1), fedcp(model, Work(1, 8))
    start = third_at_first(algorithm, fedcp.Hyper())(key, federation.train)
    params, received = (
        jax.tree.map(lambda leaf: leaf + jnp.asarray(0.3 * rng.normal(size=leaf.shape), jnp.float32), start)
        for _ in range(2)
    )
    x, y = np.asarray(federation.train.pool.x)[:9], np.asarray(federation.train.pool.y)[:9]
    w, policy, h = as_float64(params), as_float64(params[POLICY]), numpy_features(as_float64(params), x)
    context = w["fc2"]["kernel"].sum(axis=1)
    scores = h * context / np.linalg.norm(context) @ policy["kernel"] + policy["bias"]
    scores = (scores - scores.mean(axis=1, keepdims=True)) / np.sqrt(scores.var(axis=1, keepdims=True) + 1e-5)
    scores = np.maximum(scores * policy["scale"] + policy["shift"], 0).reshape(9, 2, -1)

    def logits(scores):
        personal = softmax(scores, axis=1)[:, 0]
        from_own, from_global = personal * h @ w["fc2"]["kernel"], (1 - personal) * h @ w[GLOBAL]["kernel"]
        return from_own + w["fc2"]["bias"] + from_global + w[GLOBAL]["bias"]

    gumbel = np.asarray(jax.random.gumbel(jax.random.split(key)[1], scores.shape))
    cross_entropy = -log_softmax(logits(scores + gumbel), axis=1)[np.arange(9), y]
    features = [numpy_features(as_float64(w_of_one), x).astype(np.float32) for w_of_one in (params, received)]
    value_of_discrepancy = jax.jit(discrepancy, static_argnums=3)(*features, np.ones(9, np.float32), False)
    batch, state = Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(9)), (received, context_of(params["fc2"]))
    value, _ = jax.jit(gated(model, fedcp.Hyper(lam=3.0)))(params, batch, key, *state)
    np.testing.assert_allclose(value, cross_entropy.mean() + 3 * float(value_of_discrepancy), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(algorithm.predict)(params, x), logits(scores), rtol=1e-4, atol=1e-5)


def test_fedcps_heads_predict_alike_where_they_are_equal(key, model, federation):
    """However the gate parts the features, equal heads see their sum: the network itself, and one more bias."""
    algorithm, hyper = fedcp(model, Work(1, 8)), fedcp.Hyper()
    params, x = third_at_first(algorithm, hyper)(key, federation.train), np.asarray(federation.train.pool.x)[:9]

    @jax.jit
    def predictions(params, x):
        return algorithm.predict(params, x), see(model, params, x, None).logits + params["fc2"]["bias"][None]

    np.testing.assert_allclose(*predictions(params, x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_fedcps_received_head_stands_still_under_weight_decay(key, model, federation):
    """The server's head is the mean of (own + received) / 2, whatever the optimiser does to what clients train."""
    algorithm, hyper = fedcp(model, Work(1, 8), weighting="uniform"), fedcp.Hyper(lr=0.1, weight_decay=0.3)
    received_head = jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server[GLOBAL]
    state = simulate(algorithm, hyper, federation, key, 1)[0]
    expected = jax.tree.map(
        lambda heads, received: (heads.mean(axis=0) + received) / 2, state.clients["fc2"], received_head
    )
    chex.assert_trees_all_close(state.server[GLOBAL], expected, rtol=1e-5, atol=1e-6)


def test_knnpers_memory_votes_as_scikit_learns(key, model, work, federation):
    method, data = fljax.knnper, federation.train
    state = final(method(model, work), method.Hyper(lr=0.1), federation, key)
    algorithm, theta = method(model, work, n_neighbours=3), as_float64(state.server)
    rows = np.asarray(data.index[3, : int(data.size[3])])
    memory_x, x = np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.x, np.float64)[:20]
    classifier = KNeighborsClassifier(3, weights=lambda distance: np.exp(-distance / 0.5))
    classifier.fit(numpy_features(theta, memory_x), np.asarray(data.pool.y)[rows])
    z = oracle.forward(theta, x)[0]
    probabilities = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    expected = 0.4 * probabilities
    expected[:, classifier.classes_] += 0.6 * classifier.predict_proba(numpy_features(theta, x))

    @jax.jit
    def log_probabilities(state, x, data):
        deployed = algorithm.deploy(key, method.Hyper(lam=0.6, scale=0.5), state, data)
        return algorithm.predict(tree.take(tree.stacked(deployed), 3), x)

    actual = np.exp(log_probabilities(state, x.astype(np.float32), data))
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)
    without_memory = data._replace(size=data.size.at[3].set(0))  # who remembers nothing believes the model
    np.testing.assert_allclose(
        np.exp(log_probabilities(state, x.astype(np.float32), without_memory)), probabilities, rtol=1e-3, atol=1e-5
    )


class Inner(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(6)(x))


class Outer(nn.Module):
    """Whose last layer has the name of one inside another: flax counts them by module."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(Inner()(x))


def test_the_last_layer_is_not_one_of_its_name_inside_another():
    model, x = fljax.from_linen(Outer(), (6,)), jnp.ones((2, 6))
    params = jax.jit(model.init)(jax.random.key(0))
    outputs = jax.jit(lambda params, x: see(model, params, x, None, lambda h: h + 1))(params, x)
    features = jax.nn.relu(linear(params["Inner_0"]["Dense_0"], x))
    chex.assert_trees_all_close(outputs.features, features, rtol=1e-6)
    chex.assert_trees_all_close(outputs.logits, linear(params["Dense_0"], features + 1), rtol=1e-5)


class OfNnx(nnx.Module):
    """A layer that no linen module makes."""

    def __init__(self, rngs):
        self.last = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.last(x.reshape(len(x), -1))


def test_a_network_whose_features_cannot_be_seen_is_refused_with_what_to_do(federation, key):
    model = fljax.from_nnx(lambda rngs: OfNnx(rngs), (4, 4, 1))
    with pytest.raises(
        ValueError, match=r"^OfNnx: no flax module 'last' of linen, and .*; make the network by fljax.f"
    ):
        fljax.simulate(moon(model, Work(1, 8)), fljax.moon.Hyper(), federation, key, 1)


OF_FEATURES = (
    "fedas",
    "fedcp",
    "feddbe",
    "feddistill",
    "fedgc",
    "fedgen",
    "fedgh",
    "fedkd",
    "fedlc",
    "fedpac",
    "fedproto",
    "fedrod",
    "fedrs",
    "fedtgp",
    "gpfl",
    "knnper",
)


@pytest.mark.parametrize("name", [*OF_FEATURES, "fedrc", "fedma", "fesem_ma"])
def test_a_network_without_a_dense_last_layer_is_refused_in_a_line(name, federation, key):
    network = fljax.from_functions(
        lambda key: {"first": jax.random.normal(key, (16, 6)), "last": jnp.zeros((6, 4))},
        lambda params, x: jax.nn.relu(x.reshape(len(x), -1) @ params["first"]) @ params["last"],
    )
    method = fljax.ALGORITHMS[name]
    choices = {"n_clusters": 2} if name in ("fedrc", "fesem_ma") else {}

    def run(key):
        return fljax.simulate(method(network, Work(1, 8), **choices), method.Hyper(), federation, key, 1)

    with pytest.raises(ValueError, match="dense"):
        jax.eval_shape(run, key)


@pytest.mark.parametrize("name", [*OF_FEATURES, "fedphp", "moon", "fedrc"])
def test_a_last_layer_that_is_not_trained_is_none(name, federation, key):
    network = mlp((4, 4, 1), (6, 5), 4)
    method, body_only = fljax.ALGORITHMS[name], only_trained(network, jax.jit(network.init)(key), ("fc1", "fc2"))
    with pytest.raises(ValueError, match="trained, 'fc2', has 5 outputs, but the network has 4; train its last"):
        jax.eval_shape(
            lambda key: fljax.simulate(method(body_only, Work(1, 8)), method.Hyper(), federation, key, 1), key
        )


@pytest.mark.parametrize("name", [*OF_FEATURES, "fedma"])
def test_adapters_are_no_dense_layer(name, federation, key):
    network = mlp((4, 4, 1), (6,), 4)
    method, with_adapters = fljax.ALGORITHMS[name], lora(network, jax.jit(network.init)(key), 2)
    with pytest.raises(ValueError, match="dense"):
        jax.eval_shape(
            lambda key: fljax.simulate(method(with_adapters, Work(1, 8)), method.Hyper(), federation, key, 1), key
        )


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("fedrod", "personal"),
        ("fedcp", "policy"),
        ("gpfl", "embedding"),
        ("gpfl", "trained"),
        ("feddbe", "consensus"),
        ("knnper", "memory"),
        ("fedproto", "prototypes"),
        ("fedtgp", "prototypes"),
        ("fedgc", "classes"),
        ("pflda", "shared_head"),
        ("fedsr", "references"),
        ("fedsr_ft", "references"),
    ],
)
def test_a_layer_called_as_a_part_of_the_method_is_refused(name, part):
    choices = {"condition": part} if part == "trained" else {}

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4, name="last")(nn.Dense(6, name=part)(x))

    with pytest.raises(ValueError, match=f"{name} adds a part called '{part}' to the network"):
        fljax.ALGORITHMS[name](fljax.from_linen(Net(), (4,)), Work(1, 8), **choices)


@pytest.mark.parametrize("name", slow("fedcp", "fedgen", "fedma", "fedrod"))
def test_a_last_layer_without_bias_is_as_good(name, federation, key):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4, use_bias=False)(nn.relu(nn.Dense(6)(x.reshape(len(x), -1))))

    method = fljax.ALGORITHMS[name]
    _, metrics = fljax.simulate(
        method(fljax.from_linen(Net(), (4, 4, 1)), Work(1, 8)), method.Hyper(lr=0.1), federation, key, 1
    )
    assert np.asarray(metrics["ok"]).all()
    assert np.isfinite(metrics["accuracy_macro"]).all()


def test_a_last_layer_without_kernel_has_none_to_cluster_on(federation, key):
    def init(key):
        return {"first": {"kernel": jax.random.normal(key, (16, 4))}, "last": jnp.float32(1)}

    network = fljax.from_functions(
        init, lambda w, x: x.reshape(len(x), -1) @ w["first"]["kernel"] * w["last"][None, None]
    )
    algorithm = fljax.fesem(network, Work(1, 8), 2, cluster_on="last_kernel")
    with pytest.raises(ValueError, match="cluster_on='last_kernel': the last layer 'last' has none; choose 'model'"):
        jax.eval_shape(lambda key: fljax.simulate(algorithm, fljax.fesem.Hyper(), federation, key, 1), key)
