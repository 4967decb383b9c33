"""FedTSDP: its limits, its two stages, and what it remembers from round to round."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.distance import cdist, jensenshannon
from scipy.special import softmax
from sklearn.cluster import DBSCAN

from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedtsdp import fedtsdp
from fljax.algorithms.fedtsdp.partition import everyones_cluster, tendency, two_stages
from fljax.algorithms.fedtsdp.public_batch import draw_batch, increased_weights, public_images
from fljax.algorithms.standalone import standalone
from fljax.client.outputs import client_outputs
from fljax.data.synthetic import linear_groups
from fljax.models import multi_label, regression
from fljax.run.one_round import as_traced, split_key
from fljax.server.divergence import js_divergence
from fljax.server.hopkins import hopkins
from fljax.types import Examples, Federation, ModelTable, State, Work
from tests import oracle
from tests.algorithms.round_by_round import drawn_cohort, jitted, one_round, simulate
from tests.algorithms.test_oracles import LR, Reference, assert_models
from tests.algorithms.test_oracles import WORK as EFFORT
from tests.oracle import rows_of
from tests.slow import slow

WORK = Work(epochs=1, batch_size=16)
BATCH = 20
ALWAYS, NEVER = {"threshold": -1.0}, {"threshold": 1.0}


def with_public(federation: Federation) -> Federation:
    x = federation.train.pool.x[:40]
    return federation._replace(public=Examples(x, jnp.full(x.shape[0], -1)))


@pytest.fixture(scope="module")
def groups() -> Federation:
    return with_public(linear_groups(12, 3))


def make(model, **options):
    return fedtsdp(model, WORK, public_batch=BATCH, **options)


def in_stages(model, stages):
    """With a batch of images that can be drawn again outside."""
    return make(model, stages=stages, sampling="uniform")


def later(algorithm, hyper, federation, key, state, n_rounds):
    """The state ``n_rounds`` rounds after ``state``, in the rounds of the same numbers as ``simulate``'s first."""
    for round in range(n_rounds):
        state, _ = one_round(algorithm, hyper, federation, key, state, round)
    return state


@pytest.mark.slow
def test_when_the_test_never_fires_it_is_fedavg(key, model, groups):
    algorithm, numbers = make(model), fedavg.Hyper(lr=0.1, momentum=0.5)
    averaged, expected = simulate(fedavg(model, WORK), numbers, groups, key, 5, participation=0.6)
    for psi in (0.5, 1.0):
        # Radii of zero would leave everyone alone.
        hyper = fedtsdp.Hyper(lr=0.1, momentum=0.5, psi=psi, eps_outputs=0.0, eps_weights=0.0, **NEVER)
        server, metrics = simulate(algorithm, hyper, groups, key, 5, participation=0.6)
        assert not metrics["fired"].any()
        assert server.server.depth == 2
        # A mean among twelve cluster slots is summed in another order than a mean alone: equal but for the last bit.
        centers = jax.tree.map(lambda leaf: leaf[0], server.server.centers)
        chex.assert_trees_all_close(centers, averaged.server, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(metrics["test_loss"], expected["test_loss"], rtol=1e-5)


@pytest.mark.slow
def test_with_psi_1_everything_stays_shared(key, model, groups):
    state, metrics = simulate(make(model), fedtsdp.Hyper(lr=0.1, psi=1.0, **ALWAYS), groups, key, 4)
    assert metrics["fired"].all()
    assert state.server.depth == 2
    np.testing.assert_array_equal(metrics["downlink"], metrics["uplink"])


@pytest.mark.slow
def test_after_psi_0_has_fired_everyone_is_alone(key, model, groups):
    hyper = fedtsdp.Hyper(lr=0.1, psi=0.0, **ALWAYS)
    state, _ = simulate(make(model), hyper, groups, key, 1)
    assert state.server.depth == 0
    continued = later(make(model), hyper, groups, key, state, 3)
    standalone_state = later(
        standalone(model, WORK), standalone.Hyper(lr=0.1), groups, key, State((), state.clients), 3
    )
    chex.assert_trees_all_close(continued.clients, standalone_state.clients, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["outputs", "both", "weights"])
def test_infinite_radii_leave_one_cluster(key, model, groups, stages):
    hyper = fedtsdp.Hyper(lr=0.1, eps_outputs=jnp.inf, eps_weights=jnp.inf, **ALWAYS)
    assert (simulate(in_stages(model, stages), hyper, groups, key, 3)[1]["n_clusters"] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["both", *slow("outputs", "weights")])
def test_radii_of_zero_leave_everyone_alone(key, model, groups, stages):
    hyper = fedtsdp.Hyper(lr=0.1, eps_outputs=0.0, eps_weights=0.0, **ALWAYS)
    assert (simulate(in_stages(model, stages), hyper, groups, key, 3)[1]["n_clusters"] == 12).all()


@pytest.mark.slow
def test_identical_clients_are_one_cluster(key, model):
    federation = with_public(linear_groups(6, 1))
    identical_data = federation.train._replace(index=jnp.tile(federation.train.index[:1], (6, 1)))
    algorithm = fedtsdp(model, Work(1, 64), public_batch=BATCH)  # full batches: keys then decide nothing
    hyper = fedtsdp.Hyper(lr=0.1, eps_outputs=1e-6, eps_weights=1e-3, **ALWAYS)
    metrics = simulate(algorithm, hyper, federation._replace(train=identical_data), key, 3)[1]
    assert (metrics["n_clusters"] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hidden_groups_are_found(seed, model):
    federation, key = with_public(linear_groups(12, 3, seed=seed)), jax.random.key(seed)
    metrics = simulate(make(model), fedtsdp.Hyper(lr=0.3, threshold=0.6), federation, key, 20)[1]
    averaged = simulate(fedavg(model, WORK), fedavg.Hyper(lr=0.3), federation, key, 20)[1]
    assert metrics["ari"][-1] == 1.0
    assert metrics["accuracy_macro"][-1] > averaged["accuracy_macro"][-1] + 0.3


@pytest.mark.slow
def test_clients_of_one_distribution_tend_to_cluster_less(model):
    def statistic(n_groups, seed):
        federation = with_public(linear_groups(12, n_groups, seed=seed))
        return simulate(make(model), fedtsdp.Hyper(lr=0.3, **NEVER), federation, jax.random.key(seed), 10)[1]["hopkins"]

    for seed in range(3):
        assert statistic(1, seed).mean() + 0.1 < statistic(3, seed).mean()


@pytest.mark.slow
@pytest.mark.parametrize("stages", ["both", "outputs", "weights"])
def test_one_round_of_clustering_equals_scikit_learn(key, model, groups, stages):
    hyper = fedtsdp.Hyper(lr=0.3, eps_outputs=0.05, eps_weights=0.55, **ALWAYS)
    algorithm = in_stages(model, stages)
    state, metrics = simulate(algorithm, hyper, groups, key, 4)
    key_batch, _ = jax.random.split(jax.random.fold_in(split_key(key).server, 3))
    rows = draw_batch(key_batch, jnp.ones(10_000), 40, BATCH)
    outputs = client_outputs(model, state.clients, groups.public, rows)
    models = np.asarray(tree.flatten(state.clients))
    output_distance = np.asarray(js_divergence(outputs))
    weight_distance = np.sqrt(((models[:, None] - models[None]) ** 2).sum(-1))
    clusters = np.zeros(12, int)
    if stages != "weights":
        clusters = noise_alone(DBSCAN(eps=0.05, min_samples=2, metric="precomputed").fit(output_distance).labels_)
    if stages != "outputs":
        weight_distance[clusters[:, None] != clusters[None]] = 1e6
        clusters = noise_alone(DBSCAN(eps=0.55, min_samples=2, metric="precomputed").fit(weight_distance).labels_)
    assert 1 < len(set(clusters)) < 12
    label = np.asarray(metrics["label"][-1])
    np.testing.assert_array_equal(label[:, None] == label[None], clusters[:, None] == clusters[None])


def noise_alone(label):
    return np.where(label < 0, label.max() + 1 + np.arange(len(label)), label)


def dbscan_in_groups(distance, eps, group):
    """DBSCAN inside each group; noise alone."""
    within_groups = np.where(group[:, None] == group, distance, np.inf)
    return noise_alone(DBSCAN(eps=eps, min_samples=2, metric="precomputed").fit(np.minimum(within_groups, 1e6)).labels_)


def everyones_label(label, participants_label):
    """Everyone's cluster from that of the participants, ``{client: cluster}``, numbered by the lowest member."""
    new_label = {}
    for i, old_label in enumerate(label):
        clusters_of_peers = [
            participants_label[j] for j in sorted(participants_label) if label[j] == old_label
        ]  # of equal ones that of the lowest client of all
        numbers = list(dict.fromkeys(participants_label[j] for j in sorted(participants_label)))
        new_label[i] = (
            participants_label[i]
            if i in participants_label
            else max(numbers, key=clusters_of_peers.count)
            if clusters_of_peers
            else f"old {old_label}"
        )
    numbers = list(dict.fromkeys(new_label.values()))
    return np.array([numbers.index(cluster) for cluster in new_label.values()])


def test_fedtsdp_in_numpy(key, model, federation):
    """Half of the clients a round; the test always fires, and fewer tensors are shared each time, until two are left.

    At last outputs part clients 1 and 3, and weights 6 and 7; that of 4 and 5, who are away, gets another number.
    """
    reference, psi, eps = Reference(key, model, federation), 0.8, (0.02, 0.6)
    names = [(layer, part) for layer in ("fc1", "fc2") for part in ("kernel", "bias")]
    models, centers, label, depth, q = reference.everyone(), reference.everyone(), np.zeros(8, int), 2.0, np.ones(16)
    pool, shared, statistics, downlink = np.asarray(federation.public.x, np.float64), [], [], []

    def start_of(i):
        is_shared = {name: position < int(2 * depth) for position, name in enumerate(names)}
        return {
            layer: {p: (centers[label[i]] if is_shared[layer, p] else models[i])[layer][p] for p in ("kernel", "bias")}
            for layer in models[i]
        }

    for round, cohort in enumerate(reference.rounds(4, None)):
        downlink.append(sum(models[0][layer][part].size for layer, part in names[: int(2 * depth)]))
        trained = {i: oracle.local_sgd(start_of(i), reference.batches(i, k), LR) for i, k, _ in cohort}
        key_batch, key_draws = jax.random.split(jax.random.fold_in(reference.keys.server, round))
        rows = draw_batch(key_batch, q, 16, 10)
        outputs = [softmax(oracle.forward(w, pool[np.asarray(rows)])[0], axis=1) for w in trained.values()]
        output_distance = [[(jensenshannon(a, b, axis=1) ** 2).mean() for b in outputs] for a in outputs]
        weights = np.stack([np.concatenate([w[n][p].ravel() for n, p in names]) for w in trained.values()])
        participants_label = dbscan_in_groups(
            cdist(weights, weights), eps[1], dbscan_in_groups(np.array(output_distance), eps[0], np.zeros(4, int))
        )
        outputs_by_id = np.float32([outputs[list(trained).index(i)].ravel() for i in sorted(trained)])
        statistics.append(
            [float(hopkins(draw_key, outputs_by_id, 2, 1)) for draw_key in jax.random.split(key_draws, 20)]
        )
        new_label = everyones_label(label, dict(zip(trained, participants_label.tolist(), strict=True)))
        q[np.asarray(rows)] += 16 / 10
        inherited = [
            centers[label[np.flatnonzero(new_label == k)[0]]] if k in new_label else centers[k] for k in range(8)
        ]
        members = [[i for i in trained if new_label[i] == k] for k in range(8)]
        centers = [
            oracle.average([trained[i] for i in ids], [float(reference.size[i]) for i in ids]) if ids else inherited[k]
            for k, ids in enumerate(members)
        ]
        label, depth = new_label, depth * psi
        shared.append(int(2 * depth))
        for i, w in trained.items():
            models[i] = w
    algorithm = fedtsdp(model, EFFORT, public_batch=10)
    hyper = fedtsdp.Hyper(lr=LR, psi=psi, eps_outputs=eps[0], eps_weights=eps[1], **ALWAYS)
    state, metrics = simulate(algorithm, hyper, federation, key, 3, participation=0.5)
    np.testing.assert_allclose(metrics["hopkins"], np.mean(statistics, axis=1), rtol=1e-4)
    np.testing.assert_allclose(metrics["hopkins_spread"], np.std(statistics, axis=1), rtol=1e-3)
    np.testing.assert_array_equal(state.server.label, label)
    np.testing.assert_allclose(state.server.q[:16], q, rtol=1e-6)
    np.testing.assert_array_equal(
        metrics["downlink"], np.tile(downlink, (4, 1)).T
    )  # what was shared when the round began
    assert_models(state.clients, models)
    assert_models(state.server.centers, centers)
    deployed = jitted(algorithm.deploy)(key, hyper, state, federation.train)
    assert_models(tree.stacked(deployed), [start_of(i) for i in range(8)])
    assert shared == [3, 2, 2]
    np.testing.assert_array_equal(label, [0, 0, 0, 1, 2, 2, 3, 4])


@pytest.mark.slow
def test_clients_are_tested_with_what_they_would_train_from(key, model, groups):
    algorithm = in_stages(model, "both")
    hyper = fedtsdp.Hyper(lr=0.1, psi=0.75, **ALWAYS)  # 1.5 layers: the last bias is personal
    state, metrics = simulate(algorithm, hyper, groups, key, 1)
    deployed = jitted(algorithm.deploy)(key, hyper, state, groups.train)
    center, models = tree.take(state.server.centers, state.server.label), state.clients
    chex.assert_trees_all_equal(deployed.params["fc1"], center["fc1"])
    chex.assert_trees_all_equal(deployed.params["fc2"]["kernel"], center["fc2"]["kernel"])
    chex.assert_trees_all_equal(deployed.params["fc2"]["bias"], models["fc2"]["bias"])
    np.testing.assert_array_equal(metrics["downlink"], metrics["uplink"])  # everything was shared when the round began
    without_steps = hyper.replace(lr=0.0)
    next_state, metrics = one_round(algorithm, without_steps, groups, key, state, 1)
    chex.assert_trees_all_close(next_state.clients, deployed.params, rtol=1e-6)
    np.testing.assert_array_equal(metrics["downlink"], metrics["uplink"] - 4)


def test_two_clients_and_a_statistic_above_the_threshold_are_clustered(key, model, federation):
    """Clients whose outputs are all equal have the statistic 0.5; those whose training fails do not count."""
    algorithm, hyper = fedtsdp(model, EFFORT, public_batch=10), fedtsdp.Hyper(lr=0.1, psi=0.75, **ALWAYS)
    train = federation.train
    ids = np.asarray(drawn_cohort(federation, key, 0, 0.5, None).ids).tolist()

    def metrics_of(hyper, n_fine=4):
        """The metrics of a first round to whose end so many of its four clients come."""
        x = np.array(train.pool.x)
        x[np.concatenate([[], *(rows_of(train, i) for i in ids[n_fine:])]).astype(int)] = np.nan
        faulty_federation = federation._replace(train=train._replace(pool=train.pool._replace(x=x)))
        metrics = simulate(algorithm, hyper, faulty_federation, key, 1, participation=0.5)[1]
        assert metrics["ok"].sum() == n_fine
        return metrics

    for n_fine, fired in ((1, False), (2, True), (3, True)):
        assert bool(metrics_of(hyper, n_fine)["fired"][0]) is fired
    for threshold, fired in ((0.5, False), (0.49, True)):
        metrics = metrics_of(hyper.replace(lr=1e-30, threshold=threshold))
        assert (float(metrics["hopkins"][0]), bool(metrics["fired"][0])) == (0.5, fired)


def test_absent_clients_follow_their_former_co_members():
    follow = jax.jit(everyones_cluster)
    label = follow(np.int32([0, 0, 0, 1, 1, 2, 2, 0]), np.int32([0, 1, 1, 0, -1]), np.arange(5, dtype=np.int32))
    # 4 does not count and follows 3; 5 and 6 have nobody left and stay together; 7 follows 1 and 2.
    np.testing.assert_array_equal(label, [0, 1, 1, 0, 0, 2, 2, 1])
    # Whatever the number of a cluster that nobody is left of, it is apart from those that were found.
    for lost_cluster in range(1, 4):
        label_beside_lost = follow(
            np.int32([0, 0, 0, lost_cluster]), np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int32)
        )
        np.testing.assert_array_equal(label_beside_lost, [0, 1, 2, 3])


def test_absent_clients_follow_the_lowest_of_equal_clusters():
    label = jax.jit(everyones_cluster)(np.zeros(5, np.int32), np.int32([0, 1, 1, 0]), np.int32([1, 2, 3, 4]))
    np.testing.assert_array_equal(label, [0, 0, 1, 1, 0])


def test_a_batch_has_distinct_images_and_likelier_ones_come_more_often(key):
    q = jnp.ones(100).at[:10].set(20.0)
    batches = np.asarray(jax.vmap(lambda k: draw_batch(k, q, 50, 10))(jax.random.split(key, 500)))
    assert batches.max() < 50
    assert all(len(set(batch)) == 10 for batch in batches.tolist())
    # NumPy draws one after another without replacement, from the same probabilities.
    rng, p = np.random.default_rng(0), np.asarray(q[:50]) / float(q[:50].sum())
    expected = np.mean([(rng.choice(50, 10, replace=False, p=p) < 10).sum() for _ in range(500)])
    assert abs((batches < 10).sum(axis=1).mean() - expected) < 0.25  # 5 standard errors


def test_sampling_weights_by_hand():
    q, rows = jnp.ones(6), jnp.asarray([1, 3])
    np.testing.assert_allclose(increased_weights(q, rows, 4, "raw"), [1, 3, 1, 3, 1, 1])
    np.testing.assert_allclose(increased_weights(q, rows, 4, "literal")[:4], [0.25, 2.25, 0.25, 2.25])
    np.testing.assert_allclose(increased_weights(q, rows, 4, "uniform"), q)


@pytest.mark.slow
def test_weights_grow_only_when_the_test_fires(key, model, groups):
    for condition, growth in ((NEVER, 0.0), (ALWAYS, 3 * 40.0)):
        hyper = fedtsdp.Hyper(lr=0.1, momentum=0.5, **condition)
        q = simulate(make(model), hyper, groups, key, 3, participation=0.6)[0].server.q
        np.testing.assert_allclose((q - 1).sum(), growth, rtol=1e-5)


def test_clients_that_do_not_count_do_not_tend(key):
    outputs = jax.random.uniform(key, (9, 4, 3))
    is_counted = jnp.arange(9) < 6
    of_outputs = jax.jit(lambda outputs: tendency(key, outputs, is_counted, 3, 5))
    statistic, _ = of_outputs(outputs)
    statistic_with_nan, spread = of_outputs(np.where(is_counted[:, None, None], outputs, np.nan))
    assert statistic == statistic_with_nan
    assert spread > 0


@pytest.mark.parametrize(("n_clients", "n_probes"), [(4, 2), (12, 3)])
def test_a_quarter_of_the_participants_is_probed_and_at_least_two(key, n_clients, n_probes):
    outputs, is_counted = np.ones((n_clients, 4, 3), np.float32), np.ones(n_clients, bool)

    def traced(n_probes):
        return str(jax.make_jaxpr(lambda *arguments: tendency(*arguments, n_probes, 5))(key, outputs, is_counted))

    assert traced(None) == traced(n_probes) != traced(n_probes + 1)


@pytest.mark.parametrize(("min_samples", "n_whole"), [(2.0, 2), (2.5, 3), (3.0, 3)])
def test_as_many_neighbours_as_are_asked_for_make_a_core(min_samples, n_whole):
    """Five pairs and a triple by their weights; a fraction of a neighbour is a whole one more."""
    position = np.float32([0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 52])
    order = np.random.default_rng(0).permutation(len(position))
    hyper = as_traced(fedtsdp.Hyper(eps_weights=1.5, min_samples=min_samples))
    models, is_counted = {"w": position[order, None]}, np.ones(len(position), bool)
    label = np.asarray(jax.jit(two_stages, static_argnums=4)(hyper, np.ones((13, 1, 1)), models, is_counted, "weights"))
    expected = noise_alone(DBSCAN(eps=1.5, min_samples=n_whole).fit(models["w"]).labels_)
    np.testing.assert_array_equal(label[:, None] == label, expected[:, None] == expected)


@pytest.mark.slow
def test_outputs_equal_a_loop_over_clients(key, model):
    models = jax.vmap(model.init)(jax.random.split(key, 3))
    public = linear_groups(3, 1).train.pool
    rows = jnp.asarray([4, 0, 9])
    expected = [jax.nn.softmax(model.apply(tree.take(models, i), public.x[rows], None)[0]) for i in range(3)]
    np.testing.assert_allclose(client_outputs(model, models, public, rows), jnp.stack(expected), rtol=1e-5)
    twice = client_outputs(model, ModelTable(models, jnp.asarray([2, 0, 2, 1])), public, rows)
    np.testing.assert_allclose(twice, jnp.stack(expected)[jnp.asarray([2, 0, 2, 1])], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stages": "three"}, "stages='three'"),
        ({"sampling": "always"}, "sampling='always'"),
        ({"boundary": "half"}, "boundary='half'"),
        ({"n_draws": 0}, "n_draws=0"),
        ({"n_probes": 0}, "n_probes=0"),
    ],
)
def test_unknown_options_are_named(model, options, text):
    with pytest.raises(ValueError, match=text):
        make(model, **options)


def test_public_data_is_asked_for(groups):
    with pytest.raises(ValueError, match="public is None"):
        public_images(None, 10, 5)
    with pytest.raises(ValueError, match="public has 40 images"):
        public_images(groups.public, 100, 41)
    assert public_images(groups.public, 30, 5).y.shape == (30,)


@pytest.mark.parametrize("as_kind", [regression, multi_label])
def test_outputs_that_are_no_distribution_over_classes_are_refused(model, as_kind):
    with pytest.raises(ValueError, match=r"fedtsdp: the model's loss is of .*; give a model of classification"):
        fedtsdp(as_kind(model), Work(1, 8))
