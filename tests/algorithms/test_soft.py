"""HypCluster, FedSoft and FedEM: hard and soft members of several models."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedem import fedem
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fedsoft import drawn_by_centers, fedsoft
from fljax.algorithms.hypcluster import hypcluster
from fljax.algorithms.ifca import ifca
from fljax.client.example_loss import example_loss
from fljax.data.federation import present
from fljax.data.synthetic import linear_groups
from fljax.metrics.participants import means_of_participants
from fljax.rounds.accounting import memberships
from fljax.rounds.joining import everyone
from fljax.run.one_round import split_key
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.test_oracles import LR, WORK, reference  # noqa: F401
from tests.oracle import as_float64, examples_of
from tests.slow import slow

ROUNDS = 3


def final(algorithm, hyper, federation, key, n_rounds=ROUNDS, participation=0.5):
    return simulate(algorithm, hyper, federation, key, n_rounds, participation=participation)[0]


def starting_at(algorithm, start):
    """``algorithm`` with another initial server model."""
    return algorithm._replace(init=lambda *arguments: algorithm.init(*arguments)._replace(server=start))


def first_model(stacked):
    return tree.take(stacked, 0)


@pytest.mark.slow
def test_hypcluster_of_equal_sizes_is_ifca(key, model, work):
    federation = linear_groups(8, 2, examples=24)
    actual = final(hypcluster(model, work, 2), hypcluster.Hyper(lr=0.1), federation, key).server.centers
    chex.assert_trees_all_close(
        actual, final(ifca(model, work, 2), ifca.Hyper(lr=0.1), federation, key).server.centers, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_hypcluster_of_one_cluster_is_fedavg(key, model, work, federation):
    algorithm, hyper = hypcluster(model, work, 1), hypcluster.Hyper(lr=0.1)
    start = first_model(jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server.centers)
    expected = final(starting_at(fedavg(model, work), start), fedavg.Hyper(lr=0.1), federation, key).server
    actual = first_model(final(algorithm, hyper, federation, key).server.centers)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_empty_cluster_keeps_its_model_and_its_momentum(key, model, work, federation):
    algorithm = hypcluster(model, work, 3, server_optimizer="momentum")
    hyper = hypcluster.Hyper(lr=0.1, server_lr=0.5, min_share=0.0)
    start = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    # The last center is so bad that nobody picks it.
    bad_centers = jax.tree.map(lambda leaf: leaf.at[2].set(50.0 * leaf[2] + 1), start.server.centers)
    moments = jax.tree.map(jnp.ones_like, start.server.memory.moments)
    algorithm_with_bad_center = starting_at(
        algorithm, start.server._replace(centers=bad_centers, memory=start.server.memory._replace(moments=moments))
    )
    state, metrics = simulate(algorithm_with_bad_center, hyper, federation, key, 2)
    assert (np.asarray(metrics["label"]) != 2).all()
    chex.assert_trees_all_equal(tree.take(state.server.centers, 2), tree.take(bad_centers, 2))
    chex.assert_trees_all_equal(tree.take(state.server.memory.moments, 2), tree.take(moments, 2))


@pytest.mark.slow
def test_hypcluster_finds_the_groups(key, model):
    federation = linear_groups(8, 2, examples=60)
    metrics = simulate(hypcluster(model, Work(2, 8)), hypcluster.Hyper(lr=0.2, min_share=0.5), federation, key, 8)[1]
    assert metrics["ari"][-1] == 1


@pytest.mark.slow
@pytest.mark.parametrize("pull", [0.0, 0.6])
def test_fedsoft_of_one_center_started_there_is_fedprox(key, model, work, federation, pull):
    algorithm, hyper = fedsoft(model, work, 1, start="center"), fedsoft.Hyper(lr=0.1, lam=pull)
    start = first_model(jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server)
    expected = final(starting_at(fedprox(model, work), start), fedprox.Hyper(lr=0.1, mu=pull), federation, key).server
    chex.assert_trees_all_close(
        first_model(final(algorithm, hyper, federation, key).server), expected, rtol=1e-5, atol=1e-6
    )


def test_fedsoft_equals_numpy(key, model, federation):
    epochs, lr, pull = 2, 0.2, 0.5
    algorithm, hyper = fedsoft(model, Work(epochs, 64), 2), fedsoft.Hyper(lr=lr, lam=pull)
    start = jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server
    centers = [jax.tree.map(lambda leaf, s=s: np.asarray(leaf[s], np.float64), start) for s in range(2)]
    models, data = [centers[0]] * 8, [examples_of(federation.train, i) for i in range(8)]
    for round in range(ROUNDS):
        if round % 2 == 0:
            votes = [np.argmin([oracle.losses(c, *d) for c in centers], axis=0) for d in data]
            share = np.array([[(vote == s).mean() or 1e-4 for s in range(2)] for vote in votes])
            share /= share.sum(axis=1, keepdims=True)
        for i, (x, y) in enumerate(data):
            for _ in range(epochs):
                g = oracle.gradient(models[i], x, y)
                for s in range(2):
                    g = oracle.combine(lambda g, w, c, u=share[i, s]: g + pull * u * (w - c), g, models[i], centers[s])
                models[i] = oracle.combine(lambda w, g: w - lr * g, models[i], g)
        centers = [oracle.average(models, [share[i, s] * len(d[1]) for i, d in enumerate(data)]) for s in range(2)]
    state = final(algorithm, hyper, federation, key, participation=1.0)
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *models)
    chex.assert_trees_all_close(state.clients.model, stacked, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(state.clients.share, share, rtol=1e-5)
    chex.assert_trees_all_close(
        state.server, jax.tree.map(lambda *leaves: np.stack(leaves), *centers), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("n_clusters", [1, 2])
def test_only_the_selected_clients_of_fedsoft_train_and_send(key, model, work, federation, n_clusters):
    algorithm, hyper = fedsoft(model, work, n_clusters, n_selected=2), fedsoft.Hyper(lr=0.1)
    start = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    state, metrics = simulate(algorithm, hyper, federation, key, 1)
    kernels = [np.asarray(some_state.clients.model["fc1"]["kernel"]) for some_state in (start, state)]
    is_selected = (kernels[0] != kernels[1]).any(axis=(1, 2))
    n_parameters = tree.size(model.init(key))
    assert 2 <= is_selected.sum() <= 2 * n_clusters  # two for each center, perhaps the same
    np.testing.assert_array_equal(metrics["uplink"][0], np.where(is_selected, n_clusters + n_parameters, n_clusters))
    if n_clusters == 1:
        mean = jax.tree.map(lambda leaf: np.asarray(leaf)[is_selected].mean(axis=0), state.clients.model)
        chex.assert_trees_all_close(first_model(state.server), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_loss_of_a_round_of_fedsoft_is_that_of_the_clients_that_were_drawn(key, model, federation):
    algorithm, hyper = fedsoft(model, Work(1, 64), 1, n_selected=2), fedsoft.Hyper(lr=1e-6)
    start = as_float64(first_model(jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server))
    metrics = {name: np.asarray(value) for name, value in simulate(algorithm, hyper, federation, key, 2)[1].items()}
    is_drawn, losses = metrics["uplink"] > 100, []
    for round in range(2):
        losses += [[oracle.training_loss(start, *examples_of(federation.train, i)) for i in metrics["ids"][round]]]
    np.testing.assert_array_equal(is_drawn.sum(axis=1), 2)
    np.testing.assert_allclose(metrics["loss"][is_drawn], np.array(losses)[is_drawn], rtol=1e-4)
    mean = np.where(is_drawn, losses, 0).sum(axis=1) / 2
    np.testing.assert_allclose(means_of_participants(metrics)["loss"], mean, rtol=1e-4)
    assert metrics["ok"].all()


def test_an_absent_client_has_no_cluster_and_is_not_counted_as_not_finite(key, federation):
    share = jnp.eye(3)[jnp.array([0, 0, 2, 1, 1, 1, 1, 1])]
    cohort = everyone(key, jnp.int32(0), federation.train)._replace(active=jnp.arange(8) < 3)
    assert memberships(share, cohort)["n_clusters"] == 2
    metrics = {name: np.zeros((1, 3)) for name in ("loss", "uplink", "downlink")}
    metrics |= {"active": np.array([[True, True, False]]), "ok": np.array([[True, False, False]])}
    np.testing.assert_array_equal(means_of_participants(metrics)["n_not_finite"], [1])


@pytest.mark.slow
@pytest.mark.parametrize("who_fails", ["some", "all"])
def test_a_fedsoft_round_has_a_loss_if_the_training_of_one_drawn_client_succeeds(key, model, federation, who_fails):
    rows = federation.train.index[2, :1] if who_fails == "some" else federation.train.index
    pool = federation.train.pool
    pool = pool._replace(x=pool.x.at[rows].set(jnp.nan))
    federation = federation._replace(train=federation.train._replace(pool=pool))
    algorithm, hyper = fedsoft(model, Work(1, 64), 1, n_selected=3), fedsoft.Hyper(lr=0.1)
    metrics = {name: np.asarray(value) for name, value in simulate(algorithm, hyper, federation, key, 6)[1].items()}
    loss = means_of_participants(metrics)["loss"]
    assert not metrics["ok"].all()
    assert np.isfinite(loss).all() if who_fails == "some" else np.isnan(loss).all()


def test_a_center_of_fedsoft_draws_other_clients_each_time(key, federation):
    cohort = everyone(key, jnp.int32(0), federation.train)._replace(active=jnp.arange(8) != 5)
    share = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(2), 8), jnp.float32)
    chance = np.asarray(share).T * np.where(cohort.active, federation.train.size, 0)
    for m in (1, 3):
        draw = jax.jit(jax.vmap(lambda key, m=m: drawn_by_centers(key, share, cohort, m)))
        is_drawn = np.asarray(draw(jax.random.split(key, 2000)))
        assert (is_drawn.sum(axis=2) == m).all()
        assert not is_drawn[..., 5].any()
        if m == 1:
            for counts, p in zip(is_drawn.sum(axis=0), chance / chance.sum(axis=1, keepdims=True), strict=True):
                is_active = np.asarray(cohort.active)
                assert chisquare(counts[is_active], 2000 * p[is_active]).pvalue > 1e-3


@pytest.mark.slow
def test_a_cluster_of_fedsoft_draws_clients_by_importance_and_size(key, model, federation):
    # One cluster that draws one client: its chance is n_i / sum n. 400 draws, off by three standard deviations.
    algorithm, hyper = fedsoft(model, Work(1, 64), 1, n_selected=1), fedsoft.Hyper(lr=1e-30)
    metrics = simulate(algorithm, hyper, federation, key, 400, evaluate_every=400)[1]
    frequency = (np.asarray(metrics["uplink"]) > 1).mean(axis=0)
    np.testing.assert_array_equal((np.asarray(metrics["uplink"]) > 1).sum(axis=1), 1)
    chance = np.asarray(federation.train.size) / np.asarray(federation.train.size).sum()
    np.testing.assert_allclose(frequency, chance, atol=3 * np.sqrt(chance.max() / 400))


@pytest.mark.slow
def test_every_example_has_its_loss_under_every_center(key, model, federation):
    centers = jax.vmap(model.init)(jax.random.split(key, 3))
    actual = example_loss(model, centers, federation.train, batch_size=4)
    assert actual.shape == (*federation.train.index.shape, 3)
    for i in range(8):
        expected = [
            oracle.losses(as_float64(tree.take(centers, s)), *examples_of(federation.train, i)) for s in range(3)
        ]
        size = int(federation.train.size[i])
        np.testing.assert_allclose(actual[i, :size], np.transpose(expected), rtol=1e-5, atol=1e-5)
        assert (actual[i, size:] == 0).all()
    assert present(federation.train).sum() == federation.train.size.sum()


@pytest.mark.slow
def test_fedem_of_one_learner_is_fedavg(key, model, work, federation):
    algorithm, hyper = fedem(model, work, 1), fedem.Hyper(lr=0.1)
    start = first_model(jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server)
    expected = final(starting_at(fedavg(model, work), start), fedavg.Hyper(lr=0.1), federation, key).server
    chex.assert_trees_all_close(
        first_model(final(algorithm, hyper, federation, key).server), expected, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("normalise", ["examples", *slow("mass")])
def test_fedem_equals_numpy(key, model, federation, reference, normalise):  # noqa: F811
    """Half of the clients a round, in batches of which some are of one example."""
    algorithm, hyper = fedem(model, WORK, 2, normalise=normalise), fedem.Hyper(lr=LR)
    start = jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server
    learners = [jax.tree.map(lambda leaf, m=m: np.asarray(leaf[m], np.float64), start) for m in range(2)]
    pi, n_alone = np.full((8, 2), 0.5), 0

    def responsibilities(x, y, pi):
        q = pi[:, None] * np.exp(-np.array([oracle.losses(learner, x, y) for learner in learners]))
        return q / q.sum(axis=0)

    for cohort in reference.rounds(4, None):
        sent, old_pi = [[], []], pi.copy()
        for i, k, _ in cohort:
            pi[i] = responsibilities(*examples_of(federation.train, i), old_pi[i]).mean(axis=1)
            for m, w in enumerate(learners):
                for x, y in reference.batches(i, k):
                    q, n_alone = responsibilities(x, y, old_pi[i])[m], n_alone + (len(y) == 1)
                    step = LR * (1.0 if normalise == "mass" else q.mean())
                    w = oracle.combine(lambda w, g, step=step: w - step * g, w, oracle.gradient(w, x, y, q))
                sent[m].append(w)
        learners = [oracle.average(models, [size for *_, size in cohort]) for models in sent]
    assert n_alone
    state = final(algorithm, hyper, federation, key)
    np.testing.assert_allclose(state.clients, pi, rtol=1e-5, atol=1e-6)
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *learners)
    chex.assert_trees_all_close(state.server, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_equal_learners_of_fedem_leave_the_mixture(key, model, work, federation):
    algorithm, hyper = fedem(model, work, 2), fedem.Hyper(lr=0.1)
    state = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    pi = jnp.tile(jnp.asarray([[0.3, 0.7]]), (8, 1))
    with_equal_learners = algorithm._replace(
        init=lambda *_: state._replace(server=tree.broadcast(first_model(state.server), 2), clients=pi)
    )
    state_after = final(with_equal_learners, hyper, federation, key, n_rounds=1, participation=1.0)
    np.testing.assert_allclose(state_after.clients, pi, rtol=1e-5)


def test_fedem_predicts_the_mixture_of_probabilities(key, model, federation):
    algorithm = fedem(model, Work(1, 8), 2)
    x = np.asarray(federation.test.pool.x)[:5]

    @jax.jit
    def learners_and_prediction(key):
        """The learners, and what the client who has a quarter of the first and three of the second says of x."""
        state = algorithm.init(key, fedem.Hyper(), federation.train)
        state = state._replace(clients=jnp.tile(jnp.asarray([[0.25, 0.75]]), (8, 1)))
        deployed = algorithm.deploy(key, fedem.Hyper(), state, federation.train)
        return state.server, algorithm.predict(tree.take(deployed.params, deployed.row[3]), x)

    learners, predicted = jax.device_get(learners_and_prediction(key))
    predicted = np.exp(predicted)
    logits = [oracle.forward(as_float64(jax.tree.map(lambda leaf, m=m: leaf[m], learners)), x)[0] for m in range(2)]
    probabilities = [np.exp(z) / np.exp(z).sum(axis=1, keepdims=True) for z in logits]
    np.testing.assert_allclose(predicted, 0.25 * probabilities[0] + 0.75 * probabilities[1], rtol=1e-5)
    np.testing.assert_allclose(predicted.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_fedsoft_finds_the_groups(key, model):
    federation = linear_groups(8, 2, examples=60)
    metrics = simulate(fedsoft(model, Work(2, 8)), fedsoft.Hyper(lr=0.2, lam=0.1), federation, key, 6)[1]
    assert metrics["ari"][-1] == 1
    assert metrics["accuracy_macro"][-1] > 0.95


@pytest.mark.slow
def test_fedem_finds_the_groups(key, model):
    federation = linear_groups(8, 2, examples=60)
    metrics = simulate(fedem(model, Work(2, 8), 2), fedem.Hyper(lr=0.2), federation, key, 10)[1]
    assert metrics["ari"][-1] == 1
    assert metrics["accuracy_macro"][-1] > 0.95


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, w: hypcluster(m, w, 0), "n_clusters=0"),
        (lambda m, w: hypcluster(m, w, server_optimizer="lion"), "server_optimizer='lion'"),
        (lambda m, w: fedsoft(m, w, 0), "n_clusters=0"),
        (lambda m, w: fedsoft(m, w, measure_every=0), "measure_every=0"),
        (lambda m, w: fedsoft(m, w, n_selected=0), "n_selected=0"),
        (lambda m, w: fedsoft(m, w, start="mean"), "start='mean'"),
        (lambda m, w: fedem(m, w, 0), "n_learners=0"),
        (lambda m, w: fedem(m, w, weighting="all"), "weighting='all'"),
        (lambda m, w: fedem(m, w, normalise="none"), "normalise='none'"),
    ],
)
def test_what_cannot_be_is_refused(model, work, make, message):
    with pytest.raises(ValueError, match=message):
        make(model, work)
