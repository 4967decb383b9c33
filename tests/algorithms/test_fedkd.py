"""FedKD in NumPy, and its low-rank updates against NumPy's singular value decomposition."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy.special import log_softmax

import fljax
from fljax.algorithms.fedkd import fedkd
from fljax.data.synthetic import linear_groups
from fljax.rounds.truncation import truncated_updates
from fljax.run.one_round import as_traced
from fljax.types import Work
from tests import oracle
from tests.algorithms.test_collaboration import through_body
from tests.algorithms.test_oracles import (  # noqa: F401
    LR,
    WORK,
    assert_models,
    assert_sent,
    reference,
    rounds_of,
    run,
)
from tests.algorithms.test_personal import final, numpy_features, numpy_logits
from tests.slow import slow, slow_rows


def truncated(matrix, energy):
    """A matrix by the fewest singular values whose squares exceed the share ``energy`` of their sum, and the floats."""
    u, s, v = np.linalg.svd(matrix, full_matrices=False)
    total = np.square(s).sum()
    rank = next((k for k in range(len(s)) if np.square(s[:k]).sum() > energy * total), len(s))
    return (u[:, :rank] * s[:rank]) @ v[:rank], min(rank * (sum(matrix.shape) + 1), matrix.size)


@pytest.mark.parametrize("energy", [0.5, 0.9, 1.0])
def test_updates_keep_their_largest_singular_values(energy):
    rng = np.random.default_rng(0)
    decaying = 0.5 ** np.arange(6)  # so that the energies need different numbers of singular values
    updates = {
        "tall": rng.normal(size=(2, 9, 6)) * decaying,
        "wide": rng.normal(size=(2, 6, 20)) * decaying[:, None],
        "convolution": rng.normal(size=(2, 3, 3, 2, 4)) * decaying[:4],
        "bias": rng.normal(size=(2, 5)),
    }
    approximations, floats = jax.jit(truncated_updates)(jax.tree.map(jnp.float32, updates), jnp.float32(energy))
    expected_floats = [5, 5]
    for name in ("tall", "wide", "convolution"):
        for i, update in enumerate(updates[name]):
            expected, n = truncated(update.reshape(-1, update.shape[-1]), energy)
            np.testing.assert_allclose(approximations[name][i], expected.reshape(update.shape), atol=1e-5)
            expected_floats[i] += n
    np.testing.assert_array_equal(approximations["bias"], np.float32(updates["bias"]))
    np.testing.assert_array_equal(floats, expected_floats)
    n_all = sum(update[0].size for update in updates.values())
    assert (min(expected_floats) == n_all) if energy == 1 else (max(expected_floats) < n_all)


def test_an_update_of_zeros_has_rank_0():
    approximation, floats = jax.jit(truncated_updates)({"kernel": jnp.zeros((1, 4, 3)), "bias": jnp.zeros((1, 3))}, 0.9)
    assert not approximation["kernel"].any()
    np.testing.assert_array_equal(floats, [3])


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_of_an_update_need_not_fit_float32(scale):
    update = np.float32(np.random.default_rng(0).normal(size=(1, 5, 3)))
    approximation, floats = jax.jit(truncated_updates)({"kernel": update * np.float32(scale)}, 0.8)
    expected, n = truncated(np.float64(update[0]), 0.8)
    np.testing.assert_allclose(approximation["kernel"][0] / scale, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(floats, [n])


def gradients(v, w, projection, x, y):
    """Of ``l_v + l_w + D / (l_v + l_w)`` in the mentor, the mentee, and the matrix between their features, by hand.

    D is the mean over examples of both divergences over the number of classes, and of twice the mean square of the
    features' difference.
    """
    n, log_p, log_q = len(x), *(log_softmax(numpy_logits(net, x), axis=1) for net in (v, w))
    p, q, (h, g) = np.exp(log_p), np.exp(log_q), (numpy_features(net, x) for net in (v, w))
    n_classes, d = p.shape[1], h.shape[1]
    difference = h - g @ projection
    distillation = ((q - p) * (log_q - log_p)).sum() / (n * n_classes) + 2 * np.square(difference).sum() / (n * d)
    both = oracle.training_loss(v, x, y) + oracle.training_loss(w, x, y)
    of_features = 4 * difference / (n * d * both)
    found = []
    for net, (a, log_a), (b, log_b), features, slope in (
        (v, (p, log_p), (q, log_q), h, of_features),
        (w, (q, log_q), (p, log_p), g, -of_features @ projection.T),
    ):
        forward = (a * (log_a - log_b)).sum(1, keepdims=True)
        divergence_slope = (a - b + a * (log_a - log_b - forward)) / (n * n_classes)
        own = oracle.gradient(net, x, y)
        delta = divergence_slope / both
        head = {"kernel": features.T @ delta, "bias": delta.sum(0)}
        pulled = {"fc1": through_body(net, x, delta @ net["fc2"]["kernel"].T + slope), "fc2": head}
        found.append(oracle.combine(lambda o, t: (1 - distillation / both**2) * o + t, own, pulled))
    return *found, -g.T @ of_features


@pytest.mark.parametrize(
    ("weighting", "start", "end"), [("size", 0.6, 0.9), *slow_rows(("uniform", 0.6, 0.9), ("size", 1.0, 1.0))]
)
def test_fedkd_in_numpy(key, model, federation, reference, weighting, start, end):  # noqa: F811
    theta, mentors, mentee_lr, rise = reference.start, reference.everyone(), 0.1, 1.5
    projections, sent_floats, returned_floats = [np.eye(6)] * 8, [], []
    for r, cohort in enumerate(reference.rounds()):
        energy = start + (end - start) * min(r / rise, 1)

        def compressed(update, energy=energy):
            pairs = {n: truncated(leaf["kernel"], energy) for n, leaf in update.items()}
            kept = {n: {"kernel": kernel, "bias": update[n]["bias"]} for n, (kernel, _) in pairs.items()}
            return kept, sum(floats + update[n]["bias"].size for n, (_, floats) in pairs.items())

        sent, floats = [], {}
        for i, k, _ in cohort:
            w = theta
            for x, y in reference.batches(i, k):
                of_mentor, of_mentee, of_projection = gradients(mentors[i], w, projections[i], x, y)
                mentors[i] = oracle.combine(lambda w, g: w - LR * g, mentors[i], of_mentor)
                w = oracle.combine(lambda w, g: w - mentee_lr * g, w, of_mentee)
                projections[i] = projections[i] - LR * of_projection
            update, floats[i] = compressed(oracle.combine(np.subtract, w, theta))
            sent.append(update)
        mean = oracle.average(sent, [size if weighting == "size" else 1.0 for *_, size in cohort])
        returned, n_returned = compressed(mean)
        theta = oracle.combine(np.add, theta, returned)
        sent_floats.append(floats)
        returned_floats.append(dict.fromkeys(floats, n_returned))
    algorithm = fedkd(model, WORK, weighting=weighting)
    hyper = fedkd.Hyper(lr=LR, mentee_lr=mentee_lr, energy_start=start, energy_end=end, rise=rise)
    deployed, state = run(algorithm, hyper, federation, key)
    assert_models(deployed, mentors)
    chex.assert_trees_all_close(state.server, theta, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.clients["projection"], projections, rtol=1e-5, atol=1e-5)
    _, metrics = rounds_of(algorithm, hyper, federation, key)
    assert_sent(metrics, "uplink", sent_floats)
    assert_sent(metrics, "downlink", returned_floats)
    all_floats = [floats for of_round in sent_floats for floats in of_round.values()]
    assert (set(all_floats) == {130}) if start == 1 else (len(set(all_floats)) > 2 and max(all_floats) < 130)


@pytest.mark.slow
def test_the_running_statistics_of_mentor_and_mentee_are_apart(key):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            x = nn.BatchNorm(not train, momentum=0.5)(x.reshape(len(x), -1))
            return nn.Dense(4)(x)

    model, federation = fljax.from_linen(Net(), (4, 4, 1)), linear_groups(3, 3, examples=16)
    algorithm, hyper = fedkd(model, Work(1, 8)), fedkd.Hyper(lr=0.1)
    state, metrics = fljax.simulate(algorithm, hyper, federation, key, 2)
    assert np.isfinite(metrics["loss"]).all()
    mean = state.server["batch_stats"]["BatchNorm_0"]["mean"]
    own = state.clients["mentor"]["batch_stats"]["BatchNorm_0"]["mean"]
    # Both see the same examples; the mentee's moments of the last round begin from those of all clients.
    assert np.abs(own - mean[None]).max() > 0.01
    assert np.abs(own.mean(0) - mean).max() < 0.5 * np.abs(mean).max()


def test_fedkd_needs_classes(key, federation):
    model = fljax.regression(fljax.MODELS["logistic_regression"]((4, 4, 1), 1))
    pool = federation.train.pool
    numbers = federation.train._replace(pool=pool._replace(y=pool.y.astype(jnp.float32)))
    with pytest.raises(ValueError, match="not classes, which this method or partition needs"):
        fedkd(model, WORK).init(key, fedkd.Hyper(), numbers)


@pytest.mark.parametrize("n_rounds", slow(0, 2))
def test_newcomers_begin_with_the_servers_model_as_mentor(key, model, federation, n_rounds):
    algorithm, hyper = fedkd(model, WORK), fedkd.Hyper(lr=0.1)
    state = final(algorithm, hyper, federation, key)
    joined = algorithm.join(key, as_traced(hyper), state, federation.train, jnp.int32(n_rounds))
    moved = fljax.client_model(joined, 2)["fc1"]["kernel"] - state.server["fc1"]["kernel"]
    assert (np.abs(moved).max() > 1e-3) == (n_rounds > 0)
