"""Methods and federations under attack: who attacks, what the others see of it, and what is measured."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fljax
from fljax.attacks import ATTACKS, alie, attacked, backdoor, fang, feature_noise, label_flip, sign_flip
from fljax.attacks.attack import Attack
from fljax.attacks.attackers import attackers
from fljax.attacks.poison import poisoned, triggered
from fljax.data.federation import n_classes
from fljax.data.synthetic import linear_groups
from fljax.run.sweep.search import on_validation
from fljax.types import Work
from tests.oracle import rows_of
from tests.slow import slow

WORK = Work(epochs=1, batch_size=8)


def run(attacked_run, key, n_rounds=3, **numbers):
    return fljax.simulate(attacked_run.algorithm, fljax.fedavg.Hyper(**numbers), attacked_run.federation, key, n_rounds)


def test_attackers_are_spread_over_the_groups_or_fill_one(federation):
    group = np.asarray(federation.group)
    spread_ids = attackers(federation, 1 / 3, None, "spread")
    assert sorted(group[list(spread_ids)]) == [0, 1, 2]
    ids_of_one_group = attackers(federation, 1 / 3, None, "one_group")
    assert len(ids_of_one_group) == 3
    assert len(set(group[list(ids_of_one_group)])) == 1
    assert len(attackers(federation, 0.01, None, "spread")) == 1
    assert attackers(federation, 0.0, None, "spread") == ()
    assert attackers(federation, 0.5, (4, 1), "spread") == (1, 4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ids": (9,)}, "client 9 attacks but there are 9"),
        ({"ids": range(9)}, r"ids=\[0, .*\]: 9 of 9 clients attack, and no client is honest"),
        ({"share": 0.97}, "share=0.97: 9 of 9 clients attack, and no client is honest"),
    ],
)
def test_attackers_that_cannot_be_are_refused(federation, model, given, message):
    with pytest.raises(ValueError, match=message):
        attacked(fljax.fedavg(model, WORK), federation, sign_flip(**given))


@pytest.mark.parametrize("given", ["sign_flip", sign_flip])
def test_a_name_or_an_attack_that_was_not_called_is_none(federation, model, given):
    with pytest.raises(
        ValueError, match=r"^attack is .*sign_flip.*, not an Attack; call one of fljax.attacks, such as "
    ):
        attacked(fljax.fedavg(model, WORK), federation, given)


def test_numbers_of_attacks_are_checked():
    with pytest.raises(ValueError, match=r"share=1\.5 is out of its range"):
        sign_flip(share=1.5)
    with pytest.raises(ValueError, match="placed='here' is unknown"):
        sign_flip(placed="here")
    with pytest.raises(ValueError, match="sign_flip has no 'z'"):
        sign_flip(z=1)
    for ids, message in (
        (3, "ids=3 is not a sequence"),
        ((1.5,), "ids: 1.5 is not a client's number"),
        (("a",), "ids: 'a'"),
    ):
        with pytest.raises(ValueError, match=message):
            sign_flip(ids=ids)
    for make, numbers in ((alie, {"z": float("nan")}), (alie, {"z": float("inf")}), (fang, {"b": 0.5})):
        with pytest.raises(ValueError, match=rf"{min(numbers)}=.*"):
            make(**numbers)
    assert sign_flip(scale=2.0) is sign_flip(scale=2.0)
    assert sign_flip(scale=jnp.float32(2)) is sign_flip(scale=np.array(2.0)) is sign_flip(scale=2.0)
    with pytest.raises(ValueError, match=r"^scale=-1 is out of its range; choose scale > 0$"):
        sign_flip(scale=-1.0)
    with pytest.raises(ValueError, match=r"^scale=None is not a number; choose scale > 0$"):
        sign_flip(scale=None)


def test_an_attack_without_attackers_is_no_attack(federation, model):
    algorithm = fljax.fedavg(model, WORK)
    for attack in (ATTACKS["none"](), sign_flip(share=0.0)):
        unattacked = attacked(algorithm, federation, attack)
        assert unattacked.algorithm is algorithm
        assert unattacked.federation is federation


@pytest.mark.slow
def test_poisoned_examples_are_copies_that_only_attackers_have(federation, model):
    attacked_federation = attacked(fljax.fedavg(model, WORK), federation, label_flip(ids=(2, 7))).federation
    clean_data, poisoned_data = federation.train, attacked_federation.train
    n_examples = clean_data.pool.y.shape[0]
    np.testing.assert_array_equal(poisoned_data.pool.y[:n_examples], clean_data.pool.y)
    for i, size in enumerate(np.asarray(clean_data.size)):
        (old_y, new_y), rows = (
            (some_data.pool.y[some_data.index[i, :size]] for some_data in (clean_data, poisoned_data)),
            poisoned_data.index[i, :size],
        )
        np.testing.assert_array_equal(new_y, 3 - old_y if i in (2, 7) else old_y)
        np.testing.assert_array_equal(poisoned_data.pool.x[rows], clean_data.pool.x[clean_data.index[i, :size]])
        assert (np.asarray(rows) >= n_examples).all() == (i in (2, 7))
    np.testing.assert_array_equal(
        attacked_federation.test.size, np.where(np.isin(np.arange(9), (2, 7)), 0, federation.test.size)
    )
    noisy_data = attacked(fljax.fedavg(model, WORK), federation, feature_noise(ids=(2,), std=0.5)).federation.train
    size = int(clean_data.size[2])
    noise = noisy_data.pool.x[noisy_data.index[2, :size]] - clean_data.pool.x[clean_data.index[2, :size]]
    assert 0.4 < float(jnp.std(noise)) < 0.6


@pytest.mark.slow
def test_an_attack_from_a_later_round_leaves_the_earlier_ones_as_they_are(federation, model, key):
    algorithm = fljax.fedavg(model, WORK)
    _, honest_metrics = fljax.simulate(algorithm, fljax.fedavg.Hyper(lr=0.2), federation, key, 4)
    honest_clients = [i for i in range(9) if i not in (0, 3)]
    attacked_run = attacked(
        algorithm, federation, ATTACKS["model_replacement"](ids=(0, 3), start=2, scale=5.0, width=2)
    )
    _, metrics = run(attacked_run, key, 4, lr=0.2)
    is_equal = (
        np.asarray(metrics["client_loss"])[:, honest_clients]
        == np.asarray(honest_metrics["client_loss"])[:, honest_clients]
    )
    np.testing.assert_array_equal(is_equal.all(axis=1), [True, True, False, False])
    assert np.isnan(np.asarray(metrics["client_loss"])[:, [0, 3]]).all()
    np.testing.assert_allclose(
        metrics["accuracy_macro"], np.asarray(metrics["client_accuracy"])[:, honest_clients].mean(axis=1), rtol=1e-5
    )
    assert (np.asarray(metrics["attack_success"]) >= 0).all()


@pytest.mark.slow
def test_a_trigger_is_learnt_and_measured(federation, model, key):
    algorithm = fljax.fedavg(model, Work(epochs=5, batch_size=8))
    attacked_run = attacked(algorithm, federation, backdoor(share=0.4, target=1, part=0.5, width=2))
    honest_federation = federation._replace(
        test=attacked_run.federation.test, triggered=attacked_run.federation.triggered
    )
    _, attacked_metrics = run(attacked_run, key, 8, lr=0.3)
    _, honest_metrics = fljax.simulate(algorithm, fljax.fedavg.Hyper(lr=0.3), honest_federation, key, 8)
    assert attacked_metrics["attack_success"][-1] > honest_metrics["attack_success"][-1] + 0.2


def test_attackers_are_not_tested_on_validation_data_either(model):
    attacked_run = attacked(
        fljax.fedavg(model, WORK), linear_groups(6, 1, examples=24, val_fraction=0.25), sign_flip(ids=(2,))
    )
    size = np.asarray(on_validation(attacked_run.federation).test.size)
    np.testing.assert_array_equal(size, np.where(np.arange(6) == 2, 0, attacked_run.federation.val.size))


@pytest.mark.slow
def test_a_newcomer_is_no_attacker_of_its_number(federation, model, key):
    """An attack that begins later, and a new client numbered as an attacker."""
    training, newcomers = fljax.hold_out_clients(federation, new_clients=0.3, seed=1)
    algorithm, hyper = fljax.fedper(model, WORK), fljax.fedper.Hyper(lr=0.1)
    attacked_run = attacked(algorithm, training, label_flip(ids=(0, 1), start=1))
    state, _ = fljax.simulate(attacked_run.algorithm, hyper, attacked_run.federation, key, 2)
    actual, expected = (
        fljax.evaluate_new_clients(some_algorithm, hyper, state, newcomers, key, n_rounds=3)
        for some_algorithm in (attacked_run.algorithm, algorithm)
    )
    np.testing.assert_array_equal(actual["client_loss"], expected["client_loss"])


def test_triggered_tests_are_the_honest_clients_other_classes(federation, model):
    data = attacked(fljax.fedavg(model, WORK), federation, backdoor(ids=(1,), target=2, width=2)).federation.triggered
    sizes = [
        0 if i == 1 else int((np.asarray(federation.test.pool.y)[rows[:size]] != 2).sum())
        for i, (rows, size) in enumerate(
            zip(np.asarray(federation.test.index), np.asarray(federation.test.size), strict=True)
        )
    ]
    np.testing.assert_array_equal(data.size, sizes)
    assert (data.pool.y == 2).all()
    assert (data.pool.x[:, -2:, -2:] == data.pool.x[:, -2:, -2:].max()).all()
    chex.assert_trees_all_equal(data.pool.x[:, :2], federation.test.pool.x[:, :2])
    with pytest.raises(ValueError, match="width=9"):
        triggered(np.zeros((2, 4, 4, 1)), 9)
    with pytest.raises(ValueError, match="target=7 is not a class"):
        attacked(fljax.fedavg(model, WORK), federation, label_flip(target=7))


@pytest.mark.parametrize("name", ["fedavg", *slow("fedavg+clip_update")])
def test_what_arrives_as_no_number_is_left_out_and_marked(federation, model, key, name):
    method = fljax.compose(name)
    no_numbers = Attack("no_numbers", craft=lambda seen: jnp.full_like(seen.own, jnp.nan), ids=(1,))
    attacked_run = attacked(method(model, WORK), federation, no_numbers)
    state, metrics = fljax.simulate(attacked_run.algorithm, method.Hyper(), attacked_run.federation, key, 2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.server))
    np.testing.assert_array_equal(np.asarray(metrics["ok"]), np.asarray(metrics["ids"]) != 1)


@pytest.mark.parametrize(
    ("craft", "message"),
    [
        (lambda seen: seen.mean[:-1], r"craft returned an array of updates that has shape \(\d+,\); return \(\d+,\)"),
        (
            lambda seen: seen.own[:1],
            r"craft returned an array of updates that has shape \(1, \d+\); return \(\d+, \d+\)",
        ),
        (lambda seen: 0.0, r"craft returned an array of updates that has shape \(\); return \(\d+, \d+\)"),
    ],
)
def test_what_an_attack_of_ones_own_crafts_is_checked(federation, model, key, craft, message):
    attacked_run = attacked(fljax.fedavg(model, WORK), federation, Attack("mine", craft=craft, ids=(1,)))
    with pytest.raises(ValueError, match=message):
        fljax.simulate(attacked_run.algorithm, fljax.fedavg.Hyper(), attacked_run.federation, key, 1)


def test_attacks_on_classes_refuse_other_labels(federation, model):
    pool = federation.train.pool._replace(y=jnp.zeros(len(federation.train.pool.y)))
    numbers = federation._replace(train=federation.train._replace(pool=pool))
    for attack in (label_flip(share=0.2), backdoor(share=0.2, width=2)):
        with pytest.raises(ValueError, match=f"not classes, which the attack {attack.name} needs; choose another"):
            attacked(fljax.fedavg(model, WORK), numbers, attack)


@pytest.mark.slow
def test_defences_hold_where_a_mean_does_not(federation, model, key):
    work = Work(epochs=2, batch_size=8)
    attack = sign_flip(ids=(0, 4), scale=10.0)
    accuracies = {}
    for name in ("fedavg", "fedavg+median"):
        method = fljax.compose(name)
        attacked_run = attacked(method(model, work), federation, attack)
        _, metrics = fljax.simulate(attacked_run.algorithm, method.Hyper(lr=0.2), attacked_run.federation, key, 6)
        accuracies[name] = float(metrics["accuracy_macro"][-1])
    assert accuracies["fedavg+median"] > accuracies["fedavg"] + 0.1
    assert "attack.scale" in dict(attacked_run.algorithm.about.choices)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "none"])
@pytest.mark.parametrize(
    "name", ["fedavg+krum", "ditto", "ifca+trimmed_mean", "fesem", "dcpfl", "fedcps", "fedtsdp", "layercfl"]
)
def test_every_attack_goes_round_every_kind_of_method(model, key, name, attack):
    from tests.algorithms.table import CASES

    federation = fljax.data.synthetic.linear_groups(9, 3, examples=30, ragged=0.5)
    federation = federation._replace(public=fljax.types.Examples(federation.train.pool.x[:16], jnp.full(16, -1)))
    base = name.partition("+")[0]
    method, case = fljax.compose(name), CASES[base]
    attacked_run = attacked(method(model, WORK, **case.choices), federation, ATTACKS[attack](share=0.25, start=1))
    hyper = method.Hyper(**{"lr": 0.1, **case.numbers})
    _, metrics = fljax.simulate(attacked_run.algorithm, hyper, attacked_run.federation, key, 2)
    assert np.isfinite(metrics["accuracy_macro"]).all()
    assert jax.tree.leaves(metrics)


def test_every_trigger_is_as_bright_in_training_as_in_tests(federation, model):
    """On floating-point images, whose brightest pixel differs from client to client."""
    attack = backdoor(ids=(1, 2), target=2, part=1.0, width=2)
    attacked_federation = attacked(fljax.fedavg(model, WORK), federation, attack).federation
    x, brightest_of_all = np.asarray(federation.train.pool.x), np.asarray(federation.train.pool.x).max()
    index, size = federation.train.index, federation.train.size
    brightest = [max(1, x[index[i, : size[i]]].max()) for i in (1, 2)]
    assert brightest[0] != brightest[1]  # the premise
    for i in (1, 2):
        rows = rows_of(attacked_federation.train, i)
        assert (np.asarray(attacked_federation.train.pool.x)[rows][:, -2:, -2:] == brightest_of_all).all()
    assert (np.asarray(attacked_federation.triggered.pool.x)[:, -2:, -2:] == brightest_of_all).all()


@pytest.mark.parametrize(("kind", "middle_value", "top_value"), [(np.uint8, 127, 255), (np.float32, 0.5, 1)])
def test_noise_on_features_is_normal_in_units_of_their_range(kind, middle_value, top_value):
    poison, y = feature_noise(std=0.3).poison, np.arange(40) % 4
    noisy, labels = poison(np.random.default_rng(0), np.full((40, 16, 16, 1), middle_value, kind), y, 4)
    assert noisy.dtype == kind
    np.testing.assert_array_equal(labels, y)
    noise = stats.norm(middle_value, 0.3 * top_value)
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):  # bytes are whole, and clipped beyond: shares below a value in between
        value = int(share * top_value) if kind == np.uint8 else share * top_value
        assert (noisy < value).mean() == pytest.approx(noise.cdf(value), abs=0.02)  # deviation: 0.005
    if kind == np.uint8:
        assert (noisy == 0).mean() == pytest.approx(noise.cdf(1), abs=0.02)
        assert (noisy == 255).mean() == pytest.approx(noise.sf(255), abs=0.02)


def test_noise_on_words_of_texts_is_refused(federation, model):
    pool = federation.train.pool
    words = federation._replace(train=federation.train._replace(pool=pool._replace(x=jnp.ones((len(pool.y), 5), int))))
    with pytest.raises(ValueError, match="feature_noise: x has dtype int32, as tokens do"):
        attacked(fljax.fedavg(model, WORK), words, feature_noise(share=0.3))


def test_a_trigger_on_pixels_of_bytes_is_white():
    assert triggered(np.zeros((2, 4, 4, 1), np.uint8), 2)[:, 2:, 2:].tolist() == [[[[255]] * 2] * 2] * 2


@pytest.fixture(scope="module")
def ragged_federation():
    """Clients of unlike sizes, one of them without examples."""
    federation = linear_groups(6, 2, examples=24, ragged=0.8, seed=5)
    return federation._replace(train=federation.train._replace(size=federation.train.size.at[3].set(0)))


@pytest.mark.parametrize("make", [label_flip, feature_noise, lambda **who: backdoor(width=2, **who)])
def test_copies_of_our_poisons_are_those_that_kept_folders_have(ragged_federation, make):
    """Random numbers are drawn for every entry of a client's row, also for those after its examples."""
    poison, data, ids = make(ids=(0, 1, 3)).poison, ragged_federation.train, (0, 1, 3)
    result = poisoned(ragged_federation, ids, poison, n_classes(ragged_federation), 7)
    x, y = (np.asarray(leaf) for leaf in data.pool)
    if hasattr(poison, "bright"):
        poison = poison._replace(bright=max(1.0, float(x.max())))
    for j, i in enumerate(ids):
        rows, size = np.asarray(data.index)[i].copy(), int(data.size[i])
        rows[size:] = rows[0]
        for n in (len(rows), size):  # as it was, and the client's own examples alone: the same numbers are drawn
            expected = poison(np.random.default_rng([7, i]), x[rows[:n]], y[rows[:n]], n_classes(ragged_federation))
            first_row = result.first + j * len(rows)
            for actual, leaf in zip(result.federation.train.pool, expected, strict=True):
                np.testing.assert_array_equal(np.asarray(actual)[first_row : first_row + n], leaf)
    assert len(result.federation.train.pool.y) == len(y) + len(ids) * data.index.shape[1]


def test_a_poison_of_ones_own_sees_a_clients_examples_alone(ragged_federation, model):
    numbers_of_examples = []

    def reverse(rng, x, y, n_classes):
        numbers_of_examples.append(len(y))
        return x[::-1], y[::-1]

    ids, data = (0, 1, 3), ragged_federation.train
    poisoned_data = attacked(
        fljax.fedavg(model, WORK), ragged_federation, Attack("own", poison=reverse, ids=ids)
    ).federation.train
    sizes = np.asarray(data.size)[list(ids)]
    assert numbers_of_examples == [size for size in sizes if size]
    assert min(numbers_of_examples) < data.index.shape[1]  # the premise: there is padding
    for i, size in zip(ids, sizes, strict=True):
        for old_values, new_values in zip(data.pool, poisoned_data.pool, strict=True):
            old_values, new_values = (
                np.asarray(old_values)[np.asarray(data.index)[i, :size]],
                np.asarray(new_values)[np.asarray(poisoned_data.index)[i]],
            )
            np.testing.assert_array_equal(new_values[:size], old_values[::-1])
            if size:
                np.testing.assert_array_equal(
                    new_values[size:], np.broadcast_to(old_values[-1], new_values[size:].shape)
                )


@pytest.mark.parametrize(
    ("poison", "message"),
    [
        (lambda rng, x, y, n: (x[:5], y), r"poison: client 0: it returned x of shape \(5, .*return as many examples"),
        (lambda rng, x, y, n: (x, y[:, None]), "poison: client 0: it returned y of shape"),
        (lambda rng, x, y, n: x, "poison: client 0: it returned a ndarray; return a pair"),
        (lambda rng, x, y, n: (x, y + 2.0**31), r"it returned y from .*return values from -2147483648 to 2147483647"),
        (lambda rng, x, y, n: (x, y * np.nan), "it returned y from nan to nan"),
    ],
)
def test_a_poison_that_gives_other_examples_is_refused(ragged_federation, model, poison, message):
    with pytest.raises(ValueError, match=message):
        attacked(fljax.fedavg(model, WORK), ragged_federation, Attack("own", poison=poison, ids=(0,)))


@pytest.mark.parametrize("drift", [fljax.drift.swap_labels, fljax.drift.rotate_images, fljax.drift.move])
def test_a_trigger_and_test_data_that_change_are_refused(federation, model, drift):
    """Tests with the trigger would be those of the data before the change."""
    drifting_federation = fljax.drift.drifting(federation, drift(start=1))
    for attack in (backdoor(share=0.2, width=2), ATTACKS["model_replacement"](share=0.2, width=2)):
        with pytest.raises(
            ValueError, match=f"{attack.name}: a trigger does not work with test data that change .* another drift"
        ):
            attacked(fljax.fedavg(model, WORK), drifting_federation, attack)
    for kind in (fljax.drift.leave, fljax.drift.arrive):
        federation_with_absent = fljax.drift.drifting(federation, kind(start=1, share=0.3))
        assert attacked(fljax.fedavg(model, WORK), federation_with_absent, backdoor(ids=(0,), width=2)).ids == (0,)
    assert attacked(fljax.fedavg(model, WORK), drifting_federation, label_flip(share=0.2)).ids


def test_rounds_with_nobody_honest_to_test_are_refused(federation, model):
    drifting_federation = fljax.drift.drifting(federation, fljax.drift.leave(start=2, share=0.78))
    remaining = tuple(np.flatnonzero(np.asarray(drifting_federation.stages.there)[1]).tolist())
    assert 1 < len(remaining) < 9
    with pytest.raises(ValueError, match="sign_flip: of the clients present from round 2 on, only attackers"):
        attacked(fljax.fedavg(model, WORK), drifting_federation, sign_flip(ids=remaining))
    assert attacked(fljax.fedavg(model, WORK), drifting_federation, sign_flip(ids=remaining[:-1])).ids == remaining[:-1]
