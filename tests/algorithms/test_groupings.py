"""How methods part clients: their clusterings against SciPy, scikit-learn and NumPy, and limit laws."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.hierarchy
import scipy.linalg
import scipy.spatial.distance
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import fljax
from fljax import tree
from fljax.algorithms.fedclust import fedclust
from fljax.algorithms.fedrc import fedrc, label_shares
from fljax.algorithms.flexcfl import flexcfl, groups, inter_group_mean
from fljax.algorithms.flhc import flhc
from fljax.algorithms.pacfl import pacfl
from fljax.algorithms.stocfl import largest_part, merged, stocfl
from fljax.client.directions import main_directions
from fljax.data.synthetic import linear_groups
from fljax.rounds.joining import everyone
from fljax.run.one_round import as_traced, split_key
from fljax.run.simulate import simulate
from fljax.server.angles import principal_angles
from fljax.server.gram import gram
from fljax.types import ClientData, Examples, State, Work
from tests import oracle
from tests.algorithms.normalised import batch_normalised
from tests.algorithms.round_by_round import jitted
from tests.algorithms.round_by_round import simulate as rounds
from tests.algorithms.test_oracles import LR, MOMENTUM, WORK, Reference, assert_models, run
from tests.oracle import examples_of
from tests.slow import slow_rows


@pytest.mark.parametrize(
    ("distance", "linkage", "n_clusters"),
    [
        ("l2", "complete", 3),
        *slow_rows(("predictions", "average", None), ("cosine", "average", None), ("l2", "complete", 5)),
    ],
)
def test_flhc_cuts_scipys_tree(key, model, work, federation, distance, linkage, n_clusters):
    """Of the updates, or predictions, that it kept in the second round, the last before there are clusters."""
    algorithm = flhc(model, work, distance=distance, linkage=linkage, n_clusters=n_clusters)
    hyper = flhc.Hyper(lr=0.1, warmup=2.0, threshold=0.5)
    state, _ = simulate(algorithm, hyper, federation, key, 2, evaluate_every=2)
    update, metric = (
        np.asarray(tree.flatten(state.server.kept), np.float64),
        {"l2": "euclidean", "predictions": "hamming"}.get(distance, distance),
    )
    update = update[:, update.any(axis=0)]  # no predictions of examples past the last
    merges = scipy.cluster.hierarchy.linkage(update, linkage, metric=metric)
    criterion = (0.5, "distance") if n_clusters is None else (n_clusters, "maxclust")
    expected = scipy.cluster.hierarchy.fcluster(merges, *criterion)
    assert adjusted_rand_score(expected, state.server.label) == 1
    assert len(set(expected)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("distance", ["cosine", "predictions"])
def test_flhc_knows_the_updates_of_the_last_rounds_or_what_they_predict(key, model, federation, distance):
    """Those of absent clients stay as they were; the first ten of the server's examples are used."""
    reference = Reference(key, model, federation)
    public, theta = np.asarray(federation.public.x, np.float64)[:10], reference.start
    known = [np.zeros(130 if distance == "cosine" else 10)] * 8
    for cohort in reference.rounds():
        sent = {i: reference.train(theta, i, k) for i, k, _ in cohort}
        for i, w in sent.items():
            update = np.concatenate([(a - b).ravel() for a, b in zip(*map(jax.tree.leaves, (w, theta)), strict=True)])
            known[i] = update if distance == "cosine" else oracle.forward(w, public)[0].argmax(1) + 1
        theta = oracle.average(list(sent.values()), [size for *_, size in cohort])
    algorithm = flhc(model, WORK, distance=distance, n_public=10)
    hyper = flhc.Hyper(lr=LR, momentum=MOMENTUM, warmup=np.inf)
    begun = jitted(algorithm.init)(reference.keys.init, hyper, federation.train).server
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(begun.kept))
    _, state = run(algorithm, hyper, federation, key)
    actual = np.concatenate([np.asarray(leaf).reshape(8, -1) for leaf in jax.tree.leaves(state.server.kept)], axis=1)
    np.testing.assert_allclose(actual, known, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [{"warmup": np.inf}, {"warmup": 1.0, "threshold": np.inf}])
def test_flhc_before_there_are_clusters_or_with_one_is_fedavg(key, model, work, federation, numbers):
    state, _ = simulate(flhc(model, work), flhc.Hyper(lr=0.1, **numbers), federation, key, 2, evaluate_every=2)
    expected, _ = simulate(fljax.fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), federation, key, 2, evaluate_every=2)
    actual = tree.take(state.server.centers, jnp.int32(0))
    chex.assert_trees_all_close(actual, expected.server, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("linkage", "n_clusters"), [("average", None), *slow_rows(("complete", 3))])
def test_fedclusts_clusters_are_scipys_of_last_layers_and_go_on_from_the_initial_model(
    key, model, federation, linkage, n_clusters
):
    """All clients train alone for three epochs, the threshold is between two heights; then three rounds of FedAvg."""
    reference = Reference(key, model, federation)
    theta, key_alone = reference.start, jax.random.fold_in(reference.keys.init, 1)
    alone = [
        oracle.local_sgd(theta, reference.batches(i, jax.random.fold_in(key_alone, i), 3), LR, MOMENTUM)
        for i in range(8)
    ]
    last = np.stack([np.concatenate([w["fc2"]["kernel"].ravel(), w["fc2"]["bias"]]) for w in alone])
    merges = scipy.cluster.hierarchy.linkage(last, linkage)
    threshold = merges[4:6, 2].mean()
    criterion = (threshold, "distance") if n_clusters is None else (n_clusters, "maxclust")
    found = scipy.cluster.hierarchy.fcluster(merges, *criterion)
    centers = dict.fromkeys(set(found.tolist()), theta)
    assert len(centers) == 3
    for cohort in reference.rounds():
        sent = {i: (reference.train(centers[found[i]], i, k), size) for i, k, size in cohort}
        for cluster in centers:
            if members := [sent[i] for i in sent if found[i] == cluster]:
                centers[cluster] = oracle.average(*map(list, zip(*members, strict=True)))
    algorithm = fedclust(model, WORK, alone_epochs=3, linkage=linkage, n_clusters=n_clusters)
    hyper = fedclust.Hyper(lr=LR, momentum=MOMENTUM, threshold=threshold)
    models, state = run(algorithm, hyper, federation, key)
    assert_models(models, [centers[cluster] for cluster in found])
    means = [last[found == found[i]].mean(0) for i in range(8)]
    of_own_cluster = jax.tree.map(lambda leaf: np.asarray(leaf)[state.server.label], state.server.kept.means)["fc2"]
    actual = np.concatenate([of_own_cluster["kernel"].reshape(8, -1), of_own_cluster["bias"]], axis=1)
    np.testing.assert_allclose(actual, means, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_fedclust_of_one_cluster_is_fedavg_whatever_clients_have_trained_alone(key, model, work, federation):
    algorithm, hyper = fedclust(model, work, n_clusters=1), fedclust.Hyper(lr=0.1)
    state, _ = rounds(algorithm, hyper, federation, key, 2, participation=0.5)
    expected, _ = rounds(fljax.fedavg(model, work), fljax.fedavg.Hyper(lr=0.1), federation, key, 2, participation=0.5)
    chex.assert_trees_all_close(tree.first(state.server.centers), expected.server, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_client_that_fails_alone_joins_the_largest_of_fedclusts_clusters(key, model, federation):
    """One of NaN, which agglomeration does not see, and one without examples."""
    data = federation.train
    x = np.array(data.pool.x)
    x[np.asarray(data.index)[7, : int(data.size[7])]] = np.nan
    broken = data._replace(pool=data.pool._replace(x=x), size=np.asarray(data.size).copy())
    broken.size[6] = 0
    server = jitted(fedclust(model, WORK, n_clusters=3).init)(key, as_traced(fedclust.Hyper(lr=LR)), broken).server
    label = np.asarray(server.label)
    assert set(label[:6].tolist()) == {0, 1, 2}
    np.testing.assert_array_equal(label[6:], np.bincount(label[:6]).argmax())
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(server.kept.means))


def test_pacfls_angles_are_scipys():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3, 3, 1)).astype(np.float32)
    index, size = np.stack([np.arange(i * 10, i * 10 + 10) for i in range(4)]), np.array([10, 7, 9, 2])
    data = ClientData(Examples(jnp.asarray(x), jnp.zeros(40, jnp.int32)), jnp.asarray(index), jnp.asarray(size))
    directions = jax.jit(main_directions, static_argnums=1)(data, 3)
    expected = []
    for i, n in enumerate(size):
        u = np.linalg.svd(x[index[i, :n]].reshape(n, -1).T.astype(np.float64), full_matrices=False)[0][:, :3]
        basis = np.asarray(directions)[i]
        np.testing.assert_allclose(basis @ basis.T, u @ u.T, atol=1e-4)
        expected.append(u)
    angles = np.sort(np.asarray(jax.jit(principal_angles)(directions)), axis=-1)
    for i in range(3):
        for j in range(3):
            by_scipy = np.sort(np.degrees(scipy.linalg.subspace_angles(expected[i], expected[j])))
            np.testing.assert_allclose(angles[i, j], by_scipy, atol=0.1)  # arccos near 0 loses digits
    bfloat16_angles = np.sort(np.asarray(jax.jit(principal_angles)(directions.astype(jnp.bfloat16))), axis=-1)
    np.testing.assert_allclose(bfloat16_angles[:3, :3], angles[:3, :3], atol=8)
    np.testing.assert_array_equal(np.asarray(directions)[3][:, 2], 0)  # two examples span two directions
    two_examples_each = data._replace(
        index=data.index[:, :2], size=jnp.full(4, 2)
    )  # tables of fewer columns than directions
    assert main_directions(two_examples_each, 3).shape == (4, 9, 3)


@pytest.mark.parametrize("angle", ["smallest", "sum"])
def test_pacfls_clusters_are_those_of_scipys_angles(key, model, federation, angle):
    """Average linkage of the degrees between the first three left singular vectors of features by examples."""
    pool, size = np.asarray(federation.train.pool.x, np.float64), np.asarray(federation.train.size)
    client_features = [
        pool[index[:n]].reshape(n, -1).T for index, n in zip(np.asarray(federation.train.index), size, strict=True)
    ]
    basis = [np.linalg.svd(x, full_matrices=False)[0][:, :3] for x in client_features]
    degrees = np.degrees([[scipy.linalg.subspace_angles(a, b) for b in basis] for a in basis])
    client_angles = degrees.min(-1) if angle == "smallest" else degrees.sum(-1)
    np.fill_diagonal(client_angles, 0)
    merges = scipy.cluster.hierarchy.linkage(scipy.spatial.distance.squareform(client_angles, checks=False), "average")
    beta = merges[3:5, 2].mean()
    expected = scipy.cluster.hierarchy.fcluster(merges, beta, "distance")
    state = jitted(pacfl(model, WORK, angle=angle).init)(key, as_traced(pacfl.Hyper(threshold=beta)), federation.train)
    assert len(set(expected)) == 4
    assert adjusted_rand_score(expected, state.server.label) == 1


def assert_are_groups(label, update, forms_groups):
    """Those of k-means of the cosines with the main directions, and of the nearest mean for the others; the means."""
    n_groups = label.max() + 1
    directions = np.linalg.svd(update[forms_groups].T, full_matrices=False)[0][:, :n_groups]
    cosine = update[forms_groups] @ directions / np.linalg.norm(update[forms_groups], axis=1, keepdims=True)
    by_sklearn = KMeans(n_groups, n_init=20, random_state=0).fit_predict(cosine)
    assert adjusted_rand_score(by_sklearn, label[forms_groups]) == 1
    means = np.stack([update[forms_groups][label[forms_groups] == k].mean(0) for k in range(n_groups)])
    nearest_mean = (update @ means.T / np.linalg.norm(means, axis=1)).argmax(1)
    np.testing.assert_array_equal(label[~forms_groups], nearest_mean[~forms_groups])
    return means


def test_flexcfls_groups_are_those_of_k_means_on_cosines_with_the_main_directions(key):
    rng = np.random.default_rng(7)
    update = np.concatenate([c * (rng.normal(size=30) + rng.normal(size=(6, 30)) * 0.6) for c in (1, 3, 10)])
    forms_groups = np.arange(18) % 3 > 0
    group = jax.jit(lambda key, update, forms_groups: groups(key, gram(update), forms_groups, 3))
    label = np.asarray(group(key, update.astype(np.float32), forms_groups))
    means = assert_are_groups(label, update, forms_groups)
    assert ((update @ means.T).argmax(1) != label)[~forms_groups].any()  # whom longer means would draw
    actual = jax.jit(inter_group_mean)({"fc": {"w": means.astype(np.float32)}}, 0.1, np.ones(3, bool))["fc"]["w"]
    unit = means / np.linalg.norm(means, axis=1, keepdims=True)
    weight = 0.1 / np.linalg.norm(means, axis=1)
    expected = (means + 0.1 * (unit.sum(0) - unit)) / (1 + weight.sum() - weight)[:, None]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_flexcfl_groups_begin_with_the_mean_of_the_pretrained_clients_that_form_them(key, model, federation):
    """Four of eight clients, two times as many as groups, drawn by luck; all have trained for three epochs."""
    reference, algorithm = (
        Reference(key, model, federation),
        flexcfl(model, WORK, 2, pretrain_epochs=3, sample_factor=2),
    )
    server = jitted(algorithm.init)(key, as_traced(flexcfl.Hyper(lr=LR)), federation.train).server
    key_model, key_train, key_sample, _ = jax.random.split(key, 4)
    theta, label = jax.tree.map(np.float64, model.init(key_model)), np.asarray(server.label)
    epochs = [reference.batches(i, jax.random.fold_in(key_train, i), 3) for i in range(8)]
    trained = [oracle.local_sgd(theta, batches, LR) for batches in epochs]
    forms_groups = np.argsort(np.argsort(jax.random.uniform(key_sample, 8))) < 4
    rows_of_models = np.stack(
        [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(w)]) for w in (*trained, theta)]
    )
    assert_are_groups(label, rows_of_models[:8] - rows_of_models[8], forms_groups)
    expected = [oracle.average(trained, list(((label == k) & forms_groups).astype(float))) for k in range(2)]
    assert_models(server.centers, expected)


@pytest.mark.slow
def test_a_group_of_flexcfl_without_members_draws_nobody(key, model):
    federation = linear_groups(2, 2, examples=24)

    def server(eta_g):
        algorithm, hyper = flexcfl(model, Work(1, 64), 4), flexcfl.Hyper(lr=0.1, eta_g=eta_g)
        return jax.device_get(simulate(algorithm, hyper, federation, key, 1)[0].server)

    independent_groups, drawn_groups = server(0.0), server(0.1)
    occupied = np.unique(independent_groups.label)
    assert len(occupied) == 2
    centers, drawn_centers = (
        np.asarray(tree.flatten(some_server.centers)) for some_server in (independent_groups, drawn_groups)
    )
    weight, expected, other_group = 0.1 / np.linalg.norm(centers, axis=1, keepdims=True), centers.copy(), occupied[::-1]
    expected[occupied] = (centers[occupied] + (weight * centers)[other_group]) / (1 + weight[other_group])
    np.testing.assert_allclose(drawn_centers, expected, rtol=1e-5, atol=1e-6)


def test_stocfl_merges_the_clusters_that_are_present_and_alike(key, federation):
    rng = np.random.default_rng(5)
    changes = np.concatenate([rng.normal(size=8) * 3 + rng.normal(size=(4, 8)) for _ in range(2)])
    label, ids = np.array([0, 0, 2, 3, 4, 4, 4, 7]), np.array([0, 1, 2, 4, 5, 7])  # and 6, who drops out

    @jax.jit
    def merged_label(changes, label, ids, tau):
        cohort = everyone(key, jnp.int32(0), federation.train)
        participants = cohort._replace(ids=jnp.append(ids, 6), active=jnp.arange(7) < 6)
        return merged({"w": changes}, label, participants, tau)

    mean = {k: changes[[i for i in ids if label[i] == k]].mean(0) for k in sorted(set(label[ids]))}
    numbers_of_clusters = set()
    for tau in np.linspace(-0.5, 0.9, 29):
        root = {k: k for k in set(label)}
        for a in mean:
            for b in mean:
                if 1 - scipy.spatial.distance.cosine(mean[a], mean[b]) >= tau:
                    root = {k: root[a] if r == root[b] else r for k, r in root.items()}
        expected = [root[k] for k in label]
        assert adjusted_rand_score(expected, merged_label(changes.astype(np.float32), label, ids, np.float32(tau))) == 1
        numbers_of_clusters.add(len({expected[i] for i in ids}))
    assert numbers_of_clusters == {1, 2}  # of four, by the likest of two merged ones


def test_a_merged_cluster_of_stocfl_keeps_the_model_of_its_part_of_most_clients_seen():
    old, new = jnp.array([0, 0, 0, 3, 4, 5]), jnp.array([0, 0, 0, 0, 1, 1])
    source_of = jax.jit(largest_part)
    # Three clients that nobody has seen are fewer than one that was; of equal ones the lowest id's is kept.
    np.testing.assert_array_equal(source_of(old, new, jnp.arange(6) == 3), [3, 3, 3, 3, 4, 4])
    np.testing.assert_array_equal(source_of(old, new, jnp.arange(6) != 4), [0, 0, 0, 0, 5, 5])


def test_in_stocfl_a_client_that_has_not_moved_joins_nobody(key, federation):
    """Its cosine to everyone is 0, which would chain clusters together where tau is no larger."""
    changes = np.array([[1, 0], [1, 0.1], [-1, 0], [-1, 0.1], [0.5, -1], [0, 0]], np.float32)
    cohort = everyone(key, jnp.int32(0), federation.train)
    cohort = cohort._replace(ids=jnp.arange(6), active=jnp.ones(6, bool))
    label = jax.jit(lambda changes: merged({"w": changes}, jnp.arange(6), cohort, 0.0))(changes)
    np.testing.assert_array_equal(label, [0, 0, 1, 1, 0, 2])


@pytest.mark.slow
def test_stocfl_keeps_what_a_cluster_has_learnt_when_a_new_client_of_a_lower_id_joins_it(key, model):
    """Left to the client of lowest id, a merged cluster would begin anew with the first model."""
    federation = linear_groups(6, 1, examples=24)
    algorithm, hyper = stocfl(model, Work(1, 8)), as_traced(stocfl.Hyper(lr=0.1, tau=-1.0))  # all are alike
    state = jitted(algorithm.init)(key, hyper, federation.train)
    first_theta = tree.take(state.server.centers["theta"], jnp.int32(0))
    cohort = everyone(key, jnp.int32(0), federation.train)
    late_cohort = cohort._replace(active=jnp.arange(6) >= 2)  # clients 0 and 1 are away
    for _ in range(3):
        state, _ = jitted(algorithm.round)(key, hyper, state, late_cohort)
    trained_theta = tree.take(state.server.centers["theta"], state.server.label[2])
    np.testing.assert_array_equal(state.server.kept.seen, np.arange(6) >= 2)
    merged_state, _ = jitted(algorithm.round)(key, hyper.replace(lr=jnp.float32(0)), state, cohort)
    assert len(set(np.asarray(merged_state.server.label))) == 1
    merged_theta = tree.take(merged_state.server.centers["theta"], merged_state.server.label[0])
    chex.assert_trees_all_close(merged_theta, trained_theta, rtol=1e-6, atol=1e-6)
    change = np.abs(np.asarray(merged_theta["fc1"]["kernel"]) - np.asarray(first_theta["fc1"]["kernel"])).max()
    assert change > 1e-2


@pytest.mark.slow
def test_a_stocfl_cluster_without_participants_is_tested_with_the_present_global_model(key, model):
    federation = linear_groups(6, 2, examples=24)
    algorithm, hyper = stocfl(model, Work(1, 8)), as_traced(stocfl.Hyper(lr=0.1, tau=0.99))
    state = jitted(algorithm.init)(key, hyper, federation.train)
    cohort = everyone(key, jnp.int32(0), federation.train)
    for absent in ([0, 1, 4], [0, 4, 5]):
        state, _ = jitted(algorithm.round)(key, hyper, state, cohort._replace(active=~np.isin(np.arange(6), absent)))
    deployed = tree.stacked(algorithm.deploy(key, hyper, state, federation.train))
    theta, omega = (tree.take(state.server.centers[name], state.server.label) for name in ("theta", "omega"))
    is_new = np.isin(np.arange(6), [0, 4])
    chex.assert_trees_all_equal(deployed, tree.where(is_new, omega, theta))
    distance = np.abs(tree.flatten(theta) - tree.flatten(omega)).max(axis=1)
    assert (distance > 1e-3).all()  # of the new ones by what the last round has moved the global model


def test_stocfl_whose_clusters_never_merge_in_numpy(key, model, federation):
    """Each client's model is held near the global one, which it begins from when it first takes part."""
    reference, lam, algorithm = Reference(key, model, federation), 0.8, stocfl(model, WORK)
    hyper = stocfl.Hyper(lr=LR, momentum=MOMENTUM, lam=lam, tau=1.0)
    server = jitted(algorithm.init)(reference.keys.init, hyper, federation.train).server
    omega, models = jax.tree.map(lambda leaf: np.asarray(leaf[0], np.float64), server.centers["omega"]), [None] * 8
    keys = [jax.random.fold_in(jax.random.split(reference.keys.init)[1], i) for i in range(8)]
    anchors = [oracle.local_sgd(omega, reference.batches(i, k, 1), LR, MOMENTUM) for i, k in enumerate(keys)]
    assert_models(server.kept.psi, [oracle.combine(np.subtract, w, omega) for w in anchors])  # after one epoch
    for cohort in reference.rounds():
        for i, k, _ in cohort:
            models[i] = reference.train(models[i] or omega, i, k, mu=lam, anchor=omega)
        omega = oracle.average([reference.train(omega, i, k) for i, k, _ in cohort], [1.0] * len(cohort))
    deployed, _ = run(algorithm, hyper, federation, key)
    assert_models(deployed, models)  # by now all have


@pytest.mark.slow
def test_stocfls_global_model_is_that_of_fedavg(key, model, work, federation):
    state, _ = simulate(stocfl(model, work), stocfl.Hyper(lr=0.1), federation, key, 2, evaluate_every=2)
    omega = state.server.centers["omega"]
    averaging = fljax.fedavg(model, work, weighting="uniform")
    start = model.init(jax.random.split(split_key(key).init)[0])
    averaging_from_start = averaging._replace(init=lambda *_: State(start, {}))
    expected, _ = simulate(averaging_from_start, fljax.fedavg.Hyper(lr=0.1), federation, key, 2, evaluate_every=2)
    chex.assert_trees_all_close(tree.take(omega, jnp.int32(3)), expected.server, rtol=1e-5, atol=1e-6)


def test_fedrc_in_numpy(key, model, federation):
    """Half of the clients a round; a label that a cluster explains anyway speaks less for it."""
    algorithm, hyper, reference = fedrc(model, WORK, 2), fedrc.Hyper(lr=LR), Reference(key, model, federation)
    first_learners = jitted(algorithm.init)(reference.keys.init, hyper, federation.train).server.learners
    learners = [jax.tree.map(lambda leaf, m=m: np.asarray(leaf[m], np.float64), first_learners) for m in range(2)]
    omega, mass = np.full((8, 2), 0.5), np.zeros((8, 2, 4))

    def concepts(x, y, omega):
        losses = np.array([oracle.losses(learner, x, y) for learner in learners])
        gamma = omega[:, None] * np.exp(-losses) / share[:, y]
        return gamma / gamma.sum(axis=0)

    for cohort in reference.rounds():
        share = np.maximum(mass.sum(axis=0), 1e-8)
        share /= share.sum(axis=1, keepdims=True)
        next_omega, next_mass, sent = omega.copy(), mass.copy(), [[], []]
        for i, k, _ in cohort:
            x, y = examples_of(federation.train, i)
            gamma = concepts(x, y, omega[i])
            next_omega[i] = gamma.mean(axis=1)
            next_mass[i] = [np.bincount(y, gamma_of_cluster, minlength=4) for gamma_of_cluster in gamma]
            for m, w in enumerate(learners):
                for x, y in reference.batches(i, k):
                    q = concepts(x, y, omega[i])[m]
                    step = LR * q.mean()  # all examples count, by what the cluster explains of them
                    w = oracle.combine(lambda w, g, step=step: w - step * g, w, oracle.gradient(w, x, y, q))
                sent[m].append(w)
        learners = [oracle.average(models, [size for *_, size in cohort]) for models in sent]
        omega, mass = next_omega, next_mass
    _, state = run(algorithm, hyper, federation, key)
    np.testing.assert_allclose(state.clients.omega, omega, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.server.mass, mass.sum(axis=0), rtol=1e-4, atol=1e-4)
    assert_models(state.server.learners, learners)
    shares = jax.jit(label_shares)(np.float32([[0, 3]]))  # a label that a cluster has nothing of has a mass of 1e-8
    np.testing.assert_allclose(shares, [[1e-8 / 3, 1]], rtol=1e-5)


@pytest.mark.slow
def test_fedrc_with_one_cluster_is_fedavg(key, model, work, federation):
    state, _ = simulate(fedrc(model, work, 1), fedrc.Hyper(lr=0.1), federation, key, 2, evaluate_every=2)
    start = jax.tree.map(lambda leaf: leaf[0], jax.vmap(model.init)(jax.random.split(split_key(key).init, 1)))
    averaging = fljax.fedavg(model, work)._replace(init=lambda *_: State(start, {}))
    expected, _ = simulate(averaging, fljax.fedavg.Hyper(lr=0.1), federation, key, 2, evaluate_every=2)
    actual = tree.take(state.server.learners, jnp.int32(0))
    chex.assert_trees_all_close(actual, expected.server, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fedrcs_shares_of_labels(key, model, work, federation):
    """The masses of all clients sum to the server's, and to one an example; shares to one a cluster."""
    state, _ = simulate(fedrc(model, work, 3), fedrc.Hyper(lr=0.1), federation, key, 2, evaluate_every=2)
    np.testing.assert_allclose(state.server.mass, state.clients.mass.sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(state.clients.mass.sum((1, 2)), federation.train.size, rtol=1e-4)
    np.testing.assert_allclose(label_shares(state.server.mass).sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(label_shares(jnp.zeros((2, 4))), 0.25)


@pytest.mark.slow
def test_momentum_leaves_the_running_statistics_of_stocfls_models_alone(key):
    """In one cluster that nothing pulls, its model and the global one are both FedAvg's."""
    network, federation = batch_normalised((4, 4, 1), 4, hidden=6), linear_groups(6, 2, examples=24, ragged=0.4)
    network_of_split_key = network._replace(
        init=lambda key: network.init(jax.random.split(key)[0])
    )  # as StoCFL draws it

    def deployed_models(name, network, numbers, **choices):
        method = fljax.compose(f"{name}+momentum")
        algorithm = method(network, Work(1, 8), weighting="uniform", **choices)
        hyper = method.Hyper(lr=0.1, server_lr=1.0, **numbers)
        state, _ = simulate(algorithm, hyper, federation, key, 3, evaluate_every=3)
        return tree.stacked(algorithm.deploy(key, hyper, state, federation.train))

    actual, expected = (
        deployed_models("stocfl", network, {"tau": -1.0, "lam": 0.0}),
        deployed_models("fedavg", network_of_split_key, {}),
    )
    chex.assert_trees_all_close(actual, expected, rtol=1e-4, atol=1e-5)
