"""DC-PFL: its limit laws, its invariants, what each layer costs, and what a trial compares."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.algorithms.dcpfl import dcpfl
from fljax.algorithms.dcpfl.layer_schedule import LayerTable, intervals, layer_traffic, reschedule
from fljax.algorithms.dcpfl.splitting import Watch, mean_discrepancy, one_group, watch
from fljax.algorithms.dcpfl.trial import client_side_of
from fljax.algorithms.dcpfl.units import units_of
from fljax.algorithms.fedavg import fedavg
from fljax.data.synthetic import linear_groups
from fljax.models import lenet, mlp
from fljax.rounds import Sent
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import as_traced, split_key
from fljax.server.curvature import new_curve, observe
from fljax.server.discrepancy import model_discrepancy
from fljax.types import State, Work
from tests import oracle
from tests.algorithms.round_by_round import drawn_cohort, jitted, one_round, simulate
from tests.oracle import as_float64, examples_of
from tests.slow import slow

HYPER = dcpfl.Hyper(lr=0.03, step=0.3)
AFTER = jnp.int32(20)
"""A round after the warm-up."""


@pytest.fixture(scope="module")
def groups():
    return linear_groups(12, 3, examples=60, val_fraction=0.2)


@pytest.fixture(scope="module")
def wide_model():
    return mlp(input_shape=(4, 4, 1), hidden=(16,), n_classes=4)


@pytest.fixture(scope="module")
def eager_run(groups, wide_model):
    """A run that splits as early and as often as it can."""
    algorithm = dcpfl(wide_model, Work(2, 16), trial_loss="train", period_end="formula")
    return simulate(algorithm, HYPER, groups, jax.random.key(0), 40)


@pytest.mark.slow
@pytest.mark.parametrize("participation", [1.0, *slow(0.5)])
def test_without_splits_and_with_every_layer_due_it_is_uniform_fedavg(key, model, work, federation, participation):
    hyper = dcpfl.Hyper(lr=0.05, step=0.0, alpha=1.0, momentum=0.5)
    state, metrics = simulate(dcpfl(model, work), hyper, federation, key, 14, participation=participation)
    averaging = fedavg(model, work, weighting="uniform")
    expected_state, expected_metrics = simulate(
        averaging, fedavg.Hyper(lr=0.05, momentum=0.5), federation, key, 14, participation=participation
    )
    # A mean among as many slots as clients is summed in another order than a mean alone, fourteen rounds in a row.
    chex.assert_trees_all_close(tree.take(state.server.table.theta, 0), expected_state.server, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["client_loss"], expected_metrics["client_loss"], rtol=1e-4, atol=1e-5)
    n_parameters = tree.size(model.init(key))
    np.testing.assert_array_equal(metrics["uplink"], n_parameters + 1)
    np.testing.assert_array_equal(metrics["downlink"], n_parameters)
    np.testing.assert_array_equal(metrics["n_clusters"], 1)


@pytest.mark.slow
def test_a_period_that_never_ends_leaves_one_group(groups, wide_model):
    metrics = simulate(dcpfl(wide_model, Work(1, 16), n_after=30), HYPER, groups, jax.random.key(0), 25)[1]
    assert not metrics["trial"].any()
    np.testing.assert_array_equal(metrics["n_clusters"], 1)


@pytest.mark.slow
def test_the_partition_only_refines(eager_run):
    label, ids = np.asarray(eager_run[1]["label"]), np.asarray(eager_run[1]["ids"])
    np.testing.assert_array_equal(ids, np.tile(np.arange(12), (40, 1)))
    is_same_group = label[:, :, None] == label[:, None, :]
    assert (is_same_group[:-1] | ~is_same_group[1:]).all()
    assert eager_run[1]["n_clusters"][-1] > 3
    threshold = np.asarray(eager_run[1]["threshold"])
    assert (np.diff(threshold) <= 0).all()
    assert np.isclose(threshold[:, None], [1.0, 0.7, 0.4, 0.1, 0.0], atol=1e-6).any(axis=1).all()


@pytest.mark.slow
def test_an_adopted_trial_had_the_lower_loss(eager_run):
    metrics = eager_run[1]
    is_trial, is_adopted = np.asarray(metrics["trial"]), np.asarray(metrics["adopted"])
    is_lower = np.asarray(metrics["trial_loss_split"] < metrics["trial_loss_present"])
    assert is_adopted.sum() >= 2
    np.testing.assert_array_equal(is_adopted, is_trial & is_lower)
    change_rounds = np.flatnonzero(np.diff(np.asarray(metrics["n_clusters"]))) + 1
    np.testing.assert_array_equal(change_rounds, np.flatnonzero(is_adopted))


@pytest.mark.slow
def test_the_first_trial_of_the_formula_is_the_eleventh_round(eager_run):
    assert np.flatnonzero(eager_run[1]["trial"])[0] == 10


@pytest.mark.slow
def test_radii_count_from_the_end_of_the_warm_up_on(groups, wide_model):
    """With T_start > s + 2 the first of them is that of round T_start; three later ones must be larger."""
    algorithm = dcpfl(wide_model, Work(2, 16), trial_loss="train", period_end="formula")
    metrics = simulate(algorithm, HYPER.replace(warmup=12.0), groups, jax.random.key(0), 18)[1]
    assert np.flatnonzero(metrics["trial"])[0] == 12 + 3 + 1
    np.testing.assert_array_equal(np.asarray(metrics["radius"][:16]) > 0, np.arange(16) >= 12)


def test_the_loss_is_smoothed_over_the_warm_up_too():
    watched = Watch(new_curve(), jnp.int32(0))
    for round, loss in enumerate((5.0, 4.0, 3.2, 2.6, 2.1, 1.7, 1.4, 1.2)):
        is_trial = jnp.bool_(False)
        watched_before, watched = (
            watched,
            watch(HYPER.replace(warmup=7.0), watched, jnp.float32(loss), is_trial, is_trial, jnp.int32(round)),
        )
    np.testing.assert_array_equal(watched_before.curve.radii, 0)  # round 6, whose seven losses would give one
    expected = observe(watched_before.curve, jnp.float32(1.2))
    chex.assert_trees_all_equal(watched.curve, expected)
    assert expected.radii[-1] > 0


@pytest.mark.slow
def test_the_discrepancy_is_the_mean_over_the_warm_up(key, groups, wide_model):
    algorithm, hyper = dcpfl(wide_model, Work(2, 16)), as_traced(dcpfl.Hyper(lr=0.03, warmup=3.0))
    keys, total = split_key(key), 0.0
    state = jitted(algorithm.init)(keys.init, hyper, groups.train)
    for round in range(5):
        state, _ = one_round(algorithm, hyper, groups, key, state, round)
        total = total + np.asarray(model_discrepancy(state.clients.model)) * (round < 3)
    discrepancy = np.asarray(mean_discrepancy(state.server.groups))
    np.testing.assert_allclose(discrepancy, total / 3, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(discrepancy, discrepancy.T)
    np.testing.assert_array_equal(np.diag(discrepancy), 0)
    assert 0 <= discrepancy.min() <= discrepancy.max() <= 1


def test_pairs_that_never_met_have_the_mean_discrepancy():
    discrepancy = jnp.asarray([[0.0, 2, 0], [2, 0, 6], [0, 6, 0]])
    n_met = jnp.asarray([[2.0, 2, 0], [2, 2, 2], [0, 2, 2]])
    mean = mean_discrepancy(one_group(3)._replace(discrepancy=discrepancy, n_met=n_met))
    np.testing.assert_allclose(mean, [[0, 1, 2], [1, 0, 3], [2, 3, 0]])
    np.testing.assert_array_equal(mean_discrepancy(one_group(3)), 0)  # nobody met anybody


@pytest.mark.slow
def test_every_layer_is_averaged_at_least_every_alpha_rounds(groups, wide_model):
    """With every layer low, clients of a group agree on all layers once every three rounds, and only then."""
    hyper = dcpfl.Hyper(lr=0.03, step=0.0, low=100.0, alpha=3.0)
    algorithm = dcpfl(wide_model, Work(1, 16))
    metrics = simulate(algorithm, hyper, groups, jax.random.key(0), 13)[1]
    n_parameters = tree.size(wide_model.init(jax.random.key(0)))
    sent = np.asarray(metrics["uplink"][:, 0]) - 1
    # Five rounds of warm-up, then the rounds divisible by three.
    np.testing.assert_array_equal(sent > 0, [t < 5 or t % 3 == 0 for t in range(13)])
    assert set(sent) == {0, n_parameters}
    # What was sent in a round is fetched in the next; in the first, the initial model.
    np.testing.assert_array_equal(metrics["downlink"][1:, 0], sent[:-1])
    assert metrics["downlink"][0, 0] == n_parameters
    state, _ = simulate(algorithm, hyper, groups, jax.random.key(0), 13)  # round 12 is divisible by three
    deployed = jitted(algorithm.deploy)(jax.random.key(0), hyper, state, groups.train)
    kernel = deployed.params["fc1"]["kernel"]
    np.testing.assert_array_equal(kernel, np.broadcast_to(kernel[:1], kernel.shape))


def test_low_layers_wait_and_equal_members_wait_with_all():
    discrepancy = jnp.asarray([[0.01, 0.5, 0.5], [0.2, 0.2, 0.2], [0.0, 0.0, 0.0]])
    np.testing.assert_array_equal(intervals(discrepancy, 0.1, 3.0), [[3, 1, 1], [1, 1, 1], [3, 3, 3]])
    # As much as the share is not low; alpha is the nearest whole number of rounds.
    equal_layers = jnp.full((1, 4), 0.25)
    np.testing.assert_array_equal(intervals(equal_layers, 1.0, 3.0), [[1] * 4])
    np.testing.assert_array_equal(intervals(equal_layers, 1.1, 1.6), [[2] * 4])


def test_a_group_of_which_nobody_counts_keeps_its_intervals(key, model):
    interval, units = jnp.asarray([[1, 3], [3, 1], [1, 1]]), units_of(model, "layer")
    models = jax.vmap(model.init)(jax.random.split(key, 4))
    table = LayerTable(jax.tree.map(lambda leaf: leaf[:3], models), jnp.zeros((3, 2), jnp.int32), interval)
    sent = Sent(models, jnp.asarray([1.0, 1, 0, 0]), jnp.asarray([0, 0, 1, 1]))
    next_interval = jax.jit(lambda table, sent: reschedule(table, units, sent, 100.0, 5.0).interval)(table, sent)
    np.testing.assert_array_equal(next_interval, [[5, 5], [3, 1], [1, 1]])


@pytest.mark.slow
def test_uplink_of_the_cifar_lenet_falls_to_0_3734():
    """fc1 and fc2 every third round, the rest always: (3,722 + 58,284 / 3) / 62,006, the paper's timing."""
    params = lenet(input_shape=(32, 32, 3)).init(jax.random.key(0))
    layers = ("conv1", "conv2", "fc1", "fc2", "fc3")
    sizes = jnp.asarray([tree.size(params[name]) for name in layers], jnp.float32)
    groups, due = one_group(4), np.zeros((3, 4, 5), bool)
    due[..., [0, 1, 4]] = True
    due[0] = True
    uplink = np.stack(
        [layer_traffic(sizes, jnp.asarray(d), jnp.asarray(d), groups, jnp.arange(4))["uplink"] for d in due]
    )
    np.testing.assert_allclose((uplink.mean(axis=0) - 1) / 62_006, (3_722 + 58_284 / 3) / 62_006, rtol=1e-6)
    assert round(float(uplink[:, 0].mean() - 1) / 62_006, 4) == 0.3734


def test_what_a_trial_costs():
    sizes = jnp.asarray([10.0, 5.0])
    structure = one_group(6)._replace(
        label=jnp.asarray([0, 0, 0, 1, 1, 2]), next_label=jnp.asarray([0, 0, 1, 2, 2, 3]), on_trial=jnp.bool_(True)
    )
    cost = jax.jit(layer_traffic)(sizes, np.ones((6, 2), bool), np.zeros((6, 2), bool), structure, jnp.arange(6))
    # The first group would split: two models down, two losses up. The second stays: one. The last client is alone.
    np.testing.assert_array_equal(cost["uplink"], [17, 17, 17, 16, 16, 1])
    np.testing.assert_array_equal(cost["downlink"], [30, 30, 30, 15, 15, 0])


@pytest.mark.slow
def test_a_client_alone_exchanges_nothing_but_its_loss(eager_run):
    metrics = eager_run[1]
    label = np.asarray(metrics["label"])
    is_alone = np.array([[(row == k).sum() == 1 for k in row] for row in label])
    stays_alone = is_alone[:-1] & is_alone[1:]
    assert stays_alone.any()
    np.testing.assert_array_equal(np.asarray(metrics["uplink"])[1:][stays_alone], 1)
    np.testing.assert_array_equal(np.asarray(metrics["downlink"])[1:][stays_alone], 0)


@pytest.mark.slow
def test_a_trial_starts_both_structures_from_the_same_uploads_and_batches(key, groups, wide_model):
    """Structures that are equal in disguise have the same losses: noise never decides."""
    algorithm, hyper = dcpfl(wide_model, Work(2, 16)), as_traced(HYPER)
    keys = split_key(key)
    state = jitted(algorithm.init)(keys.init, hyper, groups.train)
    state, _ = one_round(algorithm, hyper, groups, key, state, 0)
    on_trial = state.server.groups._replace(on_trial=jnp.bool_(True))  # next_label: one group, as now
    server = state.server._replace(groups=on_trial, next_theta=state.server.table.theta)
    state = State(server, state.clients)
    next_state, metrics = one_round(algorithm, hyper, groups, key, state, 1)
    assert metrics["trial_loss_present"] == metrics["trial_loss_split"]
    assert not metrics["adopted"]
    state_off_trial = State(state.server._replace(groups=on_trial._replace(on_trial=jnp.bool_(False))), state.clients)
    chex.assert_trees_all_close(
        next_state.clients,
        one_round(algorithm, hyper, groups, key, state_off_trial, 1)[0].clients,
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_trial_in_numpy(key, model, federation):
    """Clients that count train from both models. One drops out; the training of another from one model overflows."""
    cohort, absent, overflowing = drawn_cohort(federation, key, 0, 1.0, None), 1, 3
    cohort, data = (
        cohort._replace(active=np.arange(8) != absent),
        [examples_of(federation.train, i) for i in cohort.ids],
    )
    starts = jax.device_get(jax.vmap(model.init)(jax.random.split(key, 16)))
    starts = jax.tree.map(lambda leaf: leaf.reshape(2, 8, *leaf.shape[1:]), starts)
    participants = [client for client in range(8) if client not in (absent, overflowing)]
    trained = [
        [oracle.local_sgd(as_float64(tree.take(tree.take(starts, s), i)), [data[i]], HYPER.lr) for i in participants]
        for s in range(2)
    ]
    loss = np.array(
        [
            np.mean([oracle.training_loss(w, *data[i]) for i, w in zip(participants, models, strict=True)])
            for models in trained
        ]
    )
    client_side = jax.jit(client_side_of(model, Work(1, 64), "train"))
    for better in range(2):  # the structure on trial, or the present one; the overflow comes in the other
        order = np.array([1 - better, better]) if loss[1] < loss[0] else np.array([better, 1 - better])
        bad_starts = jax.tree.map(lambda leaf, order=order: leaf[order].copy(), starts)
        bad_starts["fc1"]["kernel"][1 - better, overflowing] = 1e38
        result = client_side(as_traced(HYPER), bad_starts, jnp.bool_(True), cohort)
        np.testing.assert_allclose(result.trial_loss, loss[order], rtol=1e-5)
        assert bool(result.adopted) is bool(better)
        expected = jax.tree.map(lambda *leaves: np.stack(leaves), *trained[order[better]])
        chex.assert_trees_all_close(
            tree.take(result.trained.params, np.array(participants)), expected, rtol=1e-5, atol=1e-5
        )
    result = client_side(as_traced(HYPER), jax.tree.map(lambda leaf: leaf[[0, 0]], starts), jnp.bool_(True), cohort)
    assert result.trial_loss[0] == result.trial_loss[1] > 0
    assert not result.adopted  # what is no better is not adopted


@pytest.mark.slow
def test_a_trial_reads_the_validation_split_only_where_it_is_told_to(key, groups, wide_model):
    keys = split_key(key)
    wrong_labels = groups.val._replace(pool=groups.val.pool._replace(y=(groups.val.pool.y + 1) % 4))

    def split_loss(trial_loss, val):
        algorithm, hyper = dcpfl(wide_model, Work(2, 16), trial_loss=trial_loss), as_traced(HYPER)
        state = jitted(algorithm.init)(keys.init, hyper, groups.train)
        structure = state.server.groups._replace(on_trial=jnp.bool_(True), next_label=groups.group)
        state = State(state.server._replace(groups=structure), state.clients)
        cohort = sample_cohort(keys.cohort, jnp.int32(0), groups._replace(val=val), 12, None)
        return float(jitted(algorithm.round)(key, hyper, state, cohort)[1]["trial_loss_split"])

    assert split_loss("val", groups.val) != split_loss("val", wrong_labels)
    assert split_loss("train", groups.val) == split_loss("train", wrong_labels)
    assert split_loss("val", None) == split_loss("train", groups.val)


def test_after_a_rejection_the_loss_is_not_observed_and_after_a_trial_it_starts_anew():
    watched, rule = Watch(new_curve(), jnp.int32(0)), HYPER.replace(pause=1.6)  # the nearest whole number of rounds
    for loss in (3.0, 2.0):
        watched = watch(rule, watched, jnp.float32(loss), jnp.bool_(False), jnp.bool_(False), AFTER)
    chex.assert_trees_all_equal(watched.curve, observe(observe(new_curve(), jnp.float32(3)), jnp.float32(2)))
    for no_loss in (jnp.nan, jnp.inf):  # of a round of nobody
        chex.assert_trees_all_equal(
            watch(rule, watched, jnp.float32(no_loss), jnp.bool_(False), jnp.bool_(False), AFTER), watched
        )
    adopted = watch(rule, watched, jnp.float32(1), jnp.bool_(True), jnp.bool_(True), AFTER)
    chex.assert_trees_all_equal(adopted, Watch(new_curve(), jnp.int32(0)))
    resting = watch(rule, watched, jnp.float32(1), jnp.bool_(True), jnp.bool_(False), AFTER)
    counts = []
    for _ in range(4):
        counts.append((int(resting.resting), int(resting.curve.count)))
        resting = watch(rule, resting, jnp.float32(1), jnp.bool_(False), jnp.bool_(False), AFTER)
    assert counts == [(2, 0), (1, 0), (0, 0), (0, 1)]


@pytest.mark.slow
def test_a_fixed_threshold_acts_from_the_end_of_the_warm_up(groups, wide_model):
    algorithm = dcpfl(wide_model, Work(2, 16), dynamic=False)
    metrics = simulate(algorithm, dcpfl.Hyper(lr=0.03), groups, jax.random.key(0), 8)[1]
    np.testing.assert_array_equal(metrics["n_clusters"], [1, 1, 1, 1, 3, 3, 3, 3])
    np.testing.assert_array_equal(metrics["threshold"], np.float32(0.8))
    np.testing.assert_array_equal(metrics["ari"][4:], 1)


@pytest.mark.slow
def test_without_layer_wise_aggregation_everything_is_always_sent(groups, wide_model):
    hyper = dcpfl.Hyper(lr=0.03, step=0.0, low=100.0)
    metrics = simulate(dcpfl(wide_model, Work(1, 16), layerwise=False), hyper, groups, jax.random.key(0), 9)[1]
    np.testing.assert_array_equal(metrics["uplink"], tree.size(wide_model.init(jax.random.key(0))) + 1)


def normalised_model():
    """Layers with running statistics."""
    shapes = {"conv": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}, "norm": {"scale": jnp.ones(3)}}
    params = shapes | {"batch_stats": {"norm": {"mean": jnp.zeros(3), "var": jnp.ones(3)}}}
    return mlp()._replace(init=lambda key: params, layers=("conv", "norm")), params


def test_units_are_layers_or_tensors_and_come_together_again():
    model, params = normalised_model()
    layers, tensors = units_of(model, "layer"), units_of(model, "tensor")
    assert layers.names == ("conv", "norm")
    assert set(tensors.names) == {"conv/kernel", "conv/bias", "norm/scale"}
    assert dict(zip(tensors.names, tensors.sizes(params), strict=True)) == {
        "conv/kernel": 6,
        "conv/bias": 3,
        "norm/scale": 3,
    }
    for units in (layers, tensors):
        chex.assert_trees_all_equal(units.together(units.apart(params)), params)


def test_one_tensor_may_be_taken_without_its_layer():
    model, params = normalised_model()
    units = units_of(model, "tensor")
    old, new = (jax.tree.map(lambda leaf, v=value: jnp.full((2, *leaf.shape), v), params) for value in (0.0, jnp.nan))
    is_taken = np.array([[name == "conv/bias" for name in units.names], [name == "norm/scale" for name in units.names]])
    mixed = units.where(jnp.asarray(is_taken), new, old)
    is_new = {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.isnan(leaf).all(axis=tuple(range(1, leaf.ndim)))
        for path, leaf in jax.tree_util.tree_leaves_with_path(mixed)
    }
    # The statistics go with the scale.
    of_norm = [False, True]
    assert {name: is_new_row.tolist() for name, is_new_row in is_new.items()} == {
        "conv/kernel": [False, False],
        "conv/bias": [True, False],
        "norm/scale": of_norm,
        "batch_stats/norm/mean": of_norm,
        "batch_stats/norm/var": of_norm,
    }


@pytest.mark.slow
def test_tensors_have_intervals_and_costs_of_their_own(groups, wide_model):
    """Half of a layer waits: sums of tensors are sent that no layers add up to, and all of them every third round."""
    hyper = dcpfl.Hyper(lr=0.03, step=0.0, low=0.9, momentum=None)
    algorithm = dcpfl(wide_model, Work(1, 16), layer_unit="tensor")
    state, metrics = simulate(algorithm, hyper, groups, jax.random.key(0), 12)
    sizes = {"fc1/kernel": 256, "fc1/bias": 16, "fc2/kernel": 64, "fc2/bias": 4}
    sent, rounds = np.asarray(metrics["uplink"][:, 0]) - 1, np.arange(12)
    np.testing.assert_array_equal(sent[(rounds < 5) | (rounds % 3 == 0)], 340)
    is_waiting = np.asarray(state.server.table.interval[0]) == 3
    names = units_of(wide_model, "tensor").names
    assert 0 < is_waiting.sum() < 4
    assert is_waiting[names.index("fc1/kernel")] != is_waiting[names.index("fc1/bias")]
    assert sent[11] == sum(sizes[name] for name, waits in zip(names, is_waiting, strict=True) if not waits)
    np.testing.assert_array_equal(metrics["downlink"][1:, 0], sent[:-1])


@pytest.mark.slow
def test_where_nothing_waits_tensors_are_as_layers(groups, wide_model):
    hyper = dcpfl.Hyper(lr=0.03, low=0.0)
    layers, tensors = (
        simulate(dcpfl(wide_model, Work(1, 16), layer_unit=unit), hyper, groups, jax.random.key(0), 9)[0].clients
        for unit in ("layer", "tensor")
    )
    chex.assert_trees_all_close(layers, tensors, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_group_models_are_the_means_of_their_members(groups, wide_model):
    hyper = dcpfl.Hyper(lr=0.03, low=100.0)
    state, _ = simulate(dcpfl(wide_model, Work(1, 16), dynamic=False), hyper, groups, jax.random.key(0), 9)
    clients, means = (
        dcpfl(wide_model, Work(1, 16), dynamic=False, deployed=deployed_models).deploy(
            jax.random.key(0), hyper, state, groups.train
        )
        for deployed_models in ("own", "group")
    )
    for k in range(3):
        members = np.asarray(clients.params["fc2"]["kernel"])[np.asarray(groups.group) == k]
        np.testing.assert_allclose(means.params["fc2"]["kernel"][k], members.mean(axis=0), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_hidden_groups_are_found_and_fedavg_is_beaten(wide_model):
    work = Work(2, 16)
    for seed in range(3):
        federation = linear_groups(12, 2, examples=60, val_fraction=0.2, seed=seed)
        key = jax.random.key(seed)
        metrics = simulate(dcpfl(wide_model, work), dcpfl.Hyper(lr=0.03), federation, key, 30)[1]
        baseline = simulate(fedavg(wide_model, work), fedavg.Hyper(lr=0.03, momentum=0.9), federation, key, 30)[1]
        assert metrics["ari"][-1] == 1.0
        assert metrics["accuracy_macro"][-1] > baseline["accuracy_macro"][-1] + 0.3


@pytest.mark.parametrize("option", ["trial_loss", "period_end", "deployed", "layer_unit"])
def test_unknown_options_are_refused(model, work, option):
    with pytest.raises(ValueError, match=option):
        dcpfl(model, work, **{option: "other"})
