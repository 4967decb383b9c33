"""Methods whose clients take from others by what these have learnt, and FedNTD: in NumPy, and in the limit."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

import fljax
from fljax import tree
from fljax.algorithms.fedas import ALIGN, FISHER, as_tested, fedas, near_prototypes
from fljax.algorithms.fedcac import fedcac, mixing_weights, most_sensitive, overlap
from fljax.algorithms.fedntd import fedntd, not_true_distilled
from fljax.algorithms.fedpac import estimates, fedpac
from fljax.algorithms.fedrep import HEAD_PHASE
from fljax.client.minibatches import shuffled
from fljax.rounds.joining import everyone
from fljax.run.one_round import as_traced, split_key
from fljax.types import Batch, Work
from tests import oracle
from tests.algorithms.round_by_round import jitted
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
from tests.oracle import as_float64
from tests.slow import slow

N_CLASSES = 4


def own_examples(reference, i):  # noqa: F811
    rows = reference.index[i, : reference.size[i]]
    return reference.x[rows], reference.y[rows]


def mean_features(w, x, y):
    """(classes, d), 0 of a class that is not there, and (classes,) counts."""
    h, count = numpy_features(w, x), np.bincount(y, minlength=N_CLASSES)
    total = np.zeros((N_CLASSES, h.shape[1]))
    np.add.at(total, y, h)
    return total / np.maximum(count, 1)[:, None], count


def through_body(w, x, feature_slope):
    """The gradient of the first layer, from the gradient of the loss in the features, ``feature_slope`` (batch, d)."""
    delta = feature_slope * (numpy_features(w, x) > 0)
    return {"kernel": x.reshape(len(x), -1).T @ delta, "bias": delta.sum(0)}


def with_layer_stepped(w, layer, g):
    return w | {layer: {name: w[layer][name] - LR * g[name] for name in g}}


@pytest.mark.slow
def test_fedntd_that_distils_nothing_is_fedavg(key, model, work, federation):
    state = final(fedntd(model, work), fedntd.Hyper(lr=0.1, beta=0.0), federation, key)
    chex.assert_trees_all_close(state.server, fedavg_server(model, work, federation, key), rtol=1e-5, atol=1e-6)


def test_fedntds_loss_in_numpy(key, model, federation):
    params, theta = model.init(key), model.init(jax.random.fold_in(key, 1))
    params = jax.tree.map(lambda leaf: 300 * leaf, params)  # so that some softmax is 0 in float32
    x, y = np.asarray(federation.train.pool.x)[:16], np.asarray(federation.train.pool.y)[:16]
    weight = np.arange(16) % 3
    beta, tau = 0.7, 2.0
    student, teacher = (oracle.forward(as_float64(w), x.astype(float))[0] / tau for w in (params, theta))
    values = oracle.losses(as_float64(params), x.astype(float), y)
    for row in range(16):
        is_other = np.arange(N_CLASSES) != y[row]
        q, p = log_softmax(student[row][is_other]), softmax(teacher[row][is_other])
        values[row] += beta * tau**2 * (p * (np.log(p) - q)).sum()
    loss = not_true_distilled(model, fedntd.Hyper(beta=beta, temperature=tau))
    batch = Batch(x, y, weight.astype(np.float32))
    value, gradient = jax.jit(jax.value_and_grad(lambda w: loss(w, batch, key, theta)[0]))(params)
    np.testing.assert_allclose(value, (values * weight).sum() / weight.sum(), rtol=1e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_clients_of_fedntd_are_taught_by_the_model_that_they_received(key, model, federation):
    """Three steps on all of a client's examples along its loss, which is NumPy's above."""
    algorithm, data = fedntd(model, Work(3, None)), federation.train
    hyper = fedntd.Hyper(lr=0.5, beta=4.0, temperature=2.0)
    loss, theta = not_true_distilled(model, hyper), model.init(split_key(key).init)

    @jax.jit
    @partial(jax.vmap, in_axes=(0, 0, None))
    def train(index, size, theta):
        weight = (jnp.arange(len(index)) < size).astype(jnp.float32)
        gradient = jax.grad(lambda w: loss(w, Batch(data.pool.x[index], data.pool.y[index], weight), key, theta)[0])
        step = lambda _, w: jax.tree.map(lambda w, g: w - 0.5 * g, w, gradient(w))  # noqa: E731
        return jax.lax.fori_loop(0, 3, step, theta)

    models, size = train(data.index, data.size, theta), np.asarray(data.size)
    expected = jax.tree.map(lambda leaf: np.average(leaf, 0, size).astype(np.float32), models)
    theta_after = fljax.simulate(algorithm, hyper, federation, key, 1)[0].server
    chex.assert_trees_all_close(theta_after, expected, rtol=1e-5, atol=1e-6)


def test_fedntd_needs_classes(key, federation):
    targets = federation.train._replace(pool=federation.train.pool._replace(y=federation.train.pool.x[:, 0, 0]))
    regression = fljax.MODELS["mlp"](input_shape=(4, 4, 1), hidden=(6,), n_classes=1)
    with pytest.raises(ValueError, match="not classes"):
        final(fedntd(regression, WORK), fedntd.Hyper(), federation._replace(train=targets), key, 1)


@pytest.mark.slow
def test_fedcacs_marks_and_weights_by_hand():
    old, new = jnp.zeros((2, 5)), jnp.array([[1.0, -3.0, 0.0, 2.0, 4.0], [0.0, 0.0, 1.0, 0.0, 0.0]])
    # |w * change| = w^2 here; 0.5 * 5 is 2 of each client, but one that nothing changes is never critical.
    np.testing.assert_array_equal(most_sensitive(new, old, 0.5), [[0, 1, 0, 0, 1], [0, 0, 1, 0, 0]])
    assert not most_sensitive(new, old, 0.1).any()
    marks = {"a": jnp.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]], bool)}
    overlaps = np.array([[1, 0.5, 0], [0.5, 1, 0.5], [0, 0.5, 1]])
    np.testing.assert_allclose(overlap(marks), overlaps)
    is_active = jnp.ones(3, bool)
    # The mean of two clients is 1/3, the most 1/2.
    np.testing.assert_allclose(mixing_weights(overlaps, is_active, 0.0) > 0, overlaps > 1 / 3)
    np.testing.assert_allclose(mixing_weights(overlaps, is_active, 1.0)[0], [0.5, 0.5, 0])
    np.testing.assert_allclose(mixing_weights(overlaps, is_active, 1.5), np.eye(3))
    np.testing.assert_allclose(
        mixing_weights(overlaps, jnp.array([True, False, True]), 0.0), [[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]]
    )


@pytest.mark.parametrize("beta", [1.5, 50.0])
def test_fedcac_in_numpy(key, model, federation, reference, beta):  # noqa: F811
    tau, start, critical_parts = 0.4, reference.everyone(), {}  # a client's marks and its part, once it has taken part
    for number, cohort in enumerate(reference.rounds()):
        w = [oracle.local_sgd(start[i], reference.batches(i, k), LR) for i, k, _ in cohort]
        marks = []
        for (i, *_), new in zip(cohort, w, strict=True):
            sensitivity = oracle.combine(lambda new, old: np.abs(new * (new - old)), new, start[i])
            count = oracle.combine(lambda s: int(tau * s.size), sensitivity)
            at_least = oracle.combine(lambda s, k: np.sort(s.ravel())[-k] if k else np.inf, sensitivity, count)
            marks.append(oracle.combine(lambda s, t: s >= t, sensitivity, at_least))
        flat = np.stack([np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(m)]) for m in marks]).astype(int)
        o = np.array([[1 - np.abs(a - b).sum() / (2 * a.sum()) for b in flat] for a in flat])
        pairs = ~np.eye(len(flat), dtype=bool)
        threshold = o[pairs].mean() + (number + 1) / beta * (o[pairs].max() - o[pairs].mean())
        mean_model = oracle.average(w, [size for *_, size in cohort])
        for row, (i, *_) in enumerate(cohort):
            collaborators = [j for j in range(len(w)) if j == row or o[row, j] >= threshold]
            critical_parts[i] = marks[row], oracle.average([w[j] for j in collaborators], [1.0] * len(collaborators))
        # Who was absent gets the mean too.
        start = [
            oracle.combine(np.where, *critical_parts[i], mean_model) if i in critical_parts else mean_model
            for i in range(len(start))
        ]
    deployed, _ = run(fedcac(model, WORK), fedcac.Hyper(lr=LR, tau=tau, beta=beta), federation, key)
    assert_models(deployed, start)


@pytest.mark.slow
def test_fedcac_without_critical_parameters_is_fedavg_whoever_takes_part(key, model, work, federation):
    options = dict(participation=0.5, dropout=0.3, n_rounds=4)
    states = {
        method: fljax.simulate(method(model, work), method.Hyper(lr=0.1, **numbers), federation, key, **options)[0]
        for method, numbers in ((fljax.fedavg, {}), (fedcac, {"tau": 0.0}))
    }
    theta, deployed = (
        states[fljax.fedavg].server,
        fljax.deployed(fedcac(model, work), fedcac.Hyper(lr=0.1, tau=0.0), states[fedcac], federation, key),
    )
    for leaf, mean in zip(*map(jax.tree.leaves, (deployed.params, theta)), strict=True):
        np.testing.assert_allclose(leaf, np.broadcast_to(mean, leaf.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fedcac_keeps_the_state_of_a_failed_client_and_the_mean_of_an_empty_round(key, model, work, federation):
    method, hyper = fedcac(model, work), as_traced(fedcac.Hyper(lr=0.1, tau=0.4))
    round, data = jitted(method.round), federation.train
    cohort = everyone(key, jnp.int32(0), data)
    state, _ = round(key, hyper, jitted(method.init)(key, hyper, data), cohort)
    rows_of_first = np.asarray(data.index[0, : data.size[0]])
    broken_data = data._replace(pool=data.pool._replace(x=data.pool.x.at[rows_of_first].set(jnp.nan)))
    next_state, metrics = round(key, hyper, state, cohort._replace(data=broken_data))
    assert metrics["ok"].tolist() == [False, *[True] * (len(metrics["ok"]) - 1)]
    chex.assert_trees_all_equal(
        *(jax.tree.map(lambda leaf: leaf[0], some_state.clients) for some_state in (next_state, state))
    )
    assert any(leaf[0].any() for leaf in jax.tree.leaves(state.clients.critical))
    state_of_nobody, _ = round(key, hyper, state, cohort._replace(active=jnp.zeros(len(metrics["ok"]), bool)))
    chex.assert_trees_all_equal(state_of_nobody.server, state.server)


@pytest.mark.parametrize("align_epochs", [*slow(0), 2])
def test_fedas_in_numpy(key, model, federation, reference, align_epochs):  # noqa: F811
    rate, body, models = 0.3, reference.start["fc1"], reference.everyone()
    for cohort in reference.rounds():
        trace = []
        for i, k, _ in cohort:
            x, y = own_examples(reference, i)
            prototypes = mean_features(models[i], x, y)[0]
            w = models[i] | {"fc1": body}
            for xb, yb in reference.batches(i, jax.random.fold_in(k, ALIGN), align_epochs) if align_epochs else ():
                distance = numpy_features(w, xb) - prototypes[yb]
                feature_slope = 2 * distance / distance.shape[1] / np.bincount(yb)[yb][:, None]
                g = through_body(w, xb, feature_slope)
                w = w | {"fc1": {name: w["fc1"][name] - rate * g[name] for name in g}}
            models[i] = oracle.local_sgd(w, reference.batches(i, k), LR)
            order = shuffled(jax.random.split(jax.random.fold_in(k, FISHER))[0], reference.index[i], reference.size[i])
            order = np.asarray(order)[: reference.size[i]]
            batches = [order[b : b + WORK.batch_size] for b in range(0, len(order), WORK.batch_size)]
            slopes = [oracle.gradient(models[i], reference.x[rows], reference.y[rows]) for rows in batches]
            trace.append(sum(np.square(leaf).sum() for g in slopes for leaf in jax.tree.leaves(g)))
        body = oracle.average([models[i] for i, *_ in cohort], trace)["fc1"]
    deployed, state = run(
        fedas(model, WORK, align_epochs=align_epochs), fedas.Hyper(lr=LR, align_lr=rate), federation, key
    )
    assert_models(deployed, models)
    chex.assert_trees_all_close(state.server["fc1"], body, rtol=1e-5, atol=1e-5)


def test_the_trace_of_fedas_is_of_the_network_in_evaluation(key):
    keys = []
    as_tested(lambda params, batch, key, *state: keys.append(key))({}, (), key)
    assert keys == [None]


@pytest.mark.parametrize(("method", "name"), [(fedas, "FedAS"), (fedpac, "FedPAC")])
def test_a_head_without_a_body_is_refused(method, name):
    with pytest.raises(ValueError, match=rf"model: its layers are \('fc1',\); {name} shares all but the last"):
        method(fljax.MODELS["logistic_regression"]((2, 2, 1), 3), WORK)


def test_the_alignment_of_fedas_ignores_the_filling_of_a_batch(key, model, federation):
    params, prototypes = model.init(key), jax.random.normal(key, (N_CLASSES, 6))
    x, y = federation.train.pool.x[:12], federation.train.pool.y[:12]
    loss = jax.jit(near_prototypes(model))
    of_short_batch = loss(params, Batch(x[:9], y[:9], jnp.ones(9)), key, prototypes)[0]
    of_filled_batch = loss(params, Batch(x, y, jnp.ones(12).at[9:].set(0)), key, prototypes)[0]
    h, y = numpy_features(as_float64(params), np.asarray(x[:9], float)), np.asarray(y[:9])
    class_losses = [np.square(h[y == c] - np.asarray(prototypes)[c]).mean() for c in np.unique(y)]
    np.testing.assert_allclose([of_short_batch, of_filled_batch], sum(class_losses), rtol=1e-5)


def by_slsqp(row, h, v):
    n_clients, gradient = len(h), lambda a: 2 * (h @ (a @ h - h[row]) + a * v)
    sums_to_one = {"type": "eq", "fun": lambda a: a.sum() - 1, "jac": lambda a: np.ones(n_clients)}
    objective = lambda a: np.square(h[row] - a @ h).sum() + (a * a * v).sum()  # noqa: E731
    options = {"ftol": 1e-14, "maxiter": 1000}
    uniform = np.full(n_clients, 1 / n_clients)
    return minimize(
        objective,
        uniform,
        jac=gradient,
        bounds=[(0, 1)] * n_clients,
        constraints=sums_to_one,
        method="SLSQP",
        options=options,
    ).x


def test_fedpac_in_numpy(key, model, federation):
    """Of a class that nobody has there is no prototype."""
    federation = without_a_class(federation)
    reference = Reference(key, model, federation)  # noqa: F811
    lam, body, models = 0.8, reference.start["fc1"], reference.everyone()
    prototypes, is_known, uplink, downlink = np.zeros((N_CLASSES, 6)), np.zeros(N_CLASSES, bool), [], []
    for cohort in reference.rounds():
        uplink.append({})
        sent, class_means, variance, total, count = [], [], [], np.zeros((N_CLASSES, 6)), np.zeros(N_CLASSES)
        for i, k, size in cohort:
            (x, y), w = own_examples(reference, i), models[i] | {"fc1": body}
            mean, n = mean_features(w, x, y)
            class_means.append(((n / size)[:, None] * mean).ravel())
            variance.append((np.square(numpy_features(w, x)).sum(1).mean() - np.square(class_means[-1]).sum()) / size)
            for xb, yb in reference.batches(i, jax.random.fold_in(k, HEAD_PHASE), 3):
                w = with_layer_stepped(w, "fc2", oracle.gradient(w, xb, yb)["fc2"])
            for xb, yb in reference.batches(i, k):
                distance = (numpy_features(w, xb) - prototypes[yb]) * is_known[yb][:, None]
                g, prototype_gradient = (
                    oracle.gradient(w, xb, yb)["fc1"],
                    through_body(w, xb, 2 * lam * distance / 6 / len(yb)),
                )
                w = with_layer_stepped(w, "fc1", {name: g[name] + prototype_gradient[name] for name in g})
            mean, n = mean_features(w, x, y)
            total, count = total + n[:, None] * mean, count + n
            uplink[-1][i] = 130 + (n > 0).sum() * 13 + 1
            sent.append(w)
        body = oracle.average(sent, [size for *_, size in cohort])["fc1"]
        prototypes = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], prototypes)
        is_known = is_known | (count > 0)
        downlink.append({i: 130 + 6 * is_known.sum() for i, *_ in cohort})
        for row, (i, *_) in enumerate(cohort):
            alpha = by_slsqp(row, np.stack(class_means), np.array(variance))
            heads = [{"fc2": w["fc2"]} for w in sent]
            models[i] = models[i] | oracle.combine(lambda *leaves, a=alpha: sum(map(np.multiply, a, leaves)), *heads)
    algorithm, hyper = fedpac(model, WORK, head_epochs=3), fedpac.Hyper(lr=LR, lam=lam)
    deployed, state = run(algorithm, hyper, federation, key)
    metrics = rounds_of(algorithm, hyper, federation, key)[1]
    assert_sent(metrics, "uplink", uplink)
    assert_sent(metrics, "downlink", downlink)
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *[w | {"fc1": body} for w in models])
    chex.assert_trees_all_close(tree.split_statistics(deployed)[0], expected, rtol=2e-3, atol=2e-3)
    np.testing.assert_allclose(state.server["prototypes"]["mean"], prototypes, rtol=2e-3, atol=2e-3)


def test_fedpac_estimates_are_sums_over_classes(key, model, federation, reference):  # noqa: F811
    """V_i as the authors' code adds it up: ``sum_c (p_c mean_c |h|^2 - p_c^2 |mu_c|^2) / n``."""
    class_means, variance = jax.jit(lambda w: estimates(model, tree.everyone(w, 8), federation.train, N_CLASSES))(
        jax.tree.map(jnp.float32, reference.start)
    )
    for i in range(8):
        x, y = own_examples(reference, i)
        h, v = numpy_features(reference.start, x), 0.0
        for c in np.unique(y):
            p, class_features = (y == c).mean(), h[y == c]
            np.testing.assert_allclose(
                class_means[i].reshape(N_CLASSES, -1)[c], p * class_features.mean(0), rtol=1e-5, atol=1e-6
            )
            v += (
                p * np.trace(class_features.T @ class_features / len(class_features))
                - p**2 * np.square(class_features.mean(0)).sum()
            )
        np.testing.assert_allclose(variance[i], v / len(y), rtol=1e-4)
