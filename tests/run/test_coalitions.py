"""Coalitions: each is the run in which the others do not take part, whatever their data are."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.devices.mesh import over_devices
from fljax.drift import drifting
from fljax.report.contributions import every_coalition, one_left_out, shapley

N, ROUNDS = 9, 3
MEMBERS = np.concatenate([one_left_out(N)[:3], np.zeros((1, N), bool)])  # all, two without one, nobody
OPTIONS = {"participation": 0.7, "dropout": 0.2}


def coalitions_with(algorithm, federation, key, members=MEMBERS, **options):
    hyper = fljax.LocalHyper(lr=0.2)
    return jax.device_get(
        fljax.coalitions(algorithm, hyper, federation, members, key, 1, ROUNDS, compile="fast", **(OPTIONS | options))
    )


def test_a_coalition_is_the_run_without_the_others(averaging, federation, key):
    metrics = coalitions_with(averaging, federation, key)
    assert metrics["client_accuracy"].shape == (len(MEMBERS), 1, ROUNDS, N)
    for i, members in enumerate(MEMBERS):
        without = federation._replace(there=jnp.asarray(members))
        hyper, seed = fljax.LocalHyper(lr=0.2), jax.random.fold_in(key, 0)
        _, alone = fljax.simulate(averaging, hyper, without, seed, ROUNDS, compile="fast", **OPTIONS)
        chex.assert_trees_all_close({name: metrics[name][i, 0] for name in alone}, jax.device_get(alone), rtol=1e-5)
        assert not (metrics["active"][i, 0] & ~members[metrics["ids"][i, 0]]).any()
    sizes = np.asarray(federation.test.size)
    assert (sizes > 0).all()
    assert np.isfinite(metrics["client_loss"]).all()
    nobody = metrics["test_loss"][-1, 0]
    np.testing.assert_array_equal(nobody, nobody[0])  # the first model
    assert metrics["diverged"].sum() == 0


@pytest.mark.slow
def test_the_coalition_of_all_is_the_cell_of_a_sweep(averaging, federation, key):
    metrics = coalitions_with(averaging, federation, key)
    whole = fljax.sweep(averaging, fljax.LocalHyper(lr=0.2), federation, key, 1, ROUNDS, compile="fast", **OPTIONS)
    chex.assert_trees_all_close({name: metrics[name][:1] for name in whole}, jax.device_get(whole), rtol=1e-5)


def test_the_data_of_clients_that_are_not_members_do_not_matter(averaging, federation, key):
    pool, nan_client = federation.train.pool, 1
    rows = federation.train.index[nan_client, : int(federation.train.size[nan_client])]
    spoilt = federation._replace(train=federation.train._replace(pool=pool._replace(x=pool.x.at[rows].set(jnp.nan))))
    without = 2  # the coalition of all others
    assert MEMBERS[without].sum() == N - 1
    assert not MEMBERS[without, nan_client]
    metrics, expected = (coalitions_with(averaging, one, key) for one in (spoilt, federation))
    tests = [name for name in metrics if name.startswith(("client_", "test_", "accuracy_"))]
    of_others, of_others_expected = ({name: one[name][without] for name in tests} for one in (metrics, expected))
    chex.assert_trees_all_equal(of_others, of_others_expected)


@pytest.mark.slow
def test_what_a_client_keeps_stays_as_it_was(federation, key):
    members, model = np.arange(N)[None] % 2 == 0, fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    metrics = coalitions_with(fljax.standalone(model, fljax.Work(1, 8)), federation, key, members, participation=1.0)
    changed = (metrics["client_loss"][0, 0, 0] != metrics["client_loss"][0, 0, -1]).tolist()
    assert not any(changed[1::2])
    assert all(changed[::2])


def test_coalitions_are_data_of_a_program(averaging, federation, key):
    """Traced, with hyperparameters as a sweep writes them, at any level of compilation."""

    def run(members):
        hyper = fljax.LocalHyper(lr=[0.2])
        return fljax.coalitions(averaging, hyper, federation, members, key, 1, ROUNDS, compile="fast", **OPTIONS)

    metrics, traced = run(MEMBERS.tolist()), jax.eval_shape(run, MEMBERS)
    chex.assert_trees_all_equal(jax.device_get(metrics), coalitions_with(averaging, federation, key))
    chex.assert_trees_all_equal_shapes_and_dtypes(traced, {name: metrics[name] for name in traced})
    with over_devices(jax.devices()[:2], n_sweep=2):  # one of which has less to do
        traced = jax.eval_shape(run, MEMBERS[:3])
    chex.assert_trees_all_equal_shapes_and_dtypes(traced, {name: metrics[name][:3] for name in traced})


@pytest.mark.slow
def test_over_two_devices_and_side_by_side_they_are_the_same(averaging, federation, key):
    expected = coalitions_with(averaging, federation, key)
    with over_devices(jax.devices()[:2], n_sweep=2):
        for n in (4, 3):
            first = {name: value[:n] for name, value in expected.items()}
            chex.assert_trees_all_close(coalitions_with(averaging, federation, key, MEMBERS[:n]), first, rtol=1e-5)
    chex.assert_trees_all_close(coalitions_with(averaging, federation, key, at_once=2), expected, rtol=1e-5)


def test_what_is_no_coalition_is_refused(averaging, federation, key):
    changing = drifting(federation, fljax.drift.DRIFTS["swap_labels"]())
    for fault, message, one in (
        (
            MEMBERS[:, 1:],
            r"^members is bool\[4, 8\]; give bool \(coalitions, clients\), with a column for each of 9",
            federation,
        ),
        (MEMBERS[0], r"^members is bool\[9\]", federation),
        (MEMBERS.astype(float), r"^members is float64\[4, 9\]", federation),
        (MEMBERS[:0], r"^members is bool\[0, 9\]", federation),
        ([[True], [True, False]], "^members has rows that differ in length; give an array$", federation),
        (MEMBERS, "^the clients of the federation change over the rounds", changing._replace(there=None)),
        (MEMBERS, "^the clients of the federation change", federation._replace(there=np.ones((ROUNDS, N), bool))),
    ):
        with pytest.raises(ValueError, match=message):
            coalitions_with(averaging, one, key, fault)
    for hyper, message in (
        (fljax.LocalHyper(lr=jnp.array([0.1, 0.2])), "^hyper has 2 points; give the numbers of one run"),
        (None, r"^hyper=None is not a Hyper; give hyperparameters, as method.Hyper\(lr=0.1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            fljax.coalitions(averaging, hyper, federation, MEMBERS, key, 1, ROUNDS)
    with pytest.raises(ValueError, match="federation"):
        fljax.coalitions(averaging, fljax.LocalHyper(), federation.train, MEMBERS, key, 1, ROUNDS)


@pytest.mark.slow
def test_a_client_with_random_labels_is_worth_the_least(key):
    federation = fljax.PARTITIONS["iid"](*fljax.load("digits"), n_clients=5, seed=1)
    pool, rows = federation.train.pool, federation.train.index[3, : federation.train.size[3]]
    labels = pool.y.at[rows].set(jax.random.randint(key, rows.shape, 0, 10))
    federation = federation._replace(train=federation.train._replace(pool=pool._replace(y=labels)))
    model = fljax.MODELS["mlp"](input_shape=(8, 8, 1), hidden=(16,), n_classes=10)
    algorithm, members = fljax.fedavg(model, fljax.Work(epochs=2, batch_size=32)), every_coalition(5)
    metrics = fljax.coalitions(algorithm, fljax.LocalHyper(lr=0.1), federation, members, key, 2, 8, evaluate_every=8)
    values = shapley(members, metrics["accuracy_micro"][:, :, -1])
    assert (values[3] < 0).all()
    assert (np.delete(values, 3, 0) > 0.05).all()
