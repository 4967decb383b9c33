"""Limit laws: where one method must equal another."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedprox import fedprox
from fljax.algorithms.fedsgd import fedsgd
from fljax.algorithms.fesem import fesem, reseeded
from fljax.algorithms.fesem_ma import fesem_ma
from fljax.algorithms.ifca import ifca
from fljax.algorithms.standalone import standalone
from fljax.client import proximal, training_loss
from fljax.data.synthetic import linear_groups
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import as_traced, split_key
from fljax.types import Batch, State, Work
from tests import oracle
from tests.algorithms.round_by_round import jitted, one_round, simulate
from tests.algorithms.table import CASES
from tests.oracle import as_float64, rows_of
from tests.slow import slow, slow_rows

ROUNDS = 3


def server_of(algorithm, hyper, federation, key, n_rounds=ROUNDS, **options):
    return simulate(algorithm, hyper, federation, key, n_rounds, **options)[0].server


@pytest.mark.slow
def test_fedprox_without_pull_is_fedavg_exactly(key, model, work, federation):
    prox = server_of(fedprox(model, work), fedprox.Hyper(lr=0.1, mu=0.0), federation, key)
    chex.assert_trees_all_equal(prox, server_of(fedavg(model, work), fedavg.Hyper(lr=0.1), federation, key))


def test_the_pull_of_fedprox_holds_clients_back(key, model, work, federation):
    start = model.init(split_key(key).init)

    def squared_distance(mu):
        theta = server_of(fedprox(model, work), fedprox.Hyper(lr=0.1, mu=mu), federation, key, 1)
        difference = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), theta, start)
        return sum(np.square(leaf).sum() for leaf in jax.tree.leaves(difference))

    distances = [squared_distance(mu) for mu in (0.0, 0.5, 2.0, 5.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.7 * distances[0]


def test_fedavg_of_one_full_batch_step_is_fedsgd(key, model, federation):
    actual = server_of(fedavg(model, Work(1, 64)), fedavg.Hyper(lr=0.3), federation, key)
    expected = server_of(fedsgd(model, Work(1, 8)), fedsgd.Hyper(lr=0.3), federation, key)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_clients_without_a_whole_batch_send_what_they_received(key, model, federation):
    """With the largest clients' size as batch size, they alone take full-batch steps; the others count unchanged."""
    size = np.asarray(federation.train.size)
    work, pool = Work(2, int(size.max()), drop_last=True), federation.train.pool
    theta = as_float64(model.init(split_key(key).init))
    models = []
    for i, n in enumerate(size):
        rows = rows_of(federation.train, i)
        x, y = np.asarray(pool.x, np.float64)[rows], np.asarray(pool.y)[rows]
        models.append(oracle.local_sgd(theta, [(x, y)] * 2, 0.3) if n == size.max() else theta)
    assert (size < size.max()).any()
    expected = jax.tree.map(lambda *leaves: np.average(leaves, axis=0, weights=size), *models)
    actual = server_of(fedavg(model, work), fedavg.Hyper(lr=0.3), federation, key, 1)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


def test_fedsgd_on_everyone_is_gradient_descent_on_the_pooled_data(key, model, federation):
    theta = as_float64(model.init(split_key(key).init))
    data = federation.train
    rows = np.concatenate([rows_of(data, i) for i in range(8)])
    x, y = np.asarray(data.pool.x, np.float64)[rows], np.asarray(data.pool.y)[rows]
    theta = oracle.local_sgd(theta, [(x, y)] * ROUNDS, 0.3)
    chex.assert_trees_all_close(
        server_of(fedsgd(model, Work(1, 8)), fedsgd.Hyper(lr=0.3), federation, key), theta, rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
def test_ifca_with_one_cluster_is_uniform_fedavg(key, model, work, federation):
    actual = server_of(ifca(model, work, 1), ifca.Hyper(lr=0.1), federation, key, participation=0.5)
    # IFCA draws its model from a split of the initial key, so FedAvg starts from that model.
    averaging = fedavg(model, work, weighting="uniform")
    start = tree.take(
        jitted(ifca(model, work, 1).init)(split_key(key).init, ifca.Hyper(lr=0.1), federation.train).server.centers, 0
    )
    averaging_from_start = averaging._replace(init=lambda *_: State(start, {}))
    expected = server_of(averaging_from_start, fedavg.Hyper(lr=0.1), federation, key, participation=0.5)
    chex.assert_trees_all_close(tree.take(actual.centers, 0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_ifca_with_a_shared_layer_averages_it_over_everybody(key, model, work, federation):
    shared_algorithm, plain_algorithm = ifca(model, work, 3, n_shared=1), ifca(model, work, 3)
    hyper, cohort = as_traced(ifca.Hyper(lr=0.1)), sample_cohort(key, jnp.int32(0), federation, 8, None)
    state = jitted(shared_algorithm.init)(key, hyper, federation.train)
    next_state, metrics = jitted(shared_algorithm.round)(key, hyper, state, cohort)
    next_plain_state, _ = jitted(plain_algorithm.round)(key, hyper, state, cohort)
    base, members = next_state.server.centers["fc1"]["kernel"], np.bincount(metrics["label"], minlength=3)
    assert (members > 0).sum() > 1
    np.testing.assert_array_equal(state.server.centers["fc1"]["kernel"][0], state.server.centers["fc1"]["kernel"][2])
    np.testing.assert_array_equal(base[0], base[2])
    mean = np.average(
        np.asarray(next_plain_state.server.centers["fc1"]["kernel"]), axis=0, weights=members
    )  # of the clusters' means
    np.testing.assert_allclose(base[0], mean, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(next_state.server.centers["fc2"], next_plain_state.server.centers["fc2"], rtol=1e-6)


@pytest.mark.parametrize("n_shared", [-1, 2])
def test_ifca_leaves_the_clusters_a_layer(model, work, n_shared):
    with pytest.raises(ValueError, match=f"n_shared={n_shared} of 2 layers"):
        ifca(model, work, n_shared=n_shared)


def test_fedprox_whose_pull_undoes_a_step_returns_to_the_servers_model(key, model, work, federation):
    """eta mu = 1 and no gradient of the loss: w - eta mu (w - theta) = theta in one step."""
    theta = model.init(key)
    shifted_theta = jax.tree.map(lambda leaf: leaf + 1.0, theta)
    batch = Batch(federation.train.pool.x[:4], federation.train.pool.y[:4], jnp.zeros(4))  # examples of weight 0
    gradient = jax.jit(jax.grad(lambda w: proximal(training_loss(model), 4.0)(w, batch, key, theta)[0]))(shifted_theta)
    chex.assert_trees_all_close(
        tree.subtract(shifted_theta, jax.tree.map(lambda g: 0.25 * g, gradient)), theta, atol=1e-6
    )


@pytest.mark.slow
def test_ifca_of_gradients_with_one_cluster_and_equal_sizes_is_fedsgd(key, model):
    federation = linear_groups(6, 2, examples=24)
    algorithm = ifca(model, Work(1, 8), 1, averaging="gradient")
    start = tree.take(
        jitted(algorithm.init)(split_key(key).init, ifca.Hyper(lr=0.3), federation.train).server.centers, 0
    )
    sgd = fedsgd(model, Work(1, 8))
    sgd = sgd._replace(init=lambda *_: State(start, {}))
    chex.assert_trees_all_close(
        tree.take(server_of(algorithm, ifca.Hyper(lr=0.3), federation, key).centers, 0),
        server_of(sgd, fedsgd.Hyper(lr=0.3), federation, key),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("weighting", "n_shared"), [("uniform", 0), ("size", 1)])
def test_ifca_of_gradients_steps_by_what_members_send_over_all(key, model, federation, weighting, n_shared):
    """theta_j - eta sum_{i in j} omega_i g_i / sum_i omega_i, by float64 gradients of each client's mean loss.

    Of layers that all have in common the sum is over everyone.
    """
    algorithm = ifca(model, Work(1, 8), 2, averaging="gradient", weighting=weighting, n_shared=n_shared)
    hyper, shared = ifca.Hyper(lr=0.3), model.layers[:n_shared]
    state = jitted(algorithm.init)(split_key(key).init, hyper, federation.train)
    next_state, metrics = simulate(algorithm, hyper, federation, key, 1)
    label, size = np.asarray(metrics["label"][0]), np.asarray(federation.train.size, np.float64)
    weight = size if weighting == "size" else np.ones(8)
    assert set(label) == {0, 1}
    start = [as_float64(tree.take(state.server.centers, j)) for j in range(2)]
    expected = [dict(theta) for theta in start]
    for i in range(8):
        rows = np.asarray(federation.train.index)[i, : int(size[i])]
        x, y = np.asarray(federation.train.pool.x, np.float64)[rows], np.asarray(federation.train.pool.y)[rows]
        gradient, step = oracle.gradient(start[label[i]], x, y), 0.3 * weight[i] / weight.sum()
        for j, name in itertools.product(range(2), gradient):
            if j == label[i] or name in shared:
                stepped_layer = jax.tree.map(lambda w, g, s=step: w - s * g, expected[j][name], gradient[name])
                expected[j][name] = stepped_layer
    for j in range(2):
        chex.assert_trees_all_close(tree.take(next_state.server.centers, j), expected[j], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.4, *slow(0.0)])
def test_fesem_with_one_center_is_uniform_fedprox_from_its_first_center(key, model, work, federation, mu):
    algorithm, hyper = fesem(model, work, 1, proximal_weight="uniform"), fesem.Hyper(lr=0.1, mu=mu)
    first_server = jitted(algorithm.init)(split_key(key).init, hyper, federation.train).server
    prox = fedprox(model, work, weighting="uniform")
    start = tree.take(first_server.centers, 0)
    prox_from_start = prox._replace(init=lambda *_: State(start, {}))
    chex.assert_trees_all_close(
        tree.take(server_of(algorithm, hyper, federation, key).centers, 0),
        server_of(prox_from_start, fedprox.Hyper(lr=0.1, mu=mu), federation, key),
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.slow
def test_fesem_with_a_center_each_is_everyone_alone(key, model, work, federation):
    algorithm, hyper = fesem(model, work, 8), as_traced(fesem.Hyper(lr=0.1, mu=0.0))
    state = jitted(algorithm.init)(key, hyper, federation.train)
    cohort = sample_cohort(key, jnp.int32(0), federation, 8, None)
    standalone_state = State({}, tree.take(state.server.centers, state.server.label))
    # A small step, so that no model drifts nearer to another's center: the condition of this law.
    small_step = hyper.replace(lr=jnp.float32(1e-3))
    for _ in range(3):
        state, metrics = jitted(algorithm.round)(key, small_step, state, cohort)
        assert metrics["n_clusters"] == 8
        standalone_state, _ = jitted(standalone(model, work).round)(
            key, as_traced(standalone.Hyper(lr=1e-3)), standalone_state, cohort
        )
        centers, label, models = state.server.centers, state.server.label, state.server.kept.models
        chex.assert_trees_all_close(tree.take(centers, label), models, rtol=1e-6, atol=1e-7)
        chex.assert_trees_all_close(models, standalone_state.clients, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster_on", "empty"),
    [
        ("model", "keep"),
        *slow_rows(("last_kernel", "reseed"), ("model", "reseed"), ("last_kernel", "keep")),
    ],
)
def test_fesem_e_and_m_steps_are_numpys(key, model, work, federation, cluster_on, empty):
    def points(models):
        rows = {"kernel": models["fc2"]["kernel"]} if cluster_on == "last_kernel" else models
        return np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(rows)], 1, dtype=float)

    algorithm, hyper = fesem(model, work, 4, cluster_on=cluster_on, empty=empty), as_traced(fesem.Hyper(lr=0.3))
    state = jitted(algorithm.init)(key, hyper, federation.train)
    # The second center and the last are so far away that nobody is near them.
    server = jax.device_get(state.server)
    shifts = np.float32([0, 100, 0, 100])
    shifted_centers = jax.tree.map(lambda leaf: leaf + shifts.reshape(4, *[1] * (leaf.ndim - 1)), server.centers)
    state = state._replace(server=server._replace(centers=shifted_centers, label=2 * (server.label // 2)))
    for round in range(3):
        old_centers = jax.device_get(state.server.centers)
        state, metrics = one_round(algorithm, hyper, federation, key, state, round)
        centers, label, models = jax.device_get((state.server.centers, state.server.label, state.server.kept.models))
        distance = np.square(points(models)[:, None] - points(old_centers)[None]).sum(axis=-1)
        np.testing.assert_array_equal(label, distance.argmin(axis=1))  # after E each client is nearest to its center
        np.testing.assert_allclose(metrics["distance"], distance.min(axis=1).sum(), rtol=1e-4)
        farthest = iter(np.argsort(-distance.min(axis=1)))
        for k in range(4):
            members = np.flatnonzero(np.asarray(label) == k)
            if members.size:
                expected = jax.tree.map(lambda leaf, rows=members: leaf[rows].mean(axis=0), models)
            else:
                source, row = (models, next(farthest)) if empty == "reseed" else (old_centers, k)
                expected = jax.tree.map(lambda leaf, row=row: leaf[row], source)
            center = jax.tree.map(lambda leaf, k=k: leaf[k], centers)
            chex.assert_trees_all_close(center, expected, rtol=1e-5, atol=1e-6)
        if round == 0:
            assert set(np.asarray(label).tolist()) == {0, 2}


def test_empty_centers_move_to_different_clients():
    """The first to the client farthest from its center, the second to the next; more than there are, to the last."""
    old, reseed = {"fc": -np.ones((4, 1), np.float32)}, jax.jit(reseeded)
    models = {"fc": np.float32([[0], [10], [20], [30]])}
    reseeded_centers = reseed(old, models, np.array([1, 1, 1, 1]), np.float32([0.5, 3, 1, 2]))
    np.testing.assert_array_equal(reseeded_centers["fc"][:, 0], [10.0, -1.0, 30.0, 20.0])
    two_models = {"fc": models["fc"][:2]}
    centers_of_two = reseed(old, two_models, np.array([0, 0]), np.float32([1, 2]))
    np.testing.assert_array_equal(centers_of_two["fc"][:, 0], [-1.0, 10.0, 0.0, 0.0])


@pytest.mark.slow
def test_fesem_reports_its_objective(key, model, work, federation):
    """Objective (5) in NumPy, over all clients, those that are absent with the models that they uploaded last."""
    hyper, n_examples = as_traced(fesem.Hyper(lr=0.2, mu=0.6)), np.asarray(federation.train.size, float)
    algorithm = fesem(model, work, 2, objective=True)
    state = jitted(algorithm.init)(key, hyper, federation.train)
    step = jax.jit(algorithm.round)
    for round in range(3):
        server = state.server
        cohort = sample_cohort(key, jnp.int32(round), federation, 4, 0.3)
        state, metrics = step(key, hyper, state, cohort)
        models = state.server.kept.models
        differences = np.asarray(
            tree.flatten(models) - tree.flatten(tree.take(server.centers, server.label)), np.float64
        )
        loss = 0.0
        for i, n in enumerate(n_examples.astype(int)):
            rows = np.asarray(federation.train.index)[i, :n]
            x, y = np.asarray(federation.train.pool.x, np.float64)[rows], np.asarray(federation.train.pool.y)[rows]
            loss += n / n_examples.sum() * oracle.losses(as_float64(tree.take(models, i)), x, y).mean()
        np.testing.assert_allclose(metrics["objective"], loss + 0.3 / 8 * np.square(differences).sum(), rtol=1e-5)
    assert "objective" not in jax.eval_shape(fesem(model, work, 2).round, key, hyper, _without_risk(state), cohort)[1]


def _without_risk(state):
    return state._replace(server=state.server._replace(kept=state.server.kept._replace(risk=())))


@pytest.mark.slow
@pytest.mark.parametrize("make", [fesem, *slow(fesem_ma)])
def test_fesems_models_before_the_first_round_are_counted_in_it(key, model, work, federation, make):
    hyper = fesem.Hyper(lr=0.1)
    metrics = simulate(make(model, work, 2), hyper, federation, key, 3, evaluate_every=3)[1]
    n_parameters = tree.size(model.init(key))
    np.testing.assert_array_equal(metrics["uplink"][:, 0], [2 * n_parameters, n_parameters, n_parameters])
    np.testing.assert_array_equal(metrics["downlink"], np.full_like(metrics["uplink"], n_parameters))


@pytest.mark.slow
def test_fesem_e_and_m_steps_never_raise_the_objective(key, model, work, federation):
    def objective(centers, models, label):
        own_centers = tree.take(centers, label)
        return float(
            sum(jnp.square(a - b).sum() for a, b in zip(*map(jax.tree.leaves, (models, own_centers)), strict=True))
        )

    algorithm, hyper = fesem(model, work, 3), as_traced(fesem.Hyper(lr=0.3))
    state = jitted(algorithm.init)(key, hyper, federation.train)
    step = jax.jit(lambda s, r: algorithm.round(key, hyper, s, sample_cohort(key, r, federation, 8, None))[0])
    for round in range(6):
        old_server, state = state.server, step(state, jnp.int32(round))
        new_server = state.server
        objective_before = objective(old_server.centers, new_server.kept.models, old_server.label)
        objective_after = objective(new_server.centers, new_server.kept.models, new_server.label)
        assert objective_after <= objective_before * (1 + 1e-6)


@pytest.mark.slow
def test_fesem_at_its_start_is_a_fixed_point_of_k_means(key, model, work, federation):
    algorithm = fesem(model, work, 3)
    server = jitted(algorithm.init)(key, as_traced(fesem.Hyper(lr=0.3)), federation.train).server
    models, centers = np.asarray(tree.flatten(server.kept.models)), np.asarray(tree.flatten(server.centers))
    distance = np.square(models[:, None] - centers[None]).sum(axis=-1)
    np.testing.assert_array_equal(distance.argmin(axis=1), server.label)
    for k in range(3):
        np.testing.assert_allclose(centers[k], models[np.asarray(server.label) == k].mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_standalone_clients_do_not_know_of_each_other(key, model, work, federation):
    state, _ = simulate(standalone(model, work), standalone.Hyper(lr=0.1), federation, key, ROUNDS)
    rows = federation.train.index[0, : int(federation.train.size[0])]
    x = federation.train.pool.x.at[rows].add(1.0)
    changed_federation = federation._replace(train=federation.train._replace(pool=federation.train.pool._replace(x=x)))
    changed_state, _ = simulate(standalone(model, work), standalone.Hyper(lr=0.1), changed_federation, key, ROUNDS)
    other_clients = jnp.arange(1, 8)
    chex.assert_trees_all_equal(
        tree.take(state.clients, other_clients), tree.take(changed_state.clients, other_clients)
    )
    assert not np.array_equal(state.clients["fc1"]["kernel"][0], changed_state.clients["fc1"]["kernel"][0])


def test_fedavg_with_no_learning_rate_stays(key, model, work, federation):
    actual = server_of(fedavg(model, work), fedavg.Hyper(lr=1e-30), federation, key)
    chex.assert_trees_all_close(actual, model.init(split_key(key).init), rtol=1e-6, atol=1e-20)


@pytest.mark.slow
def test_identical_clients_average_to_a_single_run(key, model):
    federation = linear_groups(4, 1, examples=24)
    identical_data = federation.train._replace(index=jnp.tile(federation.train.index[:1], (4, 1)))
    shared = federation._replace(train=identical_data)
    work = Work(2, 64)  # full batches: a client's key then decides nothing
    fedavg_theta = server_of(fedavg(model, work), fedavg.Hyper(lr=0.1), shared, key)
    standalone_models = simulate(standalone(model, work), standalone.Hyper(lr=0.1), shared, key, ROUNDS)[0].clients
    chex.assert_trees_all_close(fedavg_theta, tree.take(standalone_models, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "hyper"),
    [
        (ifca, ifca.Hyper(lr=0.2, min_share=0.5)),
        *slow_rows((fesem, fesem.Hyper(lr=0.2)), (fesem_ma, fesem.Hyper(lr=0.2))),
    ],
)
def test_two_groups_of_opposite_targets_are_found(key, model, make, hyper):
    metrics = simulate(make(model, Work(2, 8), 2), hyper, linear_groups(8, 2, examples=60), key, 8)[1]
    assert metrics["ari"][-1] == 1


NEED_EPOCHS_OR_BATCHES = ("fedrep", "fedpac", "pflda", "fedgen")
ONE_OF_EACH = {case.name: label for label, case in reversed(CASES.items()) if not case.one_epoch}


@pytest.mark.slow
@pytest.mark.parametrize("label", [ONE_OF_EACH[name] for name in ONE_OF_EACH if name not in NEED_EPOCHS_OR_BATCHES])
def test_as_many_local_steps_of_full_batches_are_epochs(key, model, federation, label):
    """Of every method: with one batch in an epoch the two are the same work, bit for bit."""
    case, works = CASES[label], (Work(2, None), Work(None, None, local_steps=2))
    of_epochs, of_steps = (
        fljax.simulate(case.make(model, work), case.hyper, federation, key, 2, compile="fast") for work in works
    )
    chex.assert_trees_all_equal(of_steps, of_epochs)
