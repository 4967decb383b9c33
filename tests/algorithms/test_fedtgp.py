"""FedTGP: in NumPy, with classes that nobody sent and a client that diverges; its margin by brute force."""

from itertools import combinations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import kstest

from fljax.algorithms.fedtgp import ORDER, fedtgp, generator_of, margin_of
from fljax.run.one_round import split_key
from tests.algorithms.round_by_round import jitted
from tests.algorithms.test_features import towards_prototypes
from tests.algorithms.test_oracles import (
    LR,
    WORK,
    Reference,
    assert_models,
    assert_sent,
    rounds_of,
    run,
    without_a_class,
)
from tests.algorithms.test_personal import numpy_features
from tests.oracle import as_float64, examples_of
from tests.slow import slow_rows

EPOCHS, BATCH, LAM = 3, 5, 3.0
SERVER_LR = 0.1  # at 0.3 the steps swing: they make differences of float32 fifty times as large
PLACES_OF = jax.jit(lambda key, epoch: jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, ORDER), epoch), 4))
LOST = 2
"""The client with an example of NaN, if one has it."""


def generate(generator):
    """(prototypes, the hidden layer)."""
    hidden = np.maximum(generator["embedding"] @ generator["hidden"]["kernel"] + generator["hidden"]["bias"], 0)
    return hidden @ generator["last"]["kernel"] + generator["last"]["bias"], hidden


def stepped(generator, features, y, delta):
    """A step along the gradient of the mean contrastive loss, by hand."""
    prototypes, hidden = generate(generator)
    difference = prototypes[None] - features[:, None]
    distance, target = np.sqrt(np.square(difference).sum(-1)), np.eye(4)[y]
    slope = (target - softmax(-distance - delta * target, axis=1)) / len(y)  # of the distances
    above = (slope[..., None] * difference / distance[..., None]).sum(0)
    below = (above @ generator["last"]["kernel"].T) * (hidden > 0)
    gradient = {
        "embedding": below @ generator["hidden"]["kernel"].T,
        "hidden": {"kernel": generator["embedding"].T @ below, "bias": below.sum(0)},
        "last": {"kernel": hidden.T @ above, "bias": above.sum(0)},
    }
    return jax.tree.map(lambda w, g: w - SERVER_LR * g, generator, gradient)


def margin_by_hand(shown, margin, tau):
    """Of the means (client, class, feature) that were sent."""
    centers = {c: np.mean([h for _, one, h in shown if one == c], axis=0) for c in {c for _, c, _ in shown}}
    distance = {(a, b): np.linalg.norm(centers[a] - centers[b]) for a in centers for b in centers if a != b}
    if not distance:
        return tau
    nearest = [min(d for (a, _), d in distance.items() if a == c) for c in centers]
    return min(max(nearest if margin == "nearest" else distance.values()), tau)


def trained(generator, shown, keys, delta):
    """The generator after the server's epochs."""
    for epoch in range(EPOCHS):
        place = {i: np.asarray(PLACES_OF(key, epoch)) for i, key in keys.items()}
        ordered = sorted(shown, key=lambda one: place[one[0]][one[1]])
        for first in range(0, len(ordered), BATCH):
            _, y, features = zip(*ordered[first : first + BATCH], strict=True)
            generator = stepped(generator, np.array(features), np.array(y), delta)
    return generator


def with_a_nan(federation):
    """The federation, of whose client `LOST` the first example is NaN."""
    train = federation.train
    x = jnp.asarray(train.pool.x).at[train.index[LOST, 0]].set(jnp.nan)
    return federation._replace(train=train._replace(pool=train.pool._replace(x=x)))


@pytest.mark.parametrize(("margin", "tau"), [("farthest", 100.0), ("farthest", 0.2), *slow_rows(("nearest", 100.0))])
@pytest.mark.parametrize(
    "change", [lambda federation: federation, without_a_class, with_a_nan], ids=["all", "class", "client"]
)
def test_fedtgp_in_numpy(key, model, federation, change, margin, tau):
    federation = change(federation)
    algorithm = fedtgp(model, WORK, server_epochs=EPOCHS, server_batch=BATCH, margin=margin)
    hyper = fedtgp.Hyper(lr=LR, lam=LAM, tau=tau, server_lr=SERVER_LR)
    reference = Reference(key, model, federation)
    lost = [LOST] if change is with_a_nan else []
    first = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    models, generator, deltas = reference.everyone(), as_float64(first.server["generator"]), []
    mean, is_known, uplink, downlink = np.zeros((4, 6)), np.zeros(4), [], []
    for cohort in reference.rounds():
        shown, uplink, downlink = [], [*uplink, {}], [*downlink, {i: 6 * is_known.sum() for i, *_ in cohort}]
        for i, k, _ in cohort:
            x, y = examples_of(federation.train, i)
            uplink[-1][i] = len(np.unique(y)) * 7
            if i not in lost:
                models[i] = towards_prototypes(models[i], reference.batches(i, k), mean, is_known, LAM)
                shown += [(i, c, numpy_features(models[i], x)[y == c].mean(0)) for c in np.unique(y)]
        deltas.append(margin_by_hand(shown, margin, tau))
        generator = trained(generator, shown, {i: k for i, k, _ in cohort}, deltas[-1])
        mean, is_known = generate(generator)[0], np.ones(4)
    assert (np.array(deltas) == tau).all() if tau < 1 else (np.array(deltas) < tau).all()
    assert not lost or any(LOST in sent for sent in uplink)
    state, metrics = rounds_of(algorithm, hyper, federation, key)
    assert_sent(metrics, "uplink", uplink)
    assert_sent(metrics, "downlink", downlink)
    kept = [i for i in range(8) if i not in lost]
    assert_models(jax.tree.map(lambda leaf: leaf[np.array(kept)], state.clients), [models[i] for i in kept])
    chex.assert_trees_all_close(state.server["generator"], generator, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.server["mean"], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(state.server["known"], is_known)
    x = np.asarray(federation.train.pool.x)[np.asarray(federation.train.index)[0, :8]]
    distance = np.square(numpy_features(models[0], x)[:, None] - mean).sum(-1)
    deployed, _ = run(algorithm, hyper, federation, key)
    scores = jax.jit(algorithm.predict)(jax.tree.map(lambda leaf: leaf[0], deployed), x)
    np.testing.assert_allclose(scores, -distance, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("margin", ["farthest", "nearest"])
def test_the_margin_is_that_of_the_classes_that_were_sent(margin):
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, 6, 3)).astype(np.float32)
    function = jax.jit(lambda *arguments: margin_of(*arguments, margin))
    for n_classes, tau in ((6, 50.0), (4, 50.0), (2, 50.0), (6, 0.7), (1, 0.7), (0, 0.7)):
        is_sent = (rng.random((5, 6)) < 0.6) & (np.arange(6) < n_classes)
        is_sent[0, :n_classes] = True
        centers = [means[is_sent[:, c], c].astype(np.float64).mean(0) for c in range(n_classes)]
        pairs = {
            pair: np.linalg.norm(centers[pair[0]] - centers[pair[1]]) for pair in combinations(range(n_classes), 2)
        }
        nearest = [min(d for pair, d in pairs.items() if c in pair) for c in range(n_classes) if pairs]
        expected = min(max(nearest if margin == "nearest" else pairs.values(), default=tau), tau)
        lost = np.where(is_sent[..., None], means, np.nan)
        np.testing.assert_allclose(function(lost, is_sent, np.float32(tau)), expected, rtol=1e-5)


def test_what_makes_the_prototypes_begins_as_in_pytorch(key):
    generator, d = jax.jit(lambda key: generator_of(key, 40, 25))(key), 25
    assert kstest(generator["embedding"].ravel(), "norm").pvalue > 0.01
    for layer in ("hidden", "last"):
        for leaf in generator[layer].values():
            assert kstest(leaf.ravel(), "uniform", (-(d**-0.5), 2 * d**-0.5)).pvalue > 0.01
    assert not np.array_equal(generator["hidden"]["kernel"], generator["last"]["kernel"])
