"""LayerCFL, CFL and AdaCFL: when a cluster is split, how, and what the parts start from."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances

from fljax import tree
from fljax.algorithms.adacfl import adacfl
from fljax.algorithms.cfl import cfl
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.layercfl import LayerCFLHyper, layercfl, layers_by_pilot
from fljax.algorithms.layercfl.similarity import MEASURES, OTHERS, chosen_layers, gaps, similarity
from fljax.algorithms.layercfl.stopping import Norms, everyones_side, is_apart, is_ripe, update_norms
from fljax.data.synthetic import linear_groups
from fljax.models import cnn, mlp
from fljax.rounds.bricks import BRICKS
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import as_traced, split_key
from fljax.run.pilot import layer_gaps
from fljax.server.bipartition import best_bipartition
from fljax.types import State, Work
from tests import oracle
from tests.algorithms.round_by_round import drawn_cohort, simulate, written_out
from tests.algorithms.test_oracles import DROPOUT, LR, MOMENTUM, PLACES, Reference, assert_models
from tests.algorithms.test_oracles import WORK as EFFORT
from tests.slow import slow

WORK = Work(epochs=1, batch_size=16)
EAGER = {"eps_share": 0.4, "eps_ratio": 2.0}
METHODS = {
    "cfl": (cfl, LayerCFLHyper(lr=0.1, **EAGER)),
    "layercfl": (lambda m, w: layercfl(m, w, layers="label"), LayerCFLHyper(lr=0.1, **EAGER)),
    "adacfl": (adacfl, adacfl.Hyper(lr=0.1, **EAGER)),
}


def n_splits(metrics):
    return int((np.diff(np.asarray(metrics["n_clusters"]), prepend=1) > 0).sum())


def random_updates(seed, n=6):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return jnp.asarray(rng.normal(size=(n, *shape)), jnp.float32)

    return {"fc1": {"kernel": draw(5, 3), "bias": draw(3)}, "fc2": {"kernel": draw(3, 2), "bias": draw(2)}}


def update_rows(updates, layers):
    return np.concatenate([np.asarray(tree.flatten({"layer": updates[name]})) for name in layers], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hyper", [LayerCFLHyper(lr=0.1, eps_2=jnp.inf, r_min=-1), *slow(LayerCFLHyper(lr=0.1, eps_1=0.0, r_min=-1))]
)
def test_without_a_split_it_is_fedavg(key, model, work, federation, hyper):
    clustered = simulate(cfl(model, work), hyper, federation, key, 4, participation=0.7)[0].server
    averaged = simulate(fedavg(model, work), fedavg.Hyper(lr=0.1), federation, key, 4, participation=0.7)[0].server
    assert not clustered.label.any()
    chex.assert_trees_all_close(tree.take(clustered.centers, 0), averaged, rtol=1e-6, atol=1e-7)


def test_with_all_layers_it_is_cfl(model):
    algorithms = cfl(model, WORK), layercfl(model, WORK, layers="all"), layercfl(model, WORK, layers="label")
    of_cfl, of_all_layers, of_label_layers = (
        written_out(algorithm, LayerCFLHyper(lr=0.1, **EAGER), linear_groups(12, 2)) for algorithm in algorithms
    )
    assert of_all_layers == of_cfl != of_label_layers


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["layercfl", "cfl", "adacfl"])
def test_clients_of_one_distribution_are_never_split(name, seed, model):
    make, hyper = METHODS[name]
    metrics = simulate(make(model, WORK), hyper, linear_groups(12, 1, seed=seed), jax.random.key(seed), 100)[1]
    assert n_splits(metrics) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *slow(1, 2)])
@pytest.mark.parametrize("name", ["adacfl", *slow("layercfl", "cfl")])
def test_two_hidden_groups_are_split_once_and_rightly(name, seed, model):
    make, hyper = METHODS[name]
    federation, key = linear_groups(12, 2, seed=seed), jax.random.key(seed)
    metrics = simulate(make(model, WORK), hyper, federation, key, 100)[1]
    assert n_splits(metrics) == 1
    assert metrics["ari"][-1] == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["adacfl", "layercfl", "cfl"])
def test_two_hidden_groups_have_better_models_than_one_for_all(name, seed, model):
    make, hyper = METHODS[name]
    federation, key = linear_groups(12, 2, seed=seed), jax.random.key(seed)
    metrics = simulate(make(model, WORK), hyper, federation, key, 100, evaluate_every=100)[1]
    averaged = simulate(fedavg(model, WORK), fedavg.Hyper(lr=0.1), federation, key, 100, evaluate_every=100)[1]
    assert metrics["accuracy_macro"][-1] > averaged["accuracy_macro"][-1] + 0.3


@pytest.mark.slow
def test_three_hidden_groups_are_found_by_splits_that_only_refine(key, model):
    metrics = simulate(cfl(model, WORK), LayerCFLHyper(lr=0.1, **EAGER), linear_groups(12, 3), key, 60)[1]
    label = np.asarray(metrics["label"])
    assert metrics["ari"][-1] == 1.0
    assert metrics["n_clusters"][-1] == 3
    for label_before, label_after in itertools.pairwise(label):
        assert len(set(zip(label_before, label_after, strict=True))) == len(set(label_after))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cfl", {"r_min": 60}),
        ("cfl", {"min_size": 12}),
        ("cfl", {"gamma_max": 1.0}),
        ("cfl", {"eps_ratio": 1e6}),
        ("adacfl", {"spacing": 1e6}),
    ],
)
def test_each_condition_can_forbid_a_split(key, model, name, change):
    make, hyper = METHODS[name]
    assert n_splits(simulate(make(model, WORK), hyper.replace(**change), linear_groups(12, 2), key, 40)[1]) == 0


@pytest.mark.slow
def test_children_start_from_their_parent_and_take_their_own_update(key, model):
    federation, hyper = linear_groups(12, 2), as_traced(LayerCFLHyper(lr=0.1, **EAGER))
    algorithm, keys = cfl(model, WORK), split_key(key)
    n_rounds = int(np.argmax(simulate(algorithm, hyper, federation, key, 30)[1]["n_clusters"] > 1))
    server = simulate(algorithm, hyper, federation, key, n_rounds)[0].server
    next_server = simulate(algorithm, hyper, federation, key, n_rounds + 1)[0].server
    cohort = sample_cohort(keys.cohort, jnp.int32(n_rounds), federation, 12, None)
    for group in range(2):
        members = cohort._replace(active=federation.group == group)
        parent = State(tree.take(server.centers, 0), {})
        expected, _ = jax.jit(fedavg(model, WORK).round)(key, as_traced(fedavg.Hyper(lr=0.1)), parent, members)
        chex.assert_trees_all_close(tree.take(next_server.centers, group), expected.server, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(next_server.kept[1], next_server.kept[0])  # the peak


def test_absent_clients_follow_the_larger_half():
    sides, is_counted, one_cluster = jax.jit(everyones_side), np.array([True, True, True, False]), np.zeros(6, np.int32)
    side, ids = np.array([False, True, True, False]), np.array([0, 2, 3, 5])
    np.testing.assert_array_equal(sides(side, is_counted, one_cluster, ids), [False, True, True, True, True, True])
    # The same participants, met in another order and with the halves named the other way round.
    order = np.array([3, 2, 0, 1])
    reordered = sides(~side[order], is_counted[order], one_cluster, ids[order])
    np.testing.assert_array_equal(reordered, [False, True, True, True, True, True])
    sides_of_tie = sides(np.array([True, False]), np.ones(2, bool), one_cluster, np.array([1, 4]))
    np.testing.assert_array_equal(sides_of_tie, [False, False, False, False, True, False])


@pytest.mark.slow
def test_splitting_with_partial_participation_keeps_everyone_in_a_cluster(key, model):
    federation = linear_groups(12, 2)
    state, metrics = simulate(cfl(model, WORK), LayerCFLHyper(lr=0.1, **EAGER), federation, key, 40, participation=0.6)
    assert n_splits(metrics) >= 1
    assert set(np.asarray(state.server.label).tolist()) == set(range(int(metrics["n_clusters"][-1])))


def test_layercfl_in_numpy(key, model, federation):
    """Partial participation: which clusters SciPy splits, by their first dense layer, and where absent clients go."""
    n_rounds, share, ratio, gamma_max = 8, 0.9, 1.1, 0.88
    reference = Reference(key, model, federation)
    centers, label, peak, n_refused = reference.everyone(), np.zeros(8, int), np.zeros(8), 0
    norm = lambda w: np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(w)))  # noqa: E731

    def bipartition(updates):
        """Which of the two a client is in, and the largest cosine across."""
        rows = np.stack([np.concatenate([leaf.ravel() for leaf in update["fc1"].values()]) for update in updates])
        merges = linkage(rows, "single", metric="cosine")
        half = fcluster(merges, 2, "maxclust")
        return half != half[0], 1 - merges[-1, 2]

    for round in range(n_rounds):
        cohort = drawn_cohort(federation, key, round, PLACES / 8, DROPOUT)
        there = zip(cohort.ids, cohort.key, cohort.active, strict=True)
        key_of = {int(i): client_key for i, client_key, is_present in there if is_present}
        ids, trained = list(key_of), {i: reference.train(centers[label[i]], i, key) for i, key in key_of.items()}
        updates = {i: oracle.combine(np.subtract, w, centers[label[i]]) for i, w in trained.items()}
        in_second_half = np.zeros(8, bool)
        for k in range(8):
            members = sorted(i for i in ids if label[i] == k)
            if not members:
                continue
            mean = norm(oracle.average([updates[i] for i in members], [float(reference.size[i]) for i in members]))
            longest_update, peak[k] = max(norm(updates[i]) for i in members), max(peak[k], mean)
            is_ripe_now = (
                mean < share * peak[k] and longest_update > ratio * share * peak[k] and len(members) > 2 and round > 0
            )
            is_second, cross_similarity = (
                bipartition([updates[i] for i in members]) if len(members) > 1 else ([False], 1.0)
            )
            n_refused += is_ripe_now and np.sqrt((1 - cross_similarity) / 2) <= gamma_max
            if is_ripe_now and np.sqrt((1 - cross_similarity) / 2) > gamma_max:
                for i in np.flatnonzero(label == k):
                    in_second_half[i] = (
                        is_second[members.index(i)] if i in members else sum(is_second) > len(members) / 2
                    )
        pairs = list(zip(label.tolist(), in_second_half.tolist(), strict=True))
        new_label = np.array([list(dict.fromkeys(pairs)).index(pair) for pair in pairs])
        origin = [label[np.flatnonzero(new_label == k)[0]] if k in new_label else k for k in range(8)]
        centers, peak, label = [centers[k] for k in origin], peak[origin], new_label
        for k in range(8):
            if members := [i for i in ids if label[i] == k]:
                centers[k] = oracle.average([trained[i] for i in members], [float(reference.size[i]) for i in members])
    algorithm = layercfl(model, EFFORT, layers="label")
    hyper = LayerCFLHyper(
        lr=LR, momentum=MOMENTUM, eps_share=share, eps_ratio=ratio, gamma_max=gamma_max, r_min=0, min_size=2
    )
    state, _ = simulate(algorithm, hyper, federation, key, n_rounds, participation=PLACES / 8, dropout=DROPOUT)
    assert label.max() == 2
    assert n_refused == 2
    np.testing.assert_array_equal(state.server.label, label)
    np.testing.assert_allclose(state.server.kept[: label.max() + 1], peak[: label.max() + 1], rtol=1e-4)
    assert_models(state.server.centers, centers)


def test_norms_by_hand():
    updates = {"fc1": jnp.asarray([[3.0, 4.0], [-3.0, 4.0], [0.0, 2.0], [jnp.nan, 0.0]])}
    member = jnp.asarray([[True, True, False, False], [False, False, True, False], [False] * 4, [False] * 4])
    label, weight = jnp.asarray([0, 0, 1, 1]), jnp.asarray([1.0, 3.0, 1.0, 0.0])
    norms = update_norms(updates, weight, label, member, jax.tree.map(jnp.zeros_like, updates))
    np.testing.assert_allclose(norms.mean, [np.hypot(1.5, 4.0), 2.0, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(norms.largest, [5.0, 2.0, 0.0, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(norms.n_members, [2, 1, 0, 0])


def test_a_cluster_is_ripe_by_hand():
    norms = Norms(jnp.asarray([0.09, 0.11, 0.09, 0.09]), jnp.asarray([0.5, 0.5, 0.3, 0.5]), jnp.asarray([3.0, 3, 3, 2]))
    hyper, peak = LayerCFLHyper(), jnp.ones(4)
    np.testing.assert_array_equal(is_ripe(hyper, norms, peak, jnp.int32(21)), [True, False, False, False])
    assert not is_ripe(hyper, norms, peak, jnp.int32(20)).any()
    explicit_bounds = hyper.replace(eps_1=0.2, eps_2=0.2)
    np.testing.assert_array_equal(is_ripe(explicit_bounds, norms, peak, jnp.int32(21)), [True, True, True, False])
    # What is as long as the bound is neither shorter nor longer.
    equal_bounds = hyper.replace(eps_1=0.11, eps_2=0.3)
    np.testing.assert_array_equal(is_ripe(equal_bounds, norms, peak, jnp.int32(21)), [True, False, False, False])


def test_the_test_of_gamma_by_hand():
    is_member = jnp.asarray([[True, True], [False, False]])
    for cross, gamma_max, accepted in ((0.5, 0.49, True), (0.5, 0.51, False), (1.0, 0.0, False), (jnp.inf, 0.0, False)):
        accepts = is_apart(
            LayerCFLHyper(gamma_max=gamma_max), "cos_update_part", jnp.eye(2), jnp.full(2, cross), is_member
        )
        np.testing.assert_array_equal(accepts, [accepted, False])


def test_the_test_of_spacing_by_hand():
    position = np.asarray([0.0, 1.0, 2.0, 6.0, 7.0, 50.0])
    alpha, is_member = -np.abs(position[:, None] - position).astype(np.float32), np.zeros((6, 6), bool)
    is_member[0, :5] = True

    @jax.jit
    def accepts(hyper, alpha):
        cross = best_bipartition(alpha, jnp.zeros(6, jnp.int32), "single", jnp.asarray(is_member[0])).cross
        return is_apart(hyper, "l2_weight_part", alpha, cross, jnp.asarray(is_member))

    for spacing, accepted in ((3.9, True), (4.1, False)):
        assert bool(accepts(as_traced(adacfl.Hyper(spacing=spacing)), alpha)[0]) is accepted
    equal_clients = np.zeros((6, 6), np.float32)  # clients that are all the same
    assert not accepts(as_traced(adacfl.Hyper(spacing=0.0)), equal_clients).any()


@pytest.mark.parametrize("measure", ["cos_update_part", "l2_weight_part"])
def test_the_test_of_spacing_of_several_clusters_in_numpy(measure):
    """SciPy's last merge in medians of the distance to the nearest; two clients are alone, one does not count."""
    x, metric = np.random.default_rng(1).normal(size=(12, 3)), "cosine" if measure.startswith("cos") else "euclidean"
    label, is_counted = np.array([2, 0, 1, 0, 0, 1, 1, 0, 1, 3, 0, 1]), np.arange(12) != 11
    is_member = (label == np.arange(12)[:, None]) & is_counted
    distance = cdist(x, x, metric)
    similarity_to_itself, cross_similarity, ratio = float(metric == "cosine"), np.full(12, np.inf), np.zeros(12)
    for k in range(2):
        members = np.flatnonzero(is_member[k])
        last_height = linkage(x[members], "single", metric=metric)[-1, 2]
        cross_similarity[members] = similarity_to_itself - last_height
        ratio[k] = last_height / np.median(np.sort(distance[np.ix_(members, members)], axis=1)[:, 1])
    arguments = [value.astype(np.float32) for value in (similarity_to_itself - distance, cross_similarity)]
    accepts = jax.jit(lambda hyper: is_apart(hyper, measure, *arguments, is_member))
    assert ratio[1] > 1.1 * ratio[0] > 1.1
    for spacing in (0.99 * ratio[0], 1.01 * ratio[0], 0.99 * ratio[1], 1.01 * ratio[1]):
        accepted = accepts(as_traced(LayerCFLHyper(spacing=float(spacing), gamma_max=None)))
        np.testing.assert_array_equal(accepted, ratio > spacing)


@pytest.mark.parametrize("measure", MEASURES + OTHERS)
def test_measures_equal_scikit_learn(measure):
    weights, updates = random_updates(0), random_updates(1)
    models = updates if "update" in measure else weights
    x = update_rows(models, ("fc1", "fc2") if measure.endswith("full") else ("fc2",))
    expected = cosine_similarity(x) if measure.startswith("cos") else -euclidean_distances(x)
    np.testing.assert_allclose(similarity(measure, weights, updates, ("fc2",)), expected, rtol=1e-5, atol=2e-6)


def test_distances_of_weights_and_updates_are_equal_from_a_common_start():
    start, updates = random_updates(2, n=1), random_updates(3)
    weights = jax.tree.map(lambda origin, update: origin + update, start, updates)
    similarity_of_weights = similarity("l2_weight_part", weights, updates, ("fc1",))
    np.testing.assert_allclose(
        similarity_of_weights, similarity("l2_update_part", weights, updates, ("fc1",)), rtol=1e-5
    )


@pytest.mark.slow
def test_methods_compare_whole_models_by_the_other_measures_too(key, model):
    algorithms = [layercfl(model, WORK, layers="all", measure=measure) for measure in OTHERS]
    hyper = LayerCFLHyper(lr=0.1, **EAGER, gamma_max=None, spacing=1.5, min_size=3)
    metrics = simulate(algorithms[0], hyper, linear_groups(12, 2), key, 30)[1]
    assert n_splits(metrics) == 1
    assert metrics["ari"][-1] == 1.0


@jax.jit
def sides_by_the_cosine(updates):
    alpha = similarity("cos_update_part", updates, updates, ("fc1",))
    return alpha, best_bipartition(alpha, jnp.zeros(8, jnp.int32)).side


@pytest.mark.parametrize("seed", range(5))
def test_the_length_of_updates_does_not_matter_to_the_cosine(seed):
    updates = jax.device_get(random_updates(seed, n=8))
    longer_updates = jax.tree.map(lambda leaf: np.float32(7.5) * leaf, updates)
    (alpha, side), (longer_alpha, longer_side) = (
        sides_by_the_cosine(some_updates) for some_updates in (updates, longer_updates)
    )
    np.testing.assert_allclose(longer_alpha, alpha, atol=1e-6)
    np.testing.assert_array_equal(longer_side, side)


def test_gaps_by_hand(model):
    updates = {"fc1": jnp.asarray([[1.0, 0.0], [1.0, 1.0], [0.0, -1.0]]), "fc2": jnp.asarray([[1.0], [1.0], [1.0]])}
    actual = gaps(model, updates, updates, ("fc1",), jnp.asarray([0, 0, 1]), jnp.ones(3, bool))
    np.testing.assert_allclose(actual["gap_fc1"], np.sqrt(0.5) - 0.0, rtol=1e-6)
    np.testing.assert_allclose(actual["gap_fc2"], 0.0, atol=1e-6)
    np.testing.assert_allclose(actual["gap_l2_update_part"], np.sqrt(2) - 1.0, rtol=1e-6)


@pytest.mark.parametrize(
    ("gap", "layers"),
    [
        ({"fc1": 0.1, "fc2": 0.3, "fc3": 0.2, "cos_update_full": 0.25}, ("fc2",)),
        ({"fc1": 0.1, "fc2": 0.1, "fc3": 0.0, "cos_update_full": 0.1, "l2_weight_part": 9.0}, ("fc1",)),
        ({"fc1": 0.1, "fc2": 0.2, "fc3": 0.0, "cos_update_full": 0.3}, ("fc1", "fc2", "fc3")),
        ({"fc1": -0.1, "fc2": 0.0, "fc3": -0.2, "cos_update_full": -0.3}, ("fc1", "fc2", "fc3")),
    ],
)
def test_the_pilot_takes_the_layer_of_widest_gap_or_all(gap, layers):
    assert layers_by_pilot(mlp((4, 4, 1), (6, 5), 4), gap) == layers


def test_the_pilot_of_another_model_is_refused(model):
    with pytest.raises(ValueError, match=r"no entry for \['cos_update_full'\]"):
        layers_by_pilot(model, dict.fromkeys(model.layers, 1.0))


@pytest.mark.parametrize("n", [0, 2, 9])
def test_true_groups_of_other_than_all_clients_are_refused(key, model, n):
    algorithm = layercfl(model, WORK, layers="all", group=(0,) * n)
    with pytest.raises(ValueError, match=f"group has {n} entries but the data has 8 clients"):
        simulate(algorithm, LayerCFLHyper(), linear_groups(8, 2), key, 2, participation=0.5)


def test_layers_by_kind_of_skew():
    assert chosen_layers(cnn((8, 8, 1), channels=(4,) * 6, padding="SAME"), "feature") == ("conv4",)
    assert chosen_layers(cnn((8, 8, 1)), "feature") == ("conv2",)
    assert chosen_layers(cnn((8, 8, 1)), "label") == ("fc1",)
    assert chosen_layers(cnn((8, 8, 1)), "dense") == ("fc1", "fc2")
    assert chosen_layers(cnn((8, 8, 1)), "conv1") == ("conv1",)
    assert chosen_layers(cnn((8, 8, 1)), ("fc2", "conv1")) == ("fc2", "conv1")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"layers": "feature"}, "layers='feature'"),
        ({"layers": ("fc9",)}, "fc9"),
        ({"layers": ()}, "layers="),
        ({"measure": "cosine", "layers": "all"}, "measure='cosine'"),
        ({"linkage": "average", "layers": "all"}, "linkage='average'"),
        ({"weighting": "equal", "layers": "all"}, "weighting='equal'"),
    ],
)
def test_unknown_options_are_named(model, options, text):
    with pytest.raises(ValueError, match=text):
        layercfl(model, WORK, **options)


@pytest.mark.slow
def test_the_pilot_measures_the_gap_of_every_layer(key):
    federation, network = linear_groups(8, 2), mlp((4, 4, 1), (6, 5), 4)
    algorithm = layercfl(network, WORK, layers="all", group=tuple(np.asarray(federation.group).tolist()))
    without_splits = LayerCFLHyper(lr=0.1, eps_2=np.inf)
    layer_gap = layer_gaps(algorithm, without_splits, federation, key, 6)
    assert set(layer_gap) == {"fc1", "fc2", "fc3", *MEASURES}
    metrics = simulate(algorithm, without_splits, federation, key, 6)[1]
    np.testing.assert_allclose(layer_gap["fc3"], metrics["gap_fc3"][-1], rtol=1e-5)
    chosen = layers_by_pilot(network, layer_gap)
    assert chosen_layers(network, chosen) == chosen


def test_each_method_knows_its_own_name(model):
    assert cfl(model, WORK).about.name == "cfl"
    assert adacfl(model, WORK).about.name == "adacfl"
    assert dict(cfl(model, WORK, linkage="complete").about.choices) == {"linkage": "complete", "weighting": "size"}


@pytest.mark.slow
def test_children_inherit_what_their_server_remembers(key, model):
    """A server with momentum: the split takes over the parent's, and both halves then go their own ways."""
    method = cfl + BRICKS["momentum"]
    hyper = method.Hyper(lr=0.1, eps_1=1e3, eps_2=0.0, gamma_max=None, r_min=0, min_size=6, server_lr=0.5)
    servers = [simulate(method(model, WORK), hyper, linear_groups(8, 2), key, n)[0].server for n in (1, 2)]
    assert [len(set(np.asarray(server.label).tolist())) for server in servers] == [1, 2]
    momentum_before, momentum_after = (np.asarray(tree.flatten(server.memory.moments[0].trace)) for server in servers)
    assert np.abs(momentum_before[0]).max() > 0
    assert not momentum_before[1].any()
    centers = [np.asarray(tree.flatten(server.centers)) for server in servers]
    for k in range(2):  # v <- beta v + (theta - mean), theta <- theta - eta v: from the parent's theta and v
        np.testing.assert_allclose(centers[1][k], centers[0][0] - 0.5 * momentum_after[k], rtol=1e-5, atol=1e-6)
    assert not np.allclose(momentum_after[0], momentum_after[1])
