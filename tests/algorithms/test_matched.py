"""FedMA and FeSEM-MA: what matching recovers, what it leaves alone, and what the methods are without it."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedma import class_mean, fedma
from fljax.algorithms.fesem import fesem
from fljax.algorithms.fesem_ma import fesem_ma
from fljax.models import mlp
from fljax.rounds.cohort import sample_cohort
from fljax.run.one_round import as_traced
from fljax.server.matching import permute_units
from tests import oracle
from tests.algorithms.round_by_round import jitted, simulate
from tests.algorithms.test_oracles import PLACES, WORK, Reference, assert_models, reference, run  # noqa: F401

ROUNDS = 3
CLIENTS_FIRST = {"output": "clients", "start": "common"}


@pytest.fixture(scope="module")
def deep_model():
    return mlp(input_shape=(4, 4, 1), hidden=(6, 5), n_classes=4)


def final(algorithm, hyper, federation, key, n_rounds=ROUNDS):
    return simulate(algorithm, hyper, federation, key, n_rounds, participation=0.5)[0].server


def with_shuffled_units(key, params, layers):
    first_order, second_order = (
        jax.random.permutation(k, n) for k, n in zip(jax.random.split(key), (6, 5), strict=True)
    )
    return permute_units(params, (first_order, second_order), layers)


@pytest.mark.slow
def test_from_a_common_start_there_is_nothing_to_match_and_it_is_fedavg(key, deep_model, work, federation):
    actual = final(fedma(deep_model, work, **CLIENTS_FIRST), fedavg.Hyper(lr=0.02), federation, key)
    expected = final(fedavg(deep_model, work), fedavg.Hyper(lr=0.02), federation, key)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_permuted_copies_average_to_the_function_they_compute(key, deep_model, work, federation):
    original, x = deep_model.init(key), jax.random.normal(key, (20, 4, 4, 1))
    permuted_model = deep_model._replace(init=lambda key: with_shuffled_units(key, original, deep_model.layers))
    theta = final(fedma(permuted_model, work), fedavg.Hyper(lr=1e-30), federation, key, 1)
    expected = deep_model.apply(original, x, None)[0]
    np.testing.assert_allclose(
        deep_model.apply(theta, x, None)[0], expected, rtol=1e-4, atol=1e-5
    )  # sums in another order
    copies = jax.vmap(permuted_model.init)(jax.random.split(key, 8))
    mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), copies)
    assert float(jnp.abs(deep_model.apply(mean, x, None)[0] - expected).max()) > 0.1


@pytest.mark.slow
def test_a_matched_layer_is_held_while_those_above_are_trained_again(key, model, work, federation):
    trained_once, retrained = (
        final(fedma(model, work, retrain_epochs=epochs), fedavg.Hyper(lr=0.1), federation, key, 1) for epochs in (0, 1)
    )
    chex.assert_trees_all_close(retrained["fc1"], trained_once["fc1"], rtol=1e-5, atol=1e-6)
    assert not np.allclose(retrained["fc2"]["kernel"], trained_once["fc2"]["kernel"], atol=1e-3)


def test_clients_count_by_the_weight_with_which_they_came(key, model, work, federation):
    algorithm, hyper = fedma(model, work, output="clients"), as_traced(fedavg.Hyper(lr=0.1))

    @jax.jit
    def receive_third(key):
        state = algorithm.init(key, hyper, federation.train)
        cohort = sample_cohort(key, jnp.int32(0), federation, 6, jnp.float32(0.0))
        upload = algorithm.exchange.send(key, hyper, state, cohort)
        only_third = upload._replace(weight=jnp.where(jnp.arange(6) == 2, upload.weight, 0))
        next_state, _ = algorithm.exchange.receive(key, hyper, state, cohort, only_third)
        return jax.tree.map(lambda leaf: leaf[2], upload.params), next_state.server

    (third_params, theta), x = receive_third(key), jax.random.normal(key, (20, 4, 4, 1))
    expected = model.apply(third_params, x, None)[0]
    np.testing.assert_allclose(model.apply(theta, x, None)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_outputs_of_fedma_count_by_the_examples_of_their_class(key, model, federation, reference):  # noqa: F811
    """From a common start, by short steps, units stay in order: other layers are FedAvg's."""
    theta, lr, labels = reference.start, 0.02, np.asarray(federation.train.pool.y)
    count = [
        np.bincount(labels[rows[:n]], minlength=4) for rows, n in zip(reference.index, reference.size, strict=True)
    ]
    for cohort in reference.rounds():
        sent = [oracle.local_sgd(theta, reference.batches(i, k), lr) for i, k, _ in cohort]
        share = np.array([count[i] for i, *_ in cohort]) / sum(count[i] for i, *_ in cohort)
        outputs = {
            name: sum(w["fc2"][name] * class_share for w, class_share in zip(sent, share, strict=True))
            for name in sent[0]["fc2"]
        }
        theta = oracle.average(sent, [size for *_, size in cohort]) | {"fc2": outputs}
    deployed, _ = run(fedma(model, WORK, start="common"), fedma.Hyper(lr=lr), federation, key)
    assert_models(deployed, [theta] * 8)
    assert np.ptp(share, axis=1).max() > 0.1  # or it would be FedAvg


@pytest.mark.slow
def test_an_output_whose_class_no_participant_has_counts_by_their_examples(key, model, federation):
    """It has been trained too, and its inputs have moved: neither is it dropped, nor does it stay as it was."""
    pool = federation.train.pool
    federation = federation._replace(train=federation.train._replace(pool=pool._replace(y=jnp.minimum(pool.y, 2))))
    three_classes, lr = Reference(key, model, federation), 0.02
    cohort = next(iter(three_classes.rounds(PLACES, 0.7)))
    sent = [oracle.local_sgd(three_classes.start, three_classes.batches(i, k), lr) for i, k, _ in cohort]
    by_size = oracle.average(sent, [size for *_, size in cohort])["fc2"]
    labels = [np.asarray(pool.y)[three_classes.index[i, : int(size)]] for i, _, size in cohort]
    share = np.array([np.bincount(np.minimum(y, 2), minlength=4) for y in labels], float)
    share[:, 3] = [size for *_, size in cohort]
    share /= share.sum(axis=0)
    expected = {
        name: sum(w["fc2"][name] * class_share for w, class_share in zip(sent, share, strict=True)) for name in by_size
    }
    algorithm, hyper = fedma(model, WORK, start="common"), fedma.Hyper(lr=lr)
    actual = simulate(algorithm, hyper, federation, key, 1, participation=PLACES / 8, dropout=0.7)[0].server["fc2"]
    assert 1 < len(cohort) < PLACES
    for name in ("kernel", "bias"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(expected[name][..., 3], by_size[name][..., 3], rtol=1e-12)
    assert np.abs(expected["bias"] - three_classes.start["fc2"]["bias"])[3] > 1e-3


def test_an_output_is_averaged_by_the_examples_of_its_class():
    layer = {"kernel": jnp.array([[[1.0, 2.0, 5.0]], [[3.0, 8.0, 7.0]], [[jnp.nan] * 3]])}
    share = jnp.array([[3.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    mean = class_mean(layer, share, {"kernel": jnp.full((1, 3), 9.0)})
    np.testing.assert_allclose(mean["kernel"], [[1.5, 5.0, 9.0]], rtol=1e-6)  # (3 + 3) / 4, (2 + 8) / 2, nobody


@pytest.mark.slow
@pytest.mark.parametrize("empty", ["keep", "reseed"])
def test_where_units_are_in_order_fesem_ma_is_fesem(key, deep_model, work, federation, empty):
    """From the first clusters, and from centers of which one is so far away that nobody is near it."""
    hyper = fesem.Hyper(lr=0.02)
    algorithms = [make(deep_model, work, 2, empty=empty) for make in (fesem_ma, fesem)]
    actual, expected = (final(algorithm, hyper, federation, key) for algorithm in algorithms)
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)
    state = jitted(algorithms[1].init)(key, as_traced(hyper), federation.train)
    shifted_centers = jax.tree.map(lambda leaf: leaf.at[1].add(100.0), state.server.centers)
    state = jax.device_get(
        state._replace(server=state.server._replace(centers=shifted_centers, label=0 * state.server.label))
    )
    actual, expected = (
        final(algorithm._replace(init=lambda *_: state), hyper, federation, key, 1) for algorithm in algorithms
    )
    chex.assert_trees_all_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert (float(expected.centers["fc1"]["bias"][1].mean()) > 50) == (empty == "keep")


@pytest.mark.slow
def test_the_order_of_a_clients_units_changes_no_function_of_fesem_ma(key, deep_model, work, federation):
    algorithm, hyper, x = (
        fesem_ma(deep_model, work, 2),
        as_traced(fesem.Hyper(lr=0.1)),
        jax.random.normal(key, (20, 4, 4, 1)),
    )
    state = jitted(algorithm.init)(key, hyper, federation.train)
    cohort = sample_cohort(key, jnp.int32(0), federation, 8, None)
    empty_cohort = cohort._replace(active=jnp.zeros(8, bool))  # so the tables' models go through an E and an M step

    @jax.jit
    def step(models):
        tables = state.server.kept._replace(models=models)
        return algorithm.round(key, hyper, state._replace(server=state.server._replace(kept=tables)), empty_cohort)[
            0
        ].server

    models = state.server.kept.models
    reordered_models = jax.tree.map(
        lambda leaf, new_leaf: leaf.at[3].set(new_leaf),
        models,
        with_shuffled_units(key, tree.take(models, 3), deep_model.layers),
    )
    in_order, in_other_order = step(models), step(reordered_models)
    np.testing.assert_array_equal(in_other_order.label, in_order.label)
    outputs = jax.vmap(lambda center: deep_model.apply(center, x, None)[0])
    np.testing.assert_allclose(outputs(in_other_order.centers), outputs(in_order.centers), rtol=1e-4, atol=1e-5)
    assert not np.allclose(reordered_models["fc1"]["kernel"], models["fc1"]["kernel"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, w: fedma(m, w, start="random"), "start='random'"),
        (lambda m, w: fedma(m, w, output="last"), "output='last'"),
        (lambda m, w: fedma(m, w, retrain_epochs=-1), "retrain_epochs=-1"),
        (lambda m, w: fedma(m, w, n_sweeps=0), "n_sweeps=0"),
        (lambda m, w: fesem_ma(m, w, n_sweeps=0), "n_sweeps=0"),
        (lambda m, w: fesem_ma(m, w, proximal_weight="none"), "proximal_weight='none'"),
    ],
)
def test_what_cannot_be_is_refused(model, work, make, message):
    with pytest.raises(ValueError, match=message):
        make(model, work)
