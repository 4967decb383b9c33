"""Rounds without a server: graphs and mixing matrices by closed forms, methods by NumPy in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

import fljax
from fljax.algorithms.dpsgd import dpsgd
from fljax.algorithms.pgossip import pgossip
from fljax.rounds.cohort import everyone
from fljax.rounds.gossip import (
    consensus_distance,
    contacted,
    graph_of,
    metropolis,
    neighbours_mean,
    permuted,
    spectral_gap,
)
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, assert_models, assert_sent, reference, rounds_of, run  # noqa: F401
from tests.slow import slow, slow_rows

weights, gap_of = jax.jit(metropolis), jax.jit(spectral_gap)


@pytest.mark.parametrize(
    ("kind", "n", "degree", "n_neighbours"),
    [
        ("complete", 7, 4, 6),
        ("ring", 8, 4, 2),
        ("torus", 12, 4, 4),
        ("regular", 20, 3, 3),
        ("regular", 15, 6, 6),
        ("regular", 6, 5, 5),
        ("pairs", 10, 4, 1),
    ],
)
def test_graphs_are_symmetric_and_everyone_has_as_many_neighbours(kind, n, degree, n_neighbours):
    graph = graph_of(kind, n, degree)
    np.testing.assert_array_equal(graph, graph.T)
    assert not graph.diagonal().any()
    np.testing.assert_array_equal(graph.sum(axis=1), n_neighbours)
    assert connected_components(graph)[0] == (n // 2 if kind == "pairs" else 1)


def test_small_and_odd_graphs():
    assert graph_of("pairs", 7).sum(axis=1).tolist().count(0) == 1
    for kind in ("complete", "ring", "torus", "pairs"):
        assert graph_of(kind, 1).shape == (1, 1)
    np.testing.assert_array_equal(graph_of("torus", 7), graph_of("ring", 7))  # a prime number has one row
    assert (graph_of("regular", 20, 4, seed=1) != graph_of("regular", 20, 4, seed=2)).any()
    for n, degree in ((7, 3), (5, 5), (4, 9)):
        with pytest.raises(ValueError, match=f"degree={degree}: for a regular graph of {n} clients"):
            graph_of("regular", n, degree)
    np.testing.assert_array_equal(np.asarray(permuted(jax.random.key(1), jnp.asarray(graph_of("ring", 6)))).sum(1), 2)


def test_mixing_matrices_are_doubly_stochastic_whoever_is_there():
    rng = np.random.default_rng(0)
    for _ in range(5):
        graph = np.triu(rng.random((9, 9)) < 0.4, 1)
        graph, is_active = graph | graph.T, rng.random(9) < 0.7
        W = np.asarray(weights(graph, is_active))
        np.testing.assert_allclose(W, W.T)
        np.testing.assert_allclose(W.sum(axis=1), 1, rtol=1e-6)
        assert (W >= 0).all()
        np.testing.assert_array_equal(W[~is_active], np.eye(9)[~is_active])
        eigenvalues = np.linalg.eigvalsh(W[is_active][:, is_active].astype(float))
        np.testing.assert_allclose(gap_of(W, is_active), 1 - np.sort(np.abs(eigenvalues))[-2], atol=1e-6)


def test_spectral_gaps_in_closed_form():
    def gap(kind, n):
        """Of n clients that are there, among 16."""
        graph, is_active = np.zeros((16, 16), bool), np.arange(16) < n
        graph[:n, :n] = graph_of(kind, n)
        return float(gap_of(weights(graph, is_active), is_active))

    assert gap("complete", 8) == pytest.approx(1, abs=1e-6)
    assert gap("ring", 10) == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 10)), abs=1e-6)
    assert gap("torus", 16) == pytest.approx(2 / 5 * (1 - np.cos(2 * np.pi / 4)), abs=1e-6)
    assert gap("pairs", 6) == pytest.approx(0, abs=1e-6)
    only_client_2, no_clients = np.arange(16) == 2, np.zeros(16, bool)
    assert float(gap_of(np.eye(16, dtype=np.float32), only_client_2)) == pytest.approx(1)
    assert float(gap_of(np.eye(16, dtype=np.float32), no_clients)) == 1


def test_consensus_distance_is_that_of_those_who_are_there():
    rng = np.random.default_rng(0)
    models = {"a": rng.normal(size=(5, 2, 3)).astype(np.float32), "b": rng.normal(size=(5, 4)).astype(np.float32)}
    is_active = np.array([True, True, False, True, True])
    models["b"][2] = np.nan
    active_models = np.concatenate([models["a"].reshape(5, -1), models["b"]], axis=1)[is_active].astype(float)
    expected = np.sqrt(np.square(active_models - active_models.mean(axis=0)).sum(axis=1).mean())
    np.testing.assert_allclose(jax.jit(consensus_distance)(models, is_active), expected, rtol=1e-6)
    statistics = {"batch_stats": {"a": {"mean": 100 * rng.normal(size=(5, 2)).astype(np.float32)}}}  # are not compared
    np.testing.assert_allclose(jax.jit(consensus_distance)(models | statistics, is_active), expected, rtol=1e-6)


def mixing_matrix(graph, ids):
    """Metropolis' weights among the participants ``ids``, one pair after another."""
    W = np.eye(len(ids))
    degree = [sum(graph[i, j] for j in ids) for i in ids]
    for a, i in enumerate(ids):
        for b, j in enumerate(ids):
            if graph[i, j]:
                W[a, b] = 1 / (1 + max(degree[a], degree[b]))
                W[a, a] -= W[a, b]
    return W


@pytest.mark.parametrize("order", ["after", "beside"])
def test_dpsgd(key, model, federation, reference, order):  # noqa: F811
    graph, models, sent = graph_of("ring", 8), reference.everyone(), []
    for cohort in reference.rounds():
        ids = [i for i, *_ in cohort]
        sent.append({i: 130 * graph[i, ids].sum() for i in ids})
        trained = {i: reference.train(models[i], i, k) for i, k, _ in cohort}
        W, next_models = mixing_matrix(graph, ids), {}
        for a, i in enumerate(ids):
            mixed_model = oracle.average([trained[j] if order == "after" else models[j] for j in ids], W[a])
            step = oracle.combine(np.subtract, trained[i], models[i])
            next_models[i] = mixed_model if order == "after" else oracle.combine(np.add, mixed_model, step)
        for i in ids:
            models[i] = next_models[i]
    algorithm, hyper = dpsgd(model, WORK, mixing=order), fljax.dpsgd.Hyper(lr=LR, momentum=MOMENTUM)
    assert_models(run(algorithm, hyper, federation, key)[0], models)
    assert_sent(rounds_of(algorithm, hyper, federation, key)[1], "uplink", sent)


@pytest.mark.slow
def test_a_graph_that_varies_pairs_others_in_every_round(key, model, federation):
    """Of clients that learn nothing, the two of each pair of neighbours have equal models after a round."""
    algorithm = dpsgd(model, Work(1, 64), graph="pairs", time_varying=True)
    hyper, cohort = fljax.dpsgd.Hyper(lr=1e-12), everyone(key, jnp.int32(0), federation.train)
    models = jax.jit(jax.vmap(model.init))(jax.random.split(key, 8))
    state = jitted(algorithm.init)(key, hyper, federation.train)._replace(clients=models)
    pairs = set()
    for k in jax.random.split(key, 4):
        bias = np.asarray(jitted(algorithm.round)(k, hyper, state, cohort)[0].clients["fc1"]["kernel"]).reshape(8, -1)
        is_pair = np.isclose(bias[:, None], bias[None], atol=1e-6).all(-1) & ~np.eye(8, dtype=bool)
        assert (is_pair.sum(0) == 1).all()
        pairs.add(tuple(is_pair.argmax(0).tolist()))
    assert len(pairs) > 1


links = jax.jit(contacted, static_argnums=4)


def test_contacts_are_so_many_of_the_neighbours_that_are_there(key):
    """A link has an end that drew it; which ones are drawn follows the ids, not the order of the clients."""
    ids, graph = np.array([9, 4, 0, 7, 3, 8, 2, 5]), graph_of("ring", 8) | graph_of("torus", 8)
    is_active = np.arange(8) != 3
    order = np.array([5, 1, 7, 0, 3, 2, 6, 4])
    permuted_graph = graph[order[:, None], order[None]]
    for n_contacts in (1, 2, 20):
        drawn = np.asarray(links(key, ids, graph, is_active, n_contacts))
        there = graph & is_active[:, None] & is_active[None]
        np.testing.assert_array_equal(drawn, drawn.T)
        assert (drawn <= there).all()
        assert (drawn.sum(axis=1) >= np.minimum(n_contacts, there.sum(axis=1))).all()
        assert drawn.sum() <= 2 * n_contacts * is_active.sum()
        turned = np.asarray(links(key, ids[order], permuted_graph, is_active[order], n_contacts))
        np.testing.assert_array_equal(turned, drawn[order[:, None], order[None]])
    np.testing.assert_array_equal(drawn, there)  # of at most four neighbours, 20 are all


def test_clients_draw_their_contacts_independently_and_equally_often(key):
    """On a ring of four; within four standard errors."""
    ids, is_active, n = np.arange(4), np.ones(4, bool), 2000
    draw = jax.jit(jax.vmap(lambda k: contacted(k, ids, graph_of("ring", 4), is_active, 1)))
    is_link = np.asarray(draw(jax.random.split(key, n)))

    def assert_share(happened, share):
        assert abs(happened.mean() - share) < 4 * np.sqrt(share * (1 - share) / n)

    for i in range(4):  # a link is missing if both of its ends draw their other neighbour
        assert_share(is_link[:, i, (i + 1) % 4], 3 / 4)
    for i in range(2):  # and both opposite links, if all four draw so
        assert_share(~is_link[:, i, i + 1] & ~is_link[:, i + 2, (i + 3) % 4], 1 / 16)


@pytest.mark.slow
@pytest.mark.parametrize("mixing", ["after", *slow("replace")])
def test_dpsgd_by_contacts(key, model, federation, reference, mixing):  # noqa: F811
    """Of the links that the library draws, each of which carries two models."""
    models, sent, gaps = reference.everyone(), [], []
    for number, cohort in enumerate(reference.rounds()):
        ids, n = np.array([i for i, *_ in cohort]), len(cohort)
        round_key = jax.random.fold_in(reference.keys.server, number)
        drawn = np.asarray(contacted(round_key, ids, ~np.eye(n, dtype=bool), np.ones(n, bool), 1))
        gaps.append(gap_of(weights(drawn, np.ones(n, bool)), np.ones(n, bool)))
        sent.append(dict(zip(ids.tolist(), (130.0 * drawn.sum(axis=1)).tolist(), strict=True)))
        trained = {i: reference.train(models[i], i, k) for i, k, _ in cohort}
        for a, i in enumerate(ids):
            row = mixing_matrix(drawn, range(n))[a] if mixing == "after" else drawn[a] / drawn[a].sum()
            models[i] = oracle.average([trained[j] for j in ids[row > 0].tolist()], row[row > 0].tolist())
    algorithm, hyper = (
        dpsgd(model, WORK, graph="complete", contacts=1, mixing=mixing),
        dpsgd.Hyper(lr=LR, momentum=MOMENTUM),
    )
    assert_models(run(algorithm, hyper, federation, key)[0], models)
    metrics = rounds_of(algorithm, hyper, federation, key)[1]
    assert_sent(metrics, "uplink", sent)
    np.testing.assert_allclose(metrics["spectral_gap"], gaps, atol=1e-5)


def test_pairs_that_replace_models_swap_them(key, model, federation):
    """No model is lost: after a round, clients that learn nothing hold the same eight, each that of another client."""
    algorithm = dpsgd(model, Work(1, 64), graph="pairs", time_varying=True, mixing="replace")
    hyper, cohort = dpsgd.Hyper(lr=1e-12), everyone(key, jnp.int32(0), federation.train)
    models = jax.jit(jax.vmap(model.init))(jax.random.split(key, 8))
    state = jitted(algorithm.init)(key, hyper, federation.train)._replace(clients=models)
    after, metrics = jitted(algorithm.round)(key, hyper, state, cohort)
    before, held = (np.asarray(m["fc1"]["kernel"]).reshape(8, -1) for m in (models, after.clients))
    holder = np.isclose(held[:, None], before[None], atol=1e-6).all(-1)
    np.testing.assert_array_equal(holder.sum(0), 1)
    np.testing.assert_array_equal(holder.sum(1), 1)
    assert not holder.diagonal().any()
    np.testing.assert_array_equal(metrics["uplink"], 130)


@pytest.mark.parametrize(("lam", "contacts"), [(0.0, None), (0.7, None), *slow_rows((0.7, 1))])
def test_pgossip_and_its_limit_of_training_alone(key, model, federation, reference, lam, contacts):  # noqa: F811
    graph, models = graph_of("torus", 8), reference.everyone()
    for number, cohort in enumerate(reference.rounds()):
        ids, old_models = [i for i, *_ in cohort], [dict(params) for params in models]
        adjacent = graph[np.ix_(ids, ids)]
        if contacts is not None:
            round_key = jax.random.fold_in(reference.keys.server, number)
            adjacent = np.asarray(contacted(round_key, np.array(ids), adjacent, np.ones(len(ids), bool), contacts))
        for a, (i, k, _) in enumerate(cohort):
            neighbours = [ids[b] for b in np.flatnonzero(adjacent[a])]
            m = (
                oracle.average([old_models[j] for j in neighbours], [1.0] * len(neighbours))
                if neighbours
                else old_models[i]
            )
            models[i] = reference.train(old_models[i], i, k, mu=lam, anchor=m)
    algorithm = pgossip(model, WORK, graph="torus", contacts=contacts)
    hyper = fljax.pgossip.Hyper(lr=LR, momentum=MOMENTUM, lam=lam)
    assert_models(run(algorithm, hyper, federation, key)[0], models)


@pytest.mark.slow
def test_a_complete_graph_with_everyone_is_fedavg_of_equal_weights(key, model, federation):
    hyper = fljax.dpsgd.Hyper(lr=LR, momentum=MOMENTUM)
    state, metrics = simulate(dpsgd(model, WORK, graph="complete"), hyper, federation, key, 3)
    server, _ = simulate(fljax.fedavg(model, WORK, weighting="uniform"), hyper, federation, key, 3)
    for i in range(8):
        chex.assert_trees_all_close(jax.tree.map(lambda leaf, i=i: leaf[i], state.clients), server.server, atol=1e-5)
    np.testing.assert_allclose(metrics["consensus_distance"], 0, atol=1e-5)
    np.testing.assert_allclose(metrics["spectral_gap"], 1, atol=1e-6)


def test_neighbours_mean_is_ones_own_where_there_are_none():
    matrix = np.asarray(jax.jit(neighbours_mean)(graph_of("ring", 4), np.array([True, False, True, False])))
    np.testing.assert_allclose(matrix, [[1, 0, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 1, 0], [0.5, 0, 0.5, 0]])
