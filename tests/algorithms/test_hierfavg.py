"""HierFAVG: in NumPy, in the limits of the cloud's rounds and of one edge, and where its clients and floats go."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms.hierfavg import edges_of, hierfavg
from fljax.data.synthetic import linear_groups
from fljax.results.comparison_settings import check_measure
from fljax.run.newcomers import new_client_models
from fljax.run.one_round import split_key
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, one_round, simulate
from tests.algorithms.test_oracles import DROPOUT, LR, MOMENTUM, WORK, assert_models, reference, rounds_of, run  # noqa: F401
from tests.slow import slow, slow_rows

N_EDGES, P = 4, 130
PLACE = (0, 1, 0, 3, 3, 1, 2, 3)
"""The edge of each client: those of edge 1 are absent in the second round, that of edge 2 in the first two."""


@pytest.fixture(scope="module")
def algorithm(model):
    return hierfavg(model, WORK, N_EDGES, edge=PLACE)


def numbers(**more):
    return hierfavg.Hyper(lr=LR, momentum=MOMENTUM, **more)


def with_only(federation, is_there=True):
    """The federation whose other clients are absent in all rounds; everybody is there by default."""
    return federation._replace(there=jnp.broadcast_to(jnp.asarray(is_there), 8))


def fedavg_model(model, federation, key, dropout):
    hyper = fljax.fedavg.Hyper(lr=LR, momentum=MOMENTUM)
    return simulate(fljax.fedavg(model, WORK), hyper, federation, key, 3, participation=6 / 8, dropout=dropout)[
        0
    ].server


@pytest.mark.parametrize(
    ("weighting", "deployed", "place"),
    [("size", "edge", PLACE), *slow_rows(("uniform", "cloud", (3, 1, 1, 0, 1, 1, 0, 1)))],
)
def test_hierfavg_in_numpy(key, model, federation, reference, weighting, deployed, place):  # noqa: F811
    """Three rounds, of which the second is the cloud's; in the second case nobody is at edge 2."""
    edges, w, mass, sent, received, seen = [reference.start] * N_EDGES, reference.start, np.zeros(N_EDGES), [], [], []
    for number, cohort in enumerate(reference.rounds()):
        for j in range(N_EDGES):
            members = [(i, k, size if weighting == "size" else 1.0) for i, k, size in cohort if place[i] == j]
            seen.append(len(members))
            if members:
                trained = [reference.train(edges[j], i, k) for i, k, _ in members]
                edges[j] = oracle.average(trained, [omega for *_, omega in members])
                mass[j] += sum(omega for *_, omega in members)
        is_due = number == 1
        sent.append(P * np.count_nonzero(mass) if is_due else 0)
        received.append(P * N_EDGES if is_due else 0)
        if is_due:
            w = oracle.average([edges[j] for j in np.flatnonzero(mass)], mass[mass > 0].tolist())
            edges, mass = [w] * N_EDGES, np.zeros(N_EDGES)
    assert place != PLACE or seen == [1, 2, 0, 3, 2, 0, 0, 2, 1, 1, 1, 3]  # the premise: some edges had nobody
    method = hierfavg(model, WORK, N_EDGES, edge=place, weighting=weighting, deployed=deployed)
    models, state = run(method, numbers(cloud_every=1.6), with_only(federation), key)  # rounded
    assert_models(models, [edges[j] for j in place] if deployed == "edge" else [w] * 8)
    assert_models(state.server.centers, edges)
    np.testing.assert_array_equal(state.server.kept.weight, mass)
    metrics = rounds_of(method, numbers(cloud_every=2.4), with_only(federation), key)[1]
    np.testing.assert_array_equal(metrics["edge_uplink"], sent)
    np.testing.assert_array_equal(metrics["edge_downlink"], received)
    np.testing.assert_array_equal((metrics["uplink"], metrics["downlink"]), P)


@pytest.mark.slow
def test_a_cloud_in_every_round_is_fedavg_whoever_participates(key, model, federation, algorithm):
    everybody = with_only(federation)
    state = rounds_of(algorithm, numbers(cloud_every=1.0), everybody, key)[0]
    theta = fedavg_model(model, everybody, key, DROPOUT)
    chex.assert_trees_all_close(state.server.kept.model, theta, rtol=1e-5, atol=1e-6)
    for edge_model in rows_of(state.server.centers):
        chex.assert_trees_all_equal(edge_model, state.server.kept.model)


@pytest.mark.slow
@pytest.mark.parametrize("every", [2.0, *slow(1.0, 3.0, np.inf)])
def test_one_edge_is_fedavg_to_the_last_bit(key, model, federation, every):
    everybody = with_only(federation)
    state = rounds_of(hierfavg(model, WORK, 1), numbers(cloud_every=every), everybody, key)[0]
    chex.assert_trees_all_equal(rows_of(state.server.centers)[0], fedavg_model(model, everybody, key, DROPOUT))


def test_without_the_cloud_each_edge_is_fedavg(key, model, federation, algorithm):
    """Of its own clients, as if the others were absent."""
    arguments = numbers(cloud_every=np.inf), with_only(federation), key, 3
    state, metrics = simulate(algorithm, *arguments, participation=6 / 8, dropout=0.0)
    for j, edge_model in enumerate(rows_of(state.server.centers)):
        theta = fedavg_model(model, with_only(federation, np.equal(PLACE, j)), key, 0.0)
        chex.assert_trees_all_close(edge_model, theta, rtol=1e-5, atol=1e-6)
    start = jitted(algorithm.init)(split_key(key).init, numbers(), federation.train).server.kept.model
    chex.assert_trees_all_equal(state.server.kept.model, jax.device_get(start))
    np.testing.assert_array_equal(metrics["edge_uplink"], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("brick", "own"),
    [
        ("+krum", {"n_attackers": 0}),
        ("+median", {}),
        ("+prox", {"mu": 0.5}),
        ("+adam", {"server_lr": 0.1}),
        ("+clip_update", {"clip": 0.3}),
    ],
)
def test_without_the_cloud_each_edge_has_its_bricks(key, model, federation, brick, own):
    """A rule, a server's optimiser or a limit on updates is that of the edge."""
    method, plain = fljax.compose(f"hierfavg{brick}"), fljax.compose(f"fedavg{brick}")
    place = np.repeat(np.arange(2), 4)
    hyper = method.Hyper(lr=LR, momentum=MOMENTUM, cloud_every=np.inf, **own)
    state, _ = simulate(method(model, WORK), hyper, federation, key, 3, participation=6 / 8)
    for j, edge_model in enumerate(rows_of(deployed(method(model, WORK), hyper, state, federation, key))):
        alone = with_only(federation, place == j)
        hyper_alone = plain.Hyper(lr=LR, momentum=MOMENTUM, **own)
        theta = simulate(plain(model, WORK), hyper_alone, alone, key, 3, participation=6 / 8)[0]
        (expected,) = rows_of(deployed(plain(model, WORK), hyper_alone, theta, federation, key))
        chex.assert_trees_all_close(edge_model, expected, rtol=1e-5, atol=1e-6)


def test_a_round_of_nobody_does_not_count(key, federation, algorithm):
    """Nothing changes in it; the next one with participants is the cloud's, where all edges get the only model sent."""
    first = jax.device_get(jitted(algorithm.init)(split_key(key).init, numbers(), federation.train))
    only_edge_1 = with_only(federation, np.equal(PLACE, 1))
    state, sent = first, []
    for number, there in enumerate((only_edge_1, with_only(federation, False), only_edge_1)):
        before = state
        state, metrics = one_round(algorithm, numbers(cloud_every=2.0), there, key, state, number)
        sent.append((int(metrics["edge_uplink"]), int(metrics["edge_downlink"])))
        if number == 1:
            chex.assert_trees_all_equal(state, before)
    assert sent == [(0, 0), (0, 0), (P, N_EDGES * P)]
    for edge_model in rows_of(state.server.centers):
        chex.assert_trees_all_equal(edge_model, jax.device_get(state.server.kept.model))
    assert not np.array_equal(state.server.kept.model["fc1"]["kernel"], first.server.kept.model["fc1"]["kernel"])


@pytest.mark.slow
def test_clients_that_move_with_their_edges_change_nothing(key, model, federation):
    """In full batches, so that the order of a client's examples, which follows its id, does not matter."""
    order = np.array([3, 7, 1, 0, 6, 2, 5, 4])
    data = federation.train
    moved = federation._replace(train=data._replace(index=data.index[order], size=data.size[order]))
    states = []
    for some_federation, place in ((federation, PLACE), (moved, tuple(np.take(PLACE, order).tolist()))):
        method = hierfavg(model, Work(1, 64), N_EDGES, edge=place)
        states.append(simulate(method, numbers(cloud_every=2.0), some_federation, key, 3)[0].server)
    chex.assert_trees_all_close(states[0].centers, states[1].centers, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(states[0].kept, states[1].kept, rtol=1e-5, atol=1e-6)


def test_where_clients_are(key):
    counted = [np.asarray(edges_of(key, 7, 3, assignment)).tolist() for assignment in ("blocks", "turns", "random")]
    assert counted[:2] == [[0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2, 0]]
    assert counted[2] != counted[0]
    assert sorted(counted[2]) == counted[0]
    np.testing.assert_array_equal(edges_of(key, 3, 3, "turns"), [0, 1, 2])
    groups = np.asarray(linear_groups(6, 3).group)
    np.testing.assert_array_equal(edges_of(key, 6, 3, "blocks"), groups)


@pytest.mark.parametrize("choice", ["edge", "cloud"])
def test_new_clients_hold_an_edges_model_or_the_clouds(key, model, federation, choice):
    """Of models that differ; the edge's is that with the least loss on their training data."""
    method = hierfavg(model, WORK, N_EDGES, edge=PLACE, deployed=choice)
    state = jitted(method.init)(key, numbers(), federation.train)
    rows = jax.vmap(model.init)(jax.random.split(key, N_EDGES + 1))
    centers, (w,) = jax.tree.map(lambda leaf: leaf[:N_EDGES], rows), rows_of(jax.tree.map(lambda leaf: leaf[-1:], rows))
    cloud = state.server.kept._replace(model=w)
    state = state._replace(server=state.server._replace(centers=centers, kept=cloud))
    newcomers = federation.train._replace(index=federation.train.index[:3], size=federation.train.size[:3])
    # Fewer than there are edges, and not as many as `edge` has entries.
    models = new_client_models(method, numbers(), state, federation._replace(train=newcomers, there=None), key)
    if choice == "cloud":
        expected = [w] * 3
    else:
        pool, index, size = federation.train.pool, np.asarray(newcomers.index), np.asarray(newcomers.size)
        own = [
            (np.asarray(pool.x)[rows[:n]], np.asarray(pool.y)[rows[:n]]) for rows, n in zip(index, size, strict=True)
        ]
        expected = [min(rows_of(centers), key=lambda theta: oracle.training_loss(theta, *data)) for data in own]
    held = rows_of(jax.tree.map(lambda leaf: leaf[models.row], models.params))
    for actual, model_of_client in zip(held, expected, strict=True):
        chex.assert_trees_all_equal(actual, model_of_client)


@pytest.mark.slow
def test_what_edges_send_can_be_compared_and_what_no_edge_sends_cannot(key, model, federation, algorithm):
    run = dict(federation=federation, key=key, n_rounds=2)
    hierarchical = dict(algorithm=algorithm, hyper=numbers(), **run)
    check_measure("edge_megabytes_up", {"hierfavg": hierarchical})
    flat = dict(algorithm=fljax.fedavg(model, WORK), hyper=fljax.fedavg.Hyper(), **run)
    with pytest.raises(ValueError, match=r"fedavg has no such metric; choose one of .*megabytes_up, megabytes_down$"):
        check_measure("edge_megabytes_up", {"hierfavg": hierarchical, "fedavg": flat})


def test_what_is_refused(key, model, work, federation):
    for choices, message in (
        ({"n_edges": 0}, "n_edges=0 is not positive"),
        (
            {"n_edges": 3, "edge": (0, 1, 2, 3, 0, 0, 0, 0)},
            "edge has an entry 3; with n_edges=3 give whole numbers 0 to 2",
        ),
        ({"edge": (0, 1, 0.5)}, "edge has an entry 0.5; with n_edges=2"),
        ({"edge": 1}, "edge=1 is not a tuple; give the edge of each client, such as"),
        ({"assignment": "nearest"}, "assignment='nearest' is unknown; choose one of 'blocks', 'turns', 'random'"),
    ):
        with pytest.raises(ValueError, match=message):
            hierfavg(model, work, **choices)
    for choices, message in (
        ({"n_edges": 9}, "n_edges=9, but the data has 8 clients; choose n_edges <= 8"),
        ({"edge": (0, 1, 0)}, "edge has 3 entries, but the data has 8 clients; give one per client"),
    ):
        with pytest.raises(ValueError, match=message):
            hierfavg(model, work, **choices).init(key, hierfavg.Hyper(), federation.train)


def rows_of(stacked):
    """The models of a stack, as NumPy."""
    n = len(jax.tree.leaves(stacked)[0])
    return [jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i]), stacked) for i in range(n)]


def deployed(method, hyper, state, federation, key):
    """The models that clients are tested with, each once."""
    return jitted(method.deploy)(split_key(key).deploy, hyper, state, federation.train).params
