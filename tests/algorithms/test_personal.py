"""Methods that train models of the clients' own beside a global one: in NumPy, step by step, and in the limit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import softmax
from sklearn.cluster import KMeans

import fljax
from fljax import tree
from fljax.algorithms.apfl import apfl, mixed
from fljax.algorithms.apple import apple
from fljax.algorithms.cgpfl import cgpfl
from fljax.algorithms.fedala import fedala, mixture_fit
from fljax.algorithms.fml import fml, mutual
from fljax.algorithms.pfedme import pfedme
from fljax.algorithms.superfed import SHARE, superfed
from fljax.client.minibatches import shuffled
from fljax.data.synthetic import linear_groups
from fljax.run.one_round import as_traced, split_key
from fljax.types import Batch, Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, one_round, simulate
from tests.algorithms.test_oracles import LR, WORK, assert_models, reference, run  # noqa: F401
from tests.oracle import as_float64
from tests.slow import slow


def final(algorithm, hyper, federation, key, n_rounds=2):
    return simulate(algorithm, hyper, federation, key, n_rounds, participation=0.5, evaluate_every=n_rounds)[0]


def fedavg_server(model, work, federation, key):
    return final(fljax.fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), federation, key).server


def standalone_models(model, work, federation, key):
    return final(fljax.standalone(model, work), fljax.standalone.Hyper(lr=0.1), federation, key).clients


def numpy_features(params, x):
    """What the second layer of the two-layer MLP is given."""
    return np.maximum(x.reshape(len(x), -1) @ params["fc1"]["kernel"] + params["fc1"]["bias"], 0)


def test_pfedme_in_numpy(key, model, federation, reference):  # noqa: F811
    w, personal_models, lam, rate, beta = reference.start, reference.everyone(), 2.0, 0.1, 0.6
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            copy = theta = w
            for x, y in reference.batches(i, k):
                for _ in range(2):
                    g = oracle.gradient(theta, x, y)
                    theta = oracle.combine(lambda t, g, c: t - rate * (g + lam * (t - c)), theta, g, copy)
                copy = oracle.combine(lambda c, t: c - LR * lam * (c - t), copy, theta)
            personal_models[i] = theta
            sent.append(copy)
        target = oracle.average(sent, [size for *_, size in cohort])
        w = oracle.combine(lambda w, mean_leaf: w + beta * (mean_leaf - w), w, target)
    algorithm = pfedme(model, WORK, personal_steps=2)
    deployed, state = run(algorithm, pfedme.Hyper(lr=LR, lam=lam, personal_lr=rate, step=beta), federation, key)
    assert_models(deployed, personal_models)
    chex.assert_trees_all_close(state.server, w, rtol=1e-5, atol=1e-5)


def test_cgpfl_in_numpy(key, model, federation, reference):  # noqa: F811
    """Contexts by scikit-learn's k-means on the personal models that the server has seen; the largest for others."""
    contexts, label, lam, rate, beta = [reference.start] * 3, np.zeros(8, int), 2.0, 0.1, 0.6
    personal_models, known, n_found = reference.everyone(), set(), []
    for cohort in reference.rounds():
        sent = {}
        for i, k, size in cohort:
            copy = theta = contexts[label[i]]
            for x, y in reference.batches(i, k):
                for _ in range(2):
                    g = oracle.gradient(theta, x, y)
                    theta = oracle.combine(lambda t, g, c: t - rate * (g + lam * (t - c)), theta, g, copy)
                copy = oracle.combine(lambda c, t: c - LR * lam * (c - t), copy, theta)
            personal_models[i], sent[i] = theta, (copy, size)
        known |= sent.keys()
        seen = sorted(known)
        points = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(personal_models[i])]) for i in seen]
        found = KMeans(3, n_init=50, random_state=0).fit_predict(np.stack(points))
        order = list(dict.fromkeys(found.tolist()))  # the cluster of the first client is the first one
        new_label = np.full(8, np.bincount([order.index(k) for k in found]).argmax())
        new_label[seen] = [order.index(k) for k in found]
        contexts = [contexts[label[np.flatnonzero(new_label == k)[0]]] for k in range(3)]
        label = new_label
        for k in range(3):
            if members := [sent[i] for i in sent if label[i] == k]:
                goal = oracle.average(*map(list, zip(*members, strict=True)))
                contexts[k] = oracle.combine(lambda w, to: w + beta * (to - w), contexts[k], goal)
        n_found.append(len(known))
    assert n_found[0] < 8  # the premise: at first some are unknown
    algorithm = cgpfl(model, WORK, 3, personal_steps=2)
    deployed, state = run(algorithm, cgpfl.Hyper(lr=LR, lam=lam, personal_lr=rate, step=beta), federation, key)
    assert_models(deployed, personal_models)
    assert_models(state.server.kept.models, personal_models)
    np.testing.assert_array_equal(canonical(state.server.label), canonical(label))
    of_clients = jax.tree.map(lambda leaf: np.asarray(leaf)[state.server.label], state.server.centers["global"])
    assert_models(of_clients, [contexts[k] for k in label])


@pytest.mark.slow
def test_a_client_that_fails_keeps_its_personal_model_and_the_server_compares_the_others(key, model, federation):
    """Whatever the server has of it from before, here NaN."""
    data = federation.train
    x = np.array(data.pool.x)
    x[np.asarray(data.index)[3, : int(data.size[3])]] = np.nan
    broken = federation._replace(train=data._replace(pool=data.pool._replace(x=x)))
    algorithm, hyper = cgpfl(model, WORK, 3, personal_steps=2), cgpfl.Hyper(lr=LR, lam=2.0, personal_lr=0.1)
    begun = jax.device_get(jitted(algorithm.init)(key, hyper, data))
    own = jax.tree.map(
        lambda leaf: leaf + np.arange(8, dtype=np.float32).reshape(8, *[1] * leaf[0].ndim), begun.clients
    )
    begun = begun._replace(clients=own)
    state = one_round(algorithm, hyper, broken, key, begun, 0)[0]
    assert algorithm.deploy(key, hyper, state, data).params is state.clients
    np.testing.assert_array_equal(state.server.kept.is_known, np.arange(8) != 3)
    with_nan = begun.server.kept._replace(
        models=jax.tree.map(
            lambda leaf: np.where(np.arange(8).reshape(8, *[1] * leaf[0].ndim) == 3, np.nan, leaf), own
        ),
        is_known=np.ones(8, bool),
    )
    after_nan = one_round(
        algorithm, hyper, broken, key, begun._replace(server=begun.server._replace(kept=with_nan)), 0
    )[0]
    for some in (state, after_nan):
        for actual, expected in zip(jax.tree.leaves(some.clients), jax.tree.leaves(own), strict=True):
            np.testing.assert_array_equal(actual[3], expected[3])
            assert not np.allclose(actual[4], expected[4], atol=0.1)
        assert len(set(np.asarray(some.server.label).tolist())) == 3
    np.testing.assert_array_equal(state.server.label, after_nan.server.label)


def canonical(label):
    """Numbered in the order of their first clients."""
    order = list(dict.fromkeys(np.asarray(label).tolist()))
    return [order.index(k) for k in np.asarray(label).tolist()]


@pytest.mark.slow
def test_cgpfl_of_one_context_is_pfedme(key, model, federation):
    numbers = {"lr": LR, "lam": 2.0, "personal_lr": 0.1, "step": 0.6}
    actual = final(cgpfl(model, WORK, 1, personal_steps=2), cgpfl.Hyper(**numbers), federation, key)
    expected = final(pfedme(model, WORK, personal_steps=2), pfedme.Hyper(**numbers), federation, key)
    chex.assert_trees_all_close(
        (tree.first(actual.server.centers["global"]), actual.clients),
        (expected.server, expected.clients),
        rtol=1e-6,
        atol=1e-6,
    )


@pytest.mark.parametrize("alpha_lr", [None, *slow(0.5)])
def test_apfl_in_numpy(key, model, federation, reference, alpha_lr):  # noqa: F811
    w, personal_models, alpha, decay = reference.start, reference.everyone(), [0.9] * 8, 0.8

    def mixture(a, v, w):
        return oracle.combine(lambda v, w: a * v + (1 - a) * w, v, w)

    for r, cohort in enumerate(reference.rounds()):
        sent, lr = [], LR * decay**r
        rate = alpha_lr or lr
        for i, k, _ in cohort:
            copy = w
            for x, y in reference.batches(i, k):
                g = oracle.gradient(mixture(alpha[i], personal_models[i], copy), x, y)
                alpha_gradient = sum(
                    jax.tree.leaves(oracle.combine(lambda v, c, g: ((v - c) * g).sum(), personal_models[i], copy, g))
                )
                stepped_model = oracle.combine(lambda v, g, step=lr * alpha[i]: v - step * g, personal_models[i], g)
                copy = oracle.combine(lambda c, g, lr=lr: c - lr * g, copy, oracle.gradient(copy, x, y))
                personal_models[i], alpha[i] = stepped_model, float(np.clip(alpha[i] - rate * alpha_gradient, 0, 1))
            sent.append(copy)
        w = oracle.average(sent, [size for *_, size in cohort])
    hyper = apfl.Hyper(lr=LR, lr_decay=decay, alpha=0.9, alpha_lr=alpha_lr)
    deployed, state = run(apfl(model, WORK), hyper, federation, key)
    np.testing.assert_allclose(state.clients["alpha"], alpha, rtol=1e-4)
    assert np.ptp(alpha) > 0.1 if alpha_lr is None else (min(alpha), max(alpha)) == (0, 1)
    assert_models(deployed, [mixture(a, v, w) for a, v in zip(alpha, personal_models, strict=True)])


def test_apfls_loss_is_of_the_mixture_and_each_part_has_its_own_gradient():
    """Of a parabola: the copy descends at itself, the own model and its weight at the mixture."""
    w, v, alpha, goal = np.float32([1, 2]), np.float32([-1, 5]), np.float32(0.25), np.float32([0.5, -3])

    def parabola(params, batch, key):
        return 0.5 * jnp.square(params["fc"] - batch).sum(), params

    held = {"w": {"fc": w}, "own": {"fc": v}, "alpha": alpha}
    value, gradient = jax.jit(jax.value_and_grad(lambda held: mixed(parabola)(held, {}, goal, None)[0]))(held)
    at_mixture = 0.25 * v + 0.75 * w - goal
    np.testing.assert_allclose(value, 0.5 * at_mixture @ at_mixture, rtol=1e-6)
    expected = {"w": {"fc": w - goal}, "own": {"fc": 0.25 * at_mixture}, "alpha": (v - w) @ at_mixture}
    chex.assert_trees_all_close(gradient, expected, rtol=1e-6)


def shares_of_step(key, epoch, step, w, by_layer):
    """SuPerFed's share of the local model in each parameter, from the draw of a client's step."""
    step_key = jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, epoch), 1), step)
    draws = np.asarray(jax.random.uniform(jax.random.fold_in(step_key, SHARE), (len(w),)), np.float64)
    return {layer: dict.fromkeys(w[layer], draws[i if by_layer else 0]) for i, layer in enumerate(sorted(w))}


def slopes_of_mixture(w, v, theta, share, x, y, mu, nu):
    """Gradients of SuPerFed's objective by the copy w and by the local model v, that of the cosine written out."""
    inner = lambda p, q: sum(jax.tree.leaves(oracle.combine(lambda p, q: (p * q).sum(), p, q)))  # noqa: E731
    dot, squares = inner(w, v), (inner(w, w), inner(v, v))
    turn = lambda p, q, square: 2 * nu * dot / np.prod(squares) * (q - dot / square * p)  # noqa: E731
    g = oracle.gradient(oracle.combine(lambda s, v, w: s * v + (1 - s) * w, share, v, w), x, y)
    return (
        oracle.combine(
            lambda g, s, w, v, t: (1 - s) * g + mu * (w - t) + turn(w, v, squares[0]), g, share, w, v, theta
        ),
        oracle.combine(lambda g, s, w, v: s * g + turn(v, w, squares[1]), g, share, w, v),
    )


@pytest.mark.parametrize("by_layer", [*slow(False), True])
def test_superfed_in_numpy(key, model, federation, reference, by_layer):  # noqa: F811
    """A round of FedProx, then two of mixtures."""
    mu, lam, theta = 0.3, 0.6, reference.start
    own = [oracle.as_float64(model.init(own_key)) for own_key in jax.random.split(reference.keys.init, 8)]
    is_trained = np.zeros(8)
    for r, cohort in enumerate(reference.rounds()):
        sent, nu = [], 0.7 * (r > 0)
        for i, k, _ in cohort:
            w, v, batches = theta, own[i], reference.batches(i, k)
            for position, (x, y) in enumerate(batches):
                share = shares_of_step(k, *divmod(position, len(batches) // WORK.epochs), w, by_layer)
                share = jax.tree.map(lambda s, r=r: s * (r > 0), share)
                slopes = slopes_of_mixture(w, v, theta, share, x, y, mu, nu)
                w, v = (oracle.combine(lambda p, g: p - LR * g, p, g) for p, g in zip((w, v), slopes, strict=True))
            sent.append(w)
            own[i], is_trained[i] = v, max(is_trained[i], r > 0)
        theta = oracle.average(sent, [size for *_, size in cohort])
    hyper = superfed.Hyper(lr=LR, warmup=1, mu=mu, nu=0.7, lam=lam)
    algorithm = superfed(model, WORK, mixing="layers" if by_layer else "model")
    deployed, state = run(algorithm, hyper, federation, key)
    chex.assert_trees_all_close(state.server, theta, rtol=1e-5, atol=1e-5)
    assert_models(state.clients["own"], own)
    np.testing.assert_array_equal(state.clients["is_trained"], is_trained)
    shares = lam * is_trained
    tested = [oracle.combine(lambda v, w, s=s: s * v + (1 - s) * w, v, theta) for s, v in zip(shares, own, strict=True)]
    assert_models(deployed, tested)


@pytest.mark.slow
def test_superfed_that_never_mixes_is_fedprox(key, model, federation):
    """Bit for bit; local models rest, also under weight decay, and clients are tested with the server's model."""
    numbers = {"lr": LR, "momentum": 0.5, "weight_decay": 0.1, "mu": 0.3}
    algorithm, hyper = superfed(model, WORK), superfed.Hyper(warmup=np.inf, **numbers)
    state = final(algorithm, hyper, federation, key)
    prox = final(fljax.fedprox(model, WORK), fljax.fedprox.Hyper(**numbers), federation, key)
    first = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    chex.assert_trees_all_equal((state.server, state.clients), (prox.server, first.clients))
    deployed = jitted(algorithm.deploy)(key, hyper, state, federation.train)
    chex.assert_trees_all_equal(deployed.params, jax.device_get(tree.broadcast(prox.server, 8)))


@pytest.mark.slow
def test_superfeds_clients_that_fail_and_new_ones_have_the_servers_model(key, model, federation):
    """Until they have trained a local model: new clients' begin as the server's, and train from their first round."""
    nan_rows = federation.train.index[2, :1]
    pool = federation.train.pool._replace(x=federation.train.pool.x.at[nan_rows].set(jnp.nan))
    failing = federation._replace(train=federation.train._replace(pool=pool))
    algorithm, hyper = superfed(model, WORK), as_traced(superfed.Hyper(lr=1e-3, warmup=0, lam=1))
    state = jitted(algorithm.init)(key, hyper, federation.train)
    for is_trained, some_federation in ((np.arange(8) != 2, failing), (1, federation), (1, failing)):
        state, _ = one_round(algorithm, hyper, some_federation, key, state, 1)
        np.testing.assert_array_equal(state.clients["is_trained"], is_trained)
    join = jax.jit(lambda hyper, n_rounds: tree.stacked(algorithm.join(key, hyper, state, federation.train, n_rounds)))
    of_none, of_one = (jax.device_get(join(as_traced(hyper.replace(warmup=5.0)), np.int32(n))) for n in (0, 1))
    chex.assert_trees_all_equal(of_none, jax.device_get(tree.broadcast(state.server, 8)))
    for new, old in zip(jax.tree.leaves(of_one), jax.tree.leaves(of_none), strict=True):
        assert 0 < np.abs(new - old).max() < 0.02


def test_apple_in_numpy(key, model, federation, reference):  # noqa: F811
    size = np.asarray(federation.train.size, np.float64)
    cores, p0, rate, mu, fades = reference.everyone(), size / size.sum(), 0.05, 0.3, 1.5
    weights, decay = [p0] * 8, 0.8

    def mixture(p, cores):
        return oracle.combine(lambda *leaves: sum(w * leaf for w, leaf in zip(p, leaves, strict=True)), *cores)

    for r, cohort in enumerate(reference.rounds()):
        lr, p_lr = LR * decay**r, rate * decay**r  # as in the authors' code both fall
        mu_of_round, sent = mu * (1 + np.cos(np.pi * min(r / fades, 1))) / 2, list(cores)
        for i, k, _ in cohort:
            local_cores, p = list(cores), weights[i]
            for x, y in reference.batches(i, k):
                g = oracle.gradient(mixture(p, local_cores), x, y)
                p_gradient = [
                    sum(jax.tree.leaves(oracle.combine(lambda c, g: (c * g).sum(), core, g))) for core in local_cores
                ]
                local_cores[i] = oracle.combine(lambda c, g, step=lr * p[i]: c - step * g, local_cores[i], g)
                p = p - p_lr * (np.array(p_gradient) + mu_of_round * (p - p0))
            sent[i], weights[i] = local_cores[i], p
        cores = sent
    hyper = apple.Hyper(lr=LR, lr_decay=decay, p_lr=rate, mu=mu, decay_rounds=fades)
    deployed, state = run(apple(model, WORK), hyper, federation, key)
    np.testing.assert_allclose(state.clients, weights, rtol=1e-4, atol=1e-6)
    assert np.abs(np.array(weights) - p0).max() > 0.01  # they moved
    assert_models(deployed, [mixture(p, cores) for p in weights])


def test_fml_in_numpy(key, model, federation, reference):  # noqa: F811
    w, personal_models, alpha, beta = reference.start, reference.everyone(), 0.3, 0.6

    def gradient(params, x, y, teacher, share):
        """Of ``share`` times the loss and the rest times KL(teacher || probabilities).

        The gradient of either in the logits is the probabilities less the target.
        """
        probabilities = softmax(numpy_logits(params, x), axis=1)
        logit_gradient = share * (probabilities - np.eye(probabilities.shape[1])[y]) + (1 - share) * (
            probabilities - teacher
        )
        h = numpy_features(params, x)
        feature_gradient = (logit_gradient @ params["fc2"]["kernel"].T) * (h > 0)
        pairs = {"fc1": (x.reshape(len(x), -1), feature_gradient), "fc2": (h, logit_gradient)}
        return {n: {"kernel": a.T @ b / len(x), "bias": b.mean(axis=0)} for n, (a, b) in pairs.items()}

    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            copy = w
            for x, y in reference.batches(i, k):
                both_probabilities = [softmax(numpy_logits(either, x), axis=1) for either in (copy, personal_models[i])]
                gradients = (
                    gradient(copy, x, y, both_probabilities[1], beta),
                    gradient(personal_models[i], x, y, both_probabilities[0], alpha),
                )
                copy, personal_models[i] = (
                    oracle.combine(lambda p, g: p - LR * g, either, g)
                    for either, g in zip((copy, personal_models[i]), gradients, strict=True)
                )
            sent.append(copy)
        w = oracle.average(sent, [size for *_, size in cohort])
    deployed, state = run(fml(model, WORK), fml.Hyper(lr=LR, alpha=alpha, beta=beta), federation, key)
    assert_models(deployed, personal_models)
    chex.assert_trees_all_close(state.server, w, rtol=1e-5, atol=1e-5)


def numpy_logits(params, x):
    return numpy_features(params, x) @ params["fc2"]["kernel"] + params["fc2"]["bias"]


@pytest.mark.slow
def test_fml_without_distillation_is_fedavg_beside_standalone_training(key, model, work, federation):
    state = final(fml(model, work), fml.Hyper(lr=0.1, alpha=1.0, beta=1.0), federation, key)
    chex.assert_trees_all_close(state.server, fedavg_server(model, work, federation, key), rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(state.clients, standalone_models(model, work, federation, key), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_fml_keeps_the_running_statistics_of_either_model_apart(key):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(not train, momentum=0.5)(x.reshape(len(x), -1))
            return nn.Dense(4)(x)

    model, federation = fljax.from_linen(Net(), (4, 4, 1)), linear_groups(3, 3, examples=16)
    start = {name: model.init(jax.random.fold_in(key, i)) for i, name in enumerate(("global", "own"))}
    start["own"]["batch_stats"] = jax.tree.map(lambda leaf: leaf + 3, start["own"]["batch_stats"])
    chex.assert_trees_all_equal(tree.apart(tree.side_by_side(**start)), start)
    x, y = federation.train.pool.x[:8], federation.train.pool.y[:8]
    _, updated = mutual(model, fml.Hyper())(tree.side_by_side(**start), Batch(x, y, jnp.ones(8)), key)
    for name, params in tree.apart(updated).items():
        chex.assert_trees_all_close(params, model.apply(start[name], x, key)[1])
        assert not np.allclose(
            jax.tree.leaves(params["batch_stats"])[0], jax.tree.leaves(start[name]["batch_stats"])[0]
        )
    state, metrics = fljax.simulate(fml(model, Work(1, 8)), fml.Hyper(lr=0.1), federation, key, 2)
    assert np.isfinite(metrics["loss"]).all()
    assert {"batch_stats"} < set(state.clients) == set(state.server)


def test_fml_needs_classes(key, federation):
    model = fljax.regression(fljax.MODELS["logistic_regression"]((4, 4, 1), 1))
    targets = federation.train.pool._replace(y=federation.train.pool.y.astype(jnp.float32))
    numbers = jax.tree.map(lambda leaf: leaf, federation)
    numbers = numbers._replace(
        train=numbers.train._replace(pool=targets), test=numbers.test._replace(pool=targets), val=None
    )
    with pytest.raises(ValueError, match="not classes, which this method or partition needs"):
        fljax.simulate(fml(model, WORK), fml.Hyper(), numbers, key, 1)


@pytest.mark.parametrize("method", slow(fml, pfedme), ids=["fml", "pfedme"])
def test_newcomers_begin_with_the_servers_model(key, model, federation, method):
    algorithm, hyper = method(model, WORK), method.Hyper(lr=0.1)
    state = final(algorithm, hyper, federation, key)
    joined = algorithm.join(key, as_traced(hyper), state, federation.train, jnp.int32(0))
    chex.assert_trees_all_close(fljax.client_model(joined, 2), state.server)
    trained_for_two_rounds = algorithm.join(key, as_traced(hyper), state, federation.train, jnp.int32(2))
    assert not np.allclose(
        fljax.client_model(trained_for_two_rounds, 2)["fc1"]["kernel"], state.server["fc1"]["kernel"], atol=1e-3
    )


def test_fedala_in_numpy(key, model, federation, reference):  # noqa: F811
    """The first fit of the mixture's weights, which moves nothing where all are alike, three epochs, later ones one.

    The last layer alone is mixed; a client is tested with the mixture that it would start from.
    """
    theta, heads, eta, n_done = reference.start, [reference.start["fc2"]] * 8, 3.0, np.zeros(8, int)
    mix = [{name: np.ones_like(leaf) for name, leaf in heads[0].items()}] * 8

    def fitted_mixture(i, key, theta):
        """Client i's start and weights, fitted to 0.7 of its examples in batches of 8."""
        difference, weights = {name: theta["fc2"][name] - heads[i][name] for name in heads[i]}, mix[i]
        start = lambda m: theta | {"fc2": {name: heads[i][name] + difference[name] * m[name] for name in m}}  # noqa: E731
        size, is_different = reference.size[i], any(leaf.any() for leaf in difference.values())
        rows = np.asarray(shuffled(key, reference.index[i], size))[: 7 * size // 10]
        for first_row in np.tile(np.arange(0, len(rows), 8), (1 if n_done[i] else 3) * is_different):
            x, y = (value[rows[first_row : first_row + 8]] for value in (reference.x, reference.y))
            gradient = oracle.gradient(start(weights), x, y)["fc2"]
            weights = {
                name: np.clip(weights[name] - eta * gradient[name] * difference[name], 0, 1) for name in difference
            }
        return start(weights), weights, is_different

    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            start, mix[i], is_different = fitted_mixture(i, k, theta)
            sent.append(oracle.local_sgd(start, reference.batches(i, k), LR))
            heads[i], n_done[i] = sent[-1]["fc2"], n_done[i] + is_different
        theta = oracle.average(sent, [size for *_, size in cohort])
    assert 0 < np.sum(n_done > 0) < 8
    assert any((leaf < 0.99).any() for weights in mix for leaf in weights.values())
    algorithm, hyper = fedala(model, WORK, max_epochs=3), fedala.Hyper(lr=LR, eta=eta, share=0.7, spread=0.0)
    deployed, state = run(algorithm, hyper, federation, key)
    chex.assert_trees_all_close(state.server, theta, rtol=1e-5, atol=1e-5)
    assert_models(
        deployed, [fitted_mixture(i, jax.random.fold_in(reference.keys.deploy, i), theta)[0] for i in range(8)]
    )


@pytest.mark.parametrize(("is_first_fit", "spread"), [(False, 0.004), (True, 0.004), (True, 1.0)])
def test_fedala_fits_its_mixture_as_numpy_does(key, model, federation, is_first_fit, spread):
    """W - eta g (theta - w), cut to [0, 1], in the last layer alone: an epoch, at first until ten losses agree.

    So much of a client's examples as there is in ``share``, the first of their order.
    """
    theta, client_params = model.init(key), model.init(jax.random.fold_in(key, 1))
    n, eta = 8, 5.0
    upper_layers, mix = (
        tree.select(client_params, ("fc2",)),
        jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.6), theta["fc2"]),
    )
    client_state = {"upper": tree.broadcast(upper_layers, n), "mix": tree.broadcast({"fc2": mix}, n)}
    local_start = tree.own(
        {"global": tree.broadcast(theta, n), "own": client_state | {"fitted": jnp.full(n, not is_first_fit)}}
    )
    hyper, keys = as_traced(fedala.Hyper(eta=eta, share=0.7, spread=spread)), jax.random.split(key, n)
    start_models, mix, is_fitted = mixture_fit(model, Work(1, 64), 60, hyper, keys, local_start, federation.train)
    theta, client_params = as_float64(theta), as_float64(client_params)
    difference, n_epochs = oracle.combine(np.subtract, theta, client_params)["fc2"], []
    for i in range(n):
        size = int(federation.train.size[i])
        rows = np.asarray(shuffled(keys[i], federation.train.index[i], jnp.int32(size)))[: 7 * size // 10]
        x, y = np.asarray(federation.train.pool.x, np.float64)[rows], np.asarray(federation.train.pool.y)[rows]
        weights, losses = {k: np.full_like(leaf, 0.6) for k, leaf in difference.items()}, []
        while not losses or (
            is_first_fit and not (len(losses) > 10 and np.std(losses[-10:]) < spread) and len(losses) < 60
        ):
            start = theta | {"fc2": {k: client_params["fc2"][k] + weights[k] * difference[k] for k in difference}}
            losses.append(oracle.training_loss(start, x, y))
            gradient = oracle.gradient(start, x, y)["fc2"]
            weights = {k: np.clip(weights[k] - eta * gradient[k] * difference[k], 0, 1) for k in difference}
        n_epochs.append(len(losses))
        for k in difference:
            np.testing.assert_allclose(mix["fc2"][k][i], weights[k], rtol=1e-4, atol=1e-5)
            expected = client_params["fc2"][k] + weights[k] * difference[k]
            np.testing.assert_allclose(start_models["fc2"][k][i], expected, rtol=1e-4, atol=1e-5)
    if is_first_fit and spread < 1:
        assert len(set(n_epochs)) > 1
    else:  # whatever ten losses are, they agree to 1: an eleventh epoch is the last
        assert set(n_epochs) == {11 if is_first_fit else 1}
    np.testing.assert_array_equal(start_models["fc1"]["kernel"][3], np.asarray(theta["fc1"]["kernel"], np.float32))
    assert is_fitted.all()


@pytest.mark.slow
def test_terms_of_bricks_change_what_ditto_sends_and_a_failed_training_sends_nothing(key, model, federation):
    """In the first round both pulls are to the same model: a proximal term changes what is sent, not what is kept."""
    method, numbers = fljax.compose("ditto+prox"), {"lr": 0.1, "lam": 0.5}
    with_prox = simulate(method(model, WORK), method.Hyper(mu=2.0, **numbers), federation, key, 1)[0]
    ditto, hyper = fljax.ditto(model, WORK), fljax.ditto.Hyper(personal_lr=0.1, **numbers)
    without_prox = simulate(ditto, hyper, federation, key, 1)[0]
    chex.assert_trees_all_close(with_prox.clients, without_prox.clients, rtol=1e-6)
    for leaf, leaf_without_prox in zip(
        jax.tree.leaves(with_prox.server), jax.tree.leaves(without_prox.server), strict=True
    ):
        assert np.abs(leaf - leaf_without_prox).max() > 1e-3
    # Who comes to nothing with its own model does not count for the other either.
    failed_state, metrics = simulate(ditto, hyper.replace(personal_lr=1e38), federation, key, 1)
    assert not metrics["ok"].any()
    chex.assert_trees_all_equal(failed_state.server, jax.device_get(jax.jit(model.init)(split_key(key).init)))
