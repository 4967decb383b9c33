"""FedPHP in NumPy and in the limit, and its discrepancy of two sets of features against SciPy."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.special import softmax

import fljax
from fljax.algorithms.fedphp import fedphp
from fljax.client.discrepancy import discrepancy
from fljax.rounds.cohort import everyone
from fljax.run.one_round import as_traced
from tests import oracle
from tests.algorithms.test_collaboration import through_body
from tests.algorithms.test_oracles import LR, WORK, assert_models, reference, rounds_of, run  # noqa: F401
from tests.algorithms.test_personal import fedavg_server, final, numpy_features, numpy_logits
from tests.slow import slow


def kernels(z, relative):
    """(2 n, 2 n) values of the sum of kernels, and their derivatives in the squared distance."""
    squared = cdist(z, z, "sqeuclidean")
    mean_distance = squared.sum() / (len(z) * (len(z) - 1)) + 1e-8
    widths = mean_distance * 2.0 ** np.arange(-2, 3) if relative else np.array([20.0, 30.0, 40.0, 100.0])
    each = np.exp(-squared / widths[:, None, None])
    return each.sum(0), (-each / widths[:, None, None]).sum(0)


def signs(n):
    return np.repeat([1.0, -1.0], n) / n


@pytest.mark.parametrize("relative", [True, False])
def test_discrepancy_against_scipy_without_examples_that_do_not_count(relative):
    rng = np.random.default_rng(0)
    x, y, n = rng.normal(size=(9, 4)), rng.normal(1, 2, size=(9, 4)), 6
    weight = np.arange(9) < n
    value = jax.jit(discrepancy, static_argnums=3)(*map(jnp.float32, (x, y, weight)), relative)
    values, _ = kernels(np.concatenate([x[:n], y[:n]]), relative)
    np.testing.assert_allclose(value, signs(n) @ values @ signs(n), rtol=1e-5)
    assert value > 0.01


def gradient(w, teacher, x, y, lam, transfer):
    """Of ``(1 - lambda)`` times the loss plus lambda times the transfer."""
    own = oracle.gradient(w, x, y)
    h, taught = numpy_features(w, x), numpy_features(teacher, x)
    if transfer == "kd":
        slope = (softmax(numpy_logits(w, x), axis=1) - softmax(numpy_logits(teacher, x) / 4, axis=1)) / len(x)
        head = {"kernel": h.T @ slope, "bias": slope.sum(0)}
        feature_slope = slope @ w["fc2"]["kernel"].T
    else:
        z = np.concatenate([h, taught])
        pull = np.outer(signs(len(h)), signs(len(h))) * kernels(z, transfer == "mmd")[1]
        # d/dz_i of sum_ij s_i s_j k(|z_i - z_j|^2): every pair is there twice.
        feature_slope = 4 * (pull.sum(1)[:, None] * z - pull @ z)[: len(h)]
        head = {name: np.zeros_like(leaf) for name, leaf in w["fc2"].items()}
    moved = {"fc1": through_body(w, x, feature_slope), "fc2": head}
    return oracle.combine(lambda a, b: (1 - lam) * a + lam * b, own, moved)


@pytest.mark.parametrize("transfer", ["mmd", *slow("mmd_fixed", "kd")])
def test_fedphp_in_numpy(key, model, federation, reference, transfer):  # noqa: F811
    """In the first participation the inherited model becomes the trained one; later it keeps a part of itself."""
    lam, mu, rise = 0.6, 0.8, 1.5
    theta, inherited, participations = reference.start, reference.everyone(), [0] * 8
    for cohort in reference.rounds():
        sent = []
        for i, k, _ in cohort:
            w = theta
            for x, y in reference.batches(i, k):
                w = oracle.combine(lambda w, g: w - LR * g, w, gradient(w, inherited[i], x, y, lam, transfer))
            mu_i = mu * min(participations[i] / rise, 1)
            inherited[i] = oracle.combine(lambda p, w, mu_i=mu_i: mu_i * p + (1 - mu_i) * w, inherited[i], w)
            participations[i] += 1
            sent.append(w)
        theta = oracle.average(sent, [size for *_, size in cohort])
    assert sorted(set(participations))[-1] == 3  # beyond the rise
    hyper = fedphp.Hyper(lr=LR, lam=lam, mu=mu, rise=rise)
    deployed, state = run(fedphp(model, WORK, transfer=transfer), hyper, federation, key)
    assert_models(deployed, inherited)
    chex.assert_trees_all_close(state.server, theta, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(state.clients["participations"], participations)


@pytest.mark.slow
def test_without_transfer_the_server_has_fedavgs_model(key, model, work, federation):
    state = final(fedphp(model, work), fedphp.Hyper(lr=0.1, lam=0.0), federation, key)
    chex.assert_trees_all_close(state.server, fedavg_server(model, work, federation, key), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_without_memory_clients_are_tested_with_what_they_trained_last(key, model, federation):
    """A server that takes nothing of the clients' models hands out the first; one participant's is the server's."""
    algorithm, hyper = fedphp(model, WORK), fedphp.Hyper(lr=LR, mu=0.0)
    sampling = fljax.rounds.table(((2,), (5,), (2,)))
    state, _ = fljax.simulate(algorithm, hyper, federation, key, 3, sampling=sampling)
    deployed = fljax.deployed(algorithm, hyper, state, federation, key)
    chex.assert_trees_all_close(fljax.client_model(deployed, 2), state.server, rtol=1e-6)
    chex.assert_trees_all_equal(fljax.client_model(deployed, 0), model.init(fljax.run.one_round.split_key(key).init))


def test_a_client_that_diverges_keeps_its_inherited_model(key, model, federation):
    pool = federation.train.pool
    x = jnp.asarray(pool.x).at[federation.train.index[3, 0]].set(jnp.nan)
    broken = federation._replace(train=federation.train._replace(pool=pool._replace(x=x)))
    state, metrics = rounds_of(fedphp(model, WORK), fedphp.Hyper(lr=LR), broken, key)
    took_part = (np.asarray(metrics["ids"]) == 3) & np.asarray(metrics["active"])
    assert took_part.any()
    assert state.clients["participations"][3] == 0
    assert np.isfinite(jax.tree.leaves(state.clients["model"])[0]).all()


@pytest.mark.slow
def test_newcomers_begin_with_the_servers_model(key, model, federation):
    algorithm, hyper = fedphp(model, WORK), fedphp.Hyper(lr=0.1)
    state = final(algorithm, hyper, federation, key)
    joined = algorithm.join(key, as_traced(hyper), state, federation.train, jnp.int32(0))
    chex.assert_trees_all_close(fljax.client_model(joined, 2), state.server)
    trained = algorithm.join(key, as_traced(hyper), state, federation.train, jnp.int32(2))
    moved = fljax.client_model(trained, 2)["fc1"]["kernel"] - state.server["fc1"]["kernel"]
    assert np.abs(moved).max() > 1e-3


@pytest.mark.parametrize("transfer", ["mmd", "kd"])
def test_only_the_transfer_of_outputs_needs_classes(key, federation, transfer):
    model = fljax.regression(fljax.MODELS["mlp"]((4, 4, 1), (6,), 1))
    pool = federation.train.pool
    numbers = federation.train._replace(pool=pool._replace(y=pool.y.astype(jnp.float32)))
    algorithm, hyper = fedphp(model, WORK, transfer=transfer), as_traced(fedphp.Hyper())

    def first_round(key, data):
        state = algorithm.init(key, hyper, data)
        return algorithm.round(key, hyper, state, everyone(key, jnp.int32(0), data))

    if transfer == "mmd":
        assert jax.eval_shape(first_round, key, numbers)[1]["loss"].shape == (8,)
    else:
        with pytest.raises(ValueError, match="not classes, which this method or partition needs"):
            jax.eval_shape(first_round, key, numbers)
