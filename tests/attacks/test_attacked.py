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
from tests.run.conftest import federation, model
from tests.slow import slow

__all__ = ["federation", "model"]
WORK = Work(epochs=1, batch_size=8)


def run(made, key, n_rounds=3, **numbers):
    return fljax.simulate(made.algorithm, fljax.fedavg.Hyper(**numbers), made.federation, key, n_rounds)


def test_attackers_are_spread_over_the_groups_or_fill_one(federation):
    group = np.asarray(federation.group)
    spread = attackers(federation, 1 / 3, None, "spread")
    assert sorted(group[list(spread)]) == [0, 1, 2]
    together = attackers(federation, 1 / 3, None, "one_group")
    assert len(together) == 3
    assert len(set(group[list(together)])) == 1
    assert len(attackers(federation, 0.01, None, "spread")) == 1
    assert attackers(federation, 0.0, None, "spread") == ()
    assert attackers(federation, 0.5, (4, 1), "spread") == (1, 4)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ids": (9,)}, "client 9 attacks but there are 9"),
        ({"ids": range(9)}, "no client is honest"),
        ({"share": 0.97}, "no client is honest"),
    ],
)
def test_attackers_that_cannot_be_are_refused(federation, model, given, why):
    with pytest.raises(ValueError, match=why):
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
    for ids, why in (
        (3, "ids=3 is not a sequence"),
        ((1.5,), "ids: 1.5 is not a client's number"),
        (("a",), "ids: 'a'"),
    ):
        with pytest.raises(ValueError, match=why):
            sign_flip(ids=ids)
    for make, given in ((alie, {"z": float("nan")}), (alie, {"z": float("inf")}), (fang, {"b": 0.5})):
        with pytest.raises(ValueError, match=rf"{min(given)}=.*"):
            make(**given)
    assert sign_flip(scale=2.0) is sign_flip(scale=2.0)
    assert sign_flip(scale=jnp.float32(2)) is sign_flip(scale=np.array(2.0)) is sign_flip(scale=2.0)
    with pytest.raises(ValueError, match=r"^scale=-1 is out of its range; choose scale > 0$"):
        sign_flip(scale=-1.0)
    with pytest.raises(ValueError, match=r"^scale=None is not a number; choose scale > 0$"):
        sign_flip(scale=None)


def test_nobody_who_attacks_is_no_attack(federation, model):
    algorithm = fljax.fedavg(model, WORK)
    for attack in (ATTACKS["none"](), sign_flip(share=0.0)):
        made = attacked(algorithm, federation, attack)
        assert made.algorithm is algorithm
        assert made.federation is federation


@pytest.mark.slow
def test_poisoned_examples_are_copies_that_only_attackers_have(federation, model):
    made = attacked(fljax.fedavg(model, WORK), federation, label_flip(ids=(2, 7))).federation
    before, after = federation.train, made.train
    n_before = before.pool.y.shape[0]
    np.testing.assert_array_equal(after.pool.y[:n_before], before.pool.y)
    for i, size in enumerate(np.asarray(before.size)):
        (old, new), rows = (data.pool.y[data.index[i, :size]] for data in (before, after)), after.index[i, :size]
        np.testing.assert_array_equal(new, 3 - old if i in (2, 7) else old)
        np.testing.assert_array_equal(after.pool.x[rows], before.pool.x[before.index[i, :size]])
        assert (np.asarray(rows) >= n_before).all() == (i in (2, 7))
    np.testing.assert_array_equal(made.test.size, np.where(np.isin(np.arange(9), (2, 7)), 0, federation.test.size))
    again = attacked(fljax.fedavg(model, WORK), federation, feature_noise(ids=(2,), std=0.5)).federation.train
    size = int(before.size[2])
    noise = again.pool.x[again.index[2, :size]] - before.pool.x[before.index[2, :size]]
    assert 0.4 < float(jnp.std(noise)) < 0.6


@pytest.mark.slow
def test_an_attack_from_a_later_round_leaves_the_earlier_ones_as_they_are(federation, model, key):
    algorithm = fljax.fedavg(model, WORK)
    _, plain = fljax.simulate(algorithm, fljax.fedavg.Hyper(lr=0.2), federation, key, 4)
    honest = [i for i in range(9) if i not in (0, 3)]
    both = attacked(algorithm, federation, ATTACKS["model_replacement"](ids=(0, 3), start=2, scale=5.0, width=2))
    _, metrics = run(both, key, 4, lr=0.2)
    same = np.asarray(metrics["client_loss"])[:, honest] == np.asarray(plain["client_loss"])[:, honest]
    np.testing.assert_array_equal(same.all(axis=1), [True, True, False, False])
    assert np.isnan(np.asarray(metrics["client_loss"])[:, [0, 3]]).all()
    np.testing.assert_allclose(
        metrics["accuracy_macro"], np.asarray(metrics["client_accuracy"])[:, honest].mean(axis=1), rtol=1e-5
    )
    assert (np.asarray(metrics["attack_success"]) >= 0).all()


@pytest.mark.slow
def test_a_trigger_is_learnt_and_measured(federation, model, key):
    algorithm = fljax.fedavg(model, Work(epochs=5, batch_size=8))
    made = attacked(algorithm, federation, backdoor(share=0.4, target=1, part=0.5, width=2))
    clean = federation._replace(test=made.federation.test, triggered=made.federation.triggered)
    _, fooled = run(made, key, 8, lr=0.3)
    _, honest = fljax.simulate(algorithm, fljax.fedavg.Hyper(lr=0.3), clean, key, 8)
    assert fooled["attack_success"][-1] > honest["attack_success"][-1] + 0.2


def test_attackers_are_not_tested_on_validation_data_either(model):
    made = attacked(fljax.fedavg(model, WORK), linear_groups(6, 1, examples=24, val_fraction=0.25), sign_flip(ids=(2,)))
    size = np.asarray(on_validation(made.federation).test.size)
    np.testing.assert_array_equal(size, np.where(np.arange(6) == 2, 0, made.federation.val.size))


@pytest.mark.slow
def test_a_newcomer_is_no_attacker_of_its_number(federation, model, key):
    """An attack that begins later, and a new client numbered as an attacker."""
    training, new = fljax.hold_out_clients(federation, new_clients=0.3, seed=1)
    algorithm, hyper = fljax.fedper(model, WORK), fljax.fedper.Hyper(lr=0.1)
    made = attacked(algorithm, training, label_flip(ids=(0, 1), start=1))
    state, _ = fljax.simulate(made.algorithm, hyper, made.federation, key, 2)
    found, plain = (
        fljax.evaluate_new_clients(one, hyper, state, new, key, n_rounds=3) for one in (made.algorithm, algorithm)
    )
    np.testing.assert_array_equal(found["client_loss"], plain["client_loss"])


def test_triggered_tests_are_the_honest_clients_other_classes(federation, model):
    data = attacked(fljax.fedavg(model, WORK), federation, backdoor(ids=(1,), target=2, width=2)).federation.triggered
    sizes = [
        0 if i == 1 else int((np.asarray(federation.test.pool.y)[own[:size]] != 2).sum())
        for i, (own, size) in enumerate(
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
    bad = attacked(method(model, WORK), federation, no_numbers)
    state, metrics = fljax.simulate(bad.algorithm, method.Hyper(), bad.federation, key, 2)
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
def test_what_an_attack_of_ones_own_crafts_is_looked_at(federation, model, key, craft, message):
    bad = attacked(fljax.fedavg(model, WORK), federation, Attack("mine", craft=craft, ids=(1,)))
    with pytest.raises(ValueError, match=message):
        fljax.simulate(bad.algorithm, fljax.fedavg.Hyper(), bad.federation, key, 1)


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
    found = {}
    for name in ("fedavg", "fedavg+median"):
        method = fljax.compose(name)
        made = attacked(method(model, work), federation, attack)
        _, metrics = fljax.simulate(made.algorithm, method.Hyper(lr=0.2), made.federation, key, 6)
        found[name] = float(metrics["accuracy_macro"][-1])
    assert found["fedavg+median"] > found["fedavg"] + 0.1
    assert "attack.scale" in dict(made.algorithm.about.choices)


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
    made = attacked(method(model, WORK, **case.choices), federation, ATTACKS[attack](share=0.25, start=1))
    hyper = method.Hyper(**{"lr": 0.1, **case.numbers})
    _, metrics = fljax.simulate(made.algorithm, hyper, made.federation, key, 2)
    assert np.isfinite(metrics["accuracy_macro"]).all()
    assert jax.tree.leaves(metrics)


def test_every_trigger_is_as_bright_in_training_as_in_tests(federation, model):
    """On floating-point images, whose brightest pixel differs from client to client."""
    attack = backdoor(ids=(1, 2), target=2, part=1.0, width=2)
    made = attacked(fljax.fedavg(model, WORK), federation, attack).federation
    x, top = np.asarray(federation.train.pool.x), np.asarray(federation.train.pool.x).max()
    index, size = federation.train.index, federation.train.size
    brightest = [max(1, x[index[i, : size[i]]].max()) for i in (1, 2)]
    assert brightest[0] != brightest[1]  # the premise
    for i in (1, 2):
        rows = rows_of(made.train, i)
        assert (np.asarray(made.train.pool.x)[rows][:, -2:, -2:] == top).all()
    assert (np.asarray(made.triggered.pool.x)[:, -2:, -2:] == top).all()


@pytest.mark.parametrize(("kind", "middle", "top"), [(np.uint8, 127, 255), (np.float32, 0.5, 1)])
def test_noise_on_features_is_normal_in_units_of_their_range(kind, middle, top):
    poison, y = feature_noise(std=0.3).poison, np.arange(40) % 4
    made, labels = poison(np.random.default_rng(0), np.full((40, 16, 16, 1), middle, kind), y, 4)
    assert made.dtype == kind
    np.testing.assert_array_equal(labels, y)
    noise = stats.norm(middle, 0.3 * top)
    for of in (0.1, 0.3, 0.5, 0.7, 0.9):  # bytes are whole, and clipped beyond: shares below a value in between
        value = int(of * top) if kind == np.uint8 else of * top
        assert (made < value).mean() == pytest.approx(noise.cdf(value), abs=0.02)  # deviation: 0.005
    if kind == np.uint8:
        assert (made == 0).mean() == pytest.approx(noise.cdf(1), abs=0.02)
        assert (made == 255).mean() == pytest.approx(noise.sf(255), abs=0.02)


def test_noise_on_words_of_texts_is_refused(federation, model):
    pool = federation.train.pool
    words = federation._replace(train=federation.train._replace(pool=pool._replace(x=jnp.ones((len(pool.y), 5), int))))
    with pytest.raises(ValueError, match="feature_noise: x has dtype int32, as tokens do"):
        attacked(fljax.fedavg(model, WORK), words, feature_noise(share=0.3))


def test_a_trigger_on_pixels_of_bytes_is_white():
    assert triggered(np.zeros((2, 4, 4, 1), np.uint8), 2)[:, 2:, 2:].tolist() == [[[[255]] * 2] * 2] * 2


@pytest.fixture(scope="module")
def ragged():
    """Clients of unlike sizes, one of them without examples."""
    made = linear_groups(6, 2, examples=24, ragged=0.8, seed=5)
    return made._replace(train=made.train._replace(size=made.train.size.at[3].set(0)))


@pytest.mark.parametrize("make", [label_flip, feature_noise, lambda **who: backdoor(width=2, **who)])
def test_copies_of_our_poisons_are_those_that_kept_folders_have(ragged, make):
    """Every place of a client's row is drawn for, those behind its examples too."""
    poison, data, ids = make(ids=(0, 1, 3)).poison, ragged.train, (0, 1, 3)
    made = poisoned(ragged, ids, poison, n_classes(ragged), 7)
    x, y = (np.asarray(leaf) for leaf in data.pool)
    if hasattr(poison, "bright"):
        poison = poison._replace(bright=max(1.0, float(x.max())))
    for j, i in enumerate(ids):
        rows, size = np.asarray(data.index)[i].copy(), int(data.size[i])
        rows[size:] = rows[0]
        for n in (len(rows), size):  # as it was, and the client's own examples alone: the same numbers are drawn
            wanted = poison(np.random.default_rng([7, i]), x[rows[:n]], y[rows[:n]], n_classes(ragged))
            first = made.first + j * len(rows)
            for found, leaf in zip(made.federation.train.pool, wanted, strict=True):
                np.testing.assert_array_equal(np.asarray(found)[first : first + n], leaf)
    assert len(made.federation.train.pool.y) == len(y) + len(ids) * data.index.shape[1]


def test_a_poison_of_ones_own_sees_a_clients_examples_alone(ragged, model):
    seen = []

    def backwards(rng, x, y, n_classes):
        seen.append(len(y))
        return x[::-1], y[::-1]

    ids, before = (0, 1, 3), ragged.train
    after = attacked(fljax.fedavg(model, WORK), ragged, Attack("own", poison=backwards, ids=ids)).federation.train
    sizes = np.asarray(before.size)[list(ids)]
    assert seen == [size for size in sizes if size]
    assert min(seen) < before.index.shape[1]  # the premise: there is padding
    for i, size in zip(ids, sizes, strict=True):
        for old, new in zip(before.pool, after.pool, strict=True):
            old, new = np.asarray(old)[np.asarray(before.index)[i, :size]], np.asarray(new)[np.asarray(after.index)[i]]
            np.testing.assert_array_equal(new[:size], old[::-1])
            if size:
                np.testing.assert_array_equal(new[size:], np.broadcast_to(old[-1], new[size:].shape))


@pytest.mark.parametrize(
    ("poison", "why"),
    [
        (lambda rng, x, y, n: (x[:5], y), r"poison: client 0: it returned x of shape \(5, .*return as many examples"),
        (lambda rng, x, y, n: (x, y[:, None]), "poison: client 0: it returned y of shape"),
        (lambda rng, x, y, n: x, "poison: client 0: it returned a ndarray; return a pair"),
        (lambda rng, x, y, n: (x, y + 2.0**31), r"it returned y from .*return values from -2147483648 to 2147483647"),
        (lambda rng, x, y, n: (x, y * np.nan), "it returned y from nan to nan"),
    ],
)
def test_a_poison_that_gives_other_examples_is_refused(ragged, model, poison, why):
    with pytest.raises(ValueError, match=why):
        attacked(fljax.fedavg(model, WORK), ragged, Attack("own", poison=poison, ids=(0,)))


@pytest.mark.parametrize("drift", [fljax.drift.swap_labels, fljax.drift.rotate_images, fljax.drift.move])
def test_a_trigger_and_test_data_that_change_are_refused(federation, model, drift):
    """Tests with the trigger would be those of the data before the change."""
    changing = fljax.drift.drifting(federation, drift(start=1))
    for attack in (backdoor(share=0.2, width=2), ATTACKS["model_replacement"](share=0.2, width=2)):
        with pytest.raises(
            ValueError, match=f"{attack.name}: a trigger does not work with test data that change .* another drift"
        ):
            attacked(fljax.fedavg(model, WORK), changing, attack)
    for kind in (fljax.drift.leave, fljax.drift.arrive):
        there = fljax.drift.drifting(federation, kind(start=1, share=0.3))
        assert attacked(fljax.fedavg(model, WORK), there, backdoor(ids=(0,), width=2)).ids == (0,)
    assert attacked(fljax.fedavg(model, WORK), changing, label_flip(share=0.2)).ids


def test_rounds_with_nobody_honest_to_test_are_refused(federation, model):
    changing = fljax.drift.drifting(federation, fljax.drift.leave(start=2, share=0.78))
    left = tuple(np.flatnonzero(np.asarray(changing.stages.there)[1]).tolist())
    assert 1 < len(left) < 9
    with pytest.raises(ValueError, match="sign_flip: of the clients present from round 2 on, only attackers"):
        attacked(fljax.fedavg(model, WORK), changing, sign_flip(ids=left))
    assert attacked(fljax.fedavg(model, WORK), changing, sign_flip(ids=left[:-1])).ids == left[:-1]
