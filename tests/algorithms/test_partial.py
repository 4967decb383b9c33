"""Methods that share one part of the model: what moves, what stays, and what they are in the limit."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax
from fljax import tree
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedbabu import fedbabu
from fljax.algorithms.fedper import fedper
from fljax.algorithms.fedrep import fedrep
from fljax.algorithms.lg_fedavg import lg_fedavg
from fljax.algorithms.standalone import standalone
from fljax.client import train_clients, training_loss
from fljax.client.freeze import frozen_loss, frozen_optimizer
from fljax.client.optimizer import local_optimizer
from fljax.client.sharpness import sharpness_aware
from fljax.data.federation import minibatch
from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.rounds import train
from fljax.rounds.joining import everyone
from fljax.rounds.phases import Phase, train_in_phases
from fljax.rounds.sharing import compose, split
from fljax.run.one_round import as_traced, split_key
from fljax.run.train import run_chunk
from fljax.types import ClientData, Work
from tests.algorithms.round_by_round import jitted, simulate
from tests.slow import slow

ROUNDS = 3


def final(algorithm, hyper, federation, key, **options):
    """The state after three rounds with half of the clients."""
    return simulate(algorithm, hyper, federation, key, ROUNDS, participation=0.5, **options)[0]


def fedavg_server(model, work, federation, key, weighting="size"):
    return final(fedavg(model, work, weighting=weighting), fljax.fedavg.Hyper(lr=0.1), federation, key).server


@pytest.mark.slow
def test_ditto_without_pull_is_fedavg_beside_standalone_training(key, model, work, federation):
    """Each at a learning rate of its own, and both rates fall."""
    hyper = fljax.ditto.Hyper(lr=0.05, personal_lr=0.1, lr_decay=0.5, lam=0.0)
    state = final(ditto(model, work), hyper, federation, key)
    fedavg_state = final(fedavg(model, work), fljax.fedavg.Hyper(lr=0.05, lr_decay=0.5), federation, key)
    standalone_state = final(standalone(model, work), fljax.standalone.Hyper(lr=0.1, lr_decay=0.5), federation, key)
    chex.assert_trees_all_close(state.server, fedavg_state.server, rtol=1e-6, atol=1e-7)
    chex.assert_trees_all_close(state.clients, standalone_state.clients, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_the_global_model_of_ditto_does_not_know_the_pull(key, model, work, federation):
    state_without_pull, state_with_pull = (
        final(ditto(model, work), fljax.ditto.Hyper(lr=0.1, lam=pull), federation, key) for pull in (0.0, 3.0)
    )
    chex.assert_trees_all_equal(state_without_pull.server, state_with_pull.server)
    assert not np.array_equal(state_without_pull.clients["fc1"]["kernel"], state_with_pull.clients["fc1"]["kernel"])


@pytest.mark.slow
def test_a_strong_pull_lands_ditto_on_the_received_model_less_one_gradient(key, model, federation):
    # eta lambda = 1: V - eta (g(V) + lambda (V - theta)) = theta - eta g(V), wherever V was.
    algorithm, hyper = ditto(model, Work(1, 64)), fljax.ditto.Hyper(lr=0.01, lam=100.0)
    state = simulate(algorithm, hyper, federation, key, ROUNDS)[0]
    received = simulate(algorithm, hyper, federation, key, ROUNDS - 1)[0].server
    difference = tree.subtract(state.clients, tree.broadcast(received, 8))
    assert float(jnp.abs(tree.flatten(difference)).max()) < 0.01 * 2.0  # eta times a bound on a gradient's entries


@pytest.mark.slow
@pytest.mark.parametrize("n_shared", ["lg_fedavg", *slow("fedper", "fedrep", "fedbabu")])
def test_everything_shared_is_fedavg(key, model, work, federation, n_shared):
    algorithm, hyper = {
        "fedper": (fedper(model, work, n_personal=0), fljax.fedper.Hyper(lr=0.1)),
        "lg_fedavg": (lg_fedavg(model, work, n_shared=2, weighting="size"), fljax.lg_fedavg.Hyper(lr=0.1)),
        "fedrep": (fedrep(model, work, n_personal=0, body_epochs=2, ft_epochs=0), fljax.fedrep.Hyper(lr=0.1)),
        "fedbabu": (fedbabu(model, work, n_head=0, ft_epochs=0, weighting="size"), fljax.fedbabu.Hyper(lr=0.1)),
    }[n_shared]
    state = final(algorithm, hyper, federation, key)
    chex.assert_trees_all_close(state.server, fedavg_server(model, work, federation, key), rtol=1e-6, atol=1e-7)
    deployed = jitted(algorithm.deploy)(key, hyper, state, federation.train)
    assert tree.n_rows(deployed.params) == 1


def test_nothing_shared_is_standalone_training(key, model, work, federation):
    state = final(fedper(model, work, n_personal=2), fljax.fedper.Hyper(lr=0.1), federation, key)
    standalone_state = final(standalone(model, work), fljax.standalone.Hyper(lr=0.1), federation, key)
    chex.assert_trees_all_close(state.clients, standalone_state.clients, rtol=1e-6, atol=1e-7)
    assert state.server == {}


@pytest.mark.slow
def test_fedper_and_lg_fedavg_share_complementary_parts(key, model, work, federation):
    base = final(fedper(model, work), fljax.fedper.Hyper(lr=0.1), federation, key)
    head = final(lg_fedavg(model, work), fljax.lg_fedavg.Hyper(lr=0.1), federation, key)
    assert base.server.keys() == head.clients.keys() == {"fc1"}
    assert base.clients.keys() == head.server.keys() == {"fc2"}


def test_heads_of_clients_that_sit_out_stay(key, model, work, federation):
    state, metrics = simulate(fedper(model, work), fljax.fedper.Hyper(lr=0.1), federation, key, 2, participation=0.25)
    took_part = np.isin(np.arange(8), np.asarray(metrics["ids"]))
    assert 0 < took_part.sum() < 8
    start = np.asarray(model.init(split_key(key).init)["fc2"]["kernel"])
    is_changed = ~np.isclose(state.clients["fc2"]["kernel"], start, rtol=1e-6, atol=0).all(axis=(1, 2))
    np.testing.assert_array_equal(is_changed, took_part)


@pytest.mark.parametrize("optimizer", ["adamw", *slow("sgd", "adam")])
def test_frozen_layers_stay_bit_for_bit(key, model, federation, optimizer):
    work = Work(2, 8, optimizer=optimizer)
    hyper = fljax.fedavg.Hyper(lr=0.1, momentum=0.5 if optimizer == "sgd" else None, weight_decay=0.1)
    keys, start = jax.random.split(key, 8), model.init(key)
    loss = frozen_loss(training_loss(model), ("fc1",))
    frozen_sgd = frozen_optimizer(local_optimizer(hyper, work, jnp.int32(0)), ("fc1",))
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an int
        trained = train_clients(keys, tree.everyone(start, 8), federation.train, loss, frozen_sgd, work)
    chex.assert_trees_all_equal(trained.params["fc1"], tree.broadcast(start["fc1"], 8))
    assert (np.asarray(trained.params["fc2"]["kernel"]) != np.asarray(start["fc2"]["kernel"])).any(axis=(1, 2)).all()


def test_an_optimizer_that_asks_for_the_loss_may_leave_layers_alone(key, model, federation):
    def plateau(lr):
        return optax.chain(optax.sgd(lr), optax.contrib.reduce_on_plateau())

    start = model.init(key)
    tuner = frozen_optimizer(plateau(0.1), ("fc1",))
    trained = train_clients(
        jax.random.split(key, 8),
        tree.everyone(start, 8),
        federation.train,
        frozen_loss(training_loss(model), ("fc1",)),
        tuner,
        Work(1, 8),
    )
    chex.assert_trees_all_equal(trained.params["fc1"], tree.broadcast(start["fc1"], 8))
    assert (np.asarray(trained.params["fc2"]["kernel"]) != np.asarray(start["fc2"]["kernel"])).any(axis=(1, 2)).all()


@pytest.mark.slow
def test_a_sharpness_aware_step_climbs_in_the_layers_that_move_alone(key, model, federation):
    hyper, start, frozen = fljax.compose("fedavg+sam").Hyper(lr=0.1, rho=0.5), model.init(key), ("fc1",)
    batch = minibatch(federation.train.pool, federation.train.index[0, :4], jnp.ones(4, jnp.float32))
    loss = training_loss(model)

    def loss_of_last_layer(last_layer):
        return loss(start | {"fc2": last_layer}, batch, key)[0]

    # By hand, over the last layer alone.
    gradient = jax.grad(loss_of_last_layer)(start["fc2"])
    norm = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    expected = jax.grad(loss_of_last_layer)(jax.tree.map(lambda w, g: w + 0.5 * g / norm, start["fc2"], gradient))

    data = ClientData(federation.train.pool, federation.train.index[:1, :4], jnp.full(1, 4, jnp.int32))
    cohort = everyone(key, jnp.int32(0), data)
    work = Work(1, 4, terms=(sharpness_aware,))
    trained = train(hyper, tree.everyone(start, 1), cohort, loss, work, frozen=frozen)
    chex.assert_trees_all_equal(trained.params["fc1"], tree.broadcast(start["fc1"], 1))
    actual = jax.tree.map(
        lambda new_leaf, old_leaf: (old_leaf - new_leaf[0]) / 0.1, trained.params["fc2"], start["fc2"]
    )
    chex.assert_trees_all_close(actual, expected, rtol=1e-3, atol=1e-5)


def test_layers_that_a_model_does_not_have_are_not_frozen_in_silence(key, model, federation):
    loss = frozen_loss(training_loss(model), ("fc1", "fc9"))
    with pytest.raises(ValueError, match=r"there is no layer 'fc9'; choose among \('fc1', 'fc2'\)"):
        train_clients(
            jax.random.split(key, 8),
            tree.everyone(model.init(key), 8),
            federation.train,
            loss,
            optax.sgd(0.1),
            Work(1, 8),
        )


@pytest.mark.slow
def test_noise_for_privacy_leaves_the_head_alone_where_fedrep_trains_the_body_only(key, model, work, federation):
    private = fljax.compose("fedrep+dp_sgd")
    algorithm = private(model, work, body_epochs=work.epochs, ft_epochs=0)
    state = final(algorithm, private.Hyper(lr=0.1), federation, key)
    head = model.init(split_key(key).init)["fc2"]
    chex.assert_trees_all_equal(state.clients, {"fc2": tree.broadcast(head, 8)})


@pytest.mark.parametrize(("body_epochs", "fixed_layer"), [(0, "fc1"), (2, "fc2")])
def test_fedrep_moves_only_what_its_phases_train(key, model, work, federation, body_epochs, fixed_layer):
    state = final(
        fedrep(model, work, body_epochs=body_epochs, ft_epochs=0),
        fljax.fedrep.Hyper(lr=0.1, weight_decay=0.1),
        federation,
        key,
    )
    start = model.init(split_key(key).init)
    models = compose(tree.broadcast(state.server, 8), state.clients)
    trained_layer = "fc2" if fixed_layer == "fc1" else "fc1"
    # The mean of equal bodies may round in its last bit.
    chex.assert_trees_all_close(models[fixed_layer], tree.broadcast(start[fixed_layer], 8), rtol=1e-6)
    assert not np.allclose(models[trained_layer]["kernel"], start[trained_layer]["kernel"][None], atol=1e-3)


@pytest.mark.slow
def test_fedrep_fits_heads_alone_before_a_test(key, model, work, federation):
    for_training, for_test = fedrep(model, work, body_epochs=2, ft_epochs=0), fedrep(model, work, ft_epochs=3)
    hyper = fljax.fedrep.Hyper(lr=0.1)
    state = final(for_training, hyper, federation, key)
    deployed = jitted(for_test.deploy)(key, hyper, state, federation.train).params
    chex.assert_trees_all_equal(deployed["fc1"], tree.broadcast(state.server["fc1"], 8))
    assert (np.asarray(deployed["fc2"]["kernel"]) != np.asarray(state.clients["fc2"]["kernel"])).any(axis=(1, 2)).all()


@pytest.mark.slow
def test_fedbabu_keeps_its_random_head_until_it_fine_tunes(key, model, work, federation):
    hyper, start = fljax.fedbabu.Hyper(lr=0.1), model.init(split_key(key).init)
    state = final(fedbabu(model, work, weighting="size"), hyper, federation, key)
    chex.assert_trees_all_close(state.server["fc2"], start["fc2"], rtol=1e-6)  # drawn by another program
    assert not np.allclose(state.server["fc1"]["kernel"], start["fc1"]["kernel"], atol=1e-3)
    deployed = jitted(fedbabu(model, work, ft_epochs=0).deploy)(key, hyper, state, federation.train)
    assert tree.n_rows(deployed.params) == 1  # the same model for everyone
    fine_tuned = jitted(fedbabu(model, work).deploy)(key, hyper, state, federation.train).params
    assert (np.asarray(fine_tuned["fc2"]["kernel"]) != np.asarray(start["fc2"]["kernel"])).any(axis=(1, 2)).all()


def test_a_trained_head_is_another_method_than_fedbabu(key, model, work, federation):
    trained_in_body = final(fedbabu(model, work, weighting="size"), fljax.fedbabu.Hyper(lr=0.1), federation, key).server
    trained_in_all_layers = fedavg_server(model, work, federation, key)
    assert not np.allclose(trained_in_body["fc1"]["kernel"], trained_in_all_layers["fc1"]["kernel"], atol=1e-4)


def test_phases_report_the_mean_over_their_epochs_and_a_failed_one_undoes_all(key, model, federation):
    """Full batches, a step of 0.1 an epoch; client 2 fails in the first phase, client 5 in the second."""

    def loss_of(value):
        def loss(params, batch, key, failures):
            moves = params["fc1"]["bias"].sum()
            return value + failures + moves - jax.lax.stop_gradient(moves), params

        return loss

    failures = np.where(np.arange(8) == [[2], [5]], np.nan, 0).astype(np.float32)
    phases = [
        Phase((), epochs, loss_of(value), (rows,))
        for epochs, value, rows in zip((1, 3), (2.0, 6.0), failures, strict=True)
    ]
    start, cohort = tree.everyone(model.init(key), 8), everyone(key, jnp.int32(0), federation.train)
    hyper, is_fine = as_traced(fljax.fedavg.Hyper(lr=0.1)), ~np.isnan(failures).any(0)
    trained = jax.jit(lambda hyper, start: train_in_phases(hyper, start, cohort, Work(4, 64), phases))(hyper, start)
    np.testing.assert_array_equal(trained.ok, is_fine)
    np.testing.assert_allclose(np.asarray(trained.loss)[is_fine], (1 * 2 + 3 * 6) / 4)
    change = np.asarray(trained.params["fc1"]["bias"]) - np.asarray(start.params["fc1"]["bias"])
    np.testing.assert_allclose(change, np.broadcast_to(np.where(is_fine, -0.4, 0)[:, None], change.shape), atol=1e-6)


def test_parts_carry_their_running_statistics():
    params = {"a": 1, "b": 2, "batch_stats": {"a": 3, "b": 4}}
    without_b, only_b = split(params, ("b",))
    assert without_b == {"a": 1, "batch_stats": {"a": 3}}
    assert only_b == {"b": 2, "batch_stats": {"b": 4}}
    assert compose(without_b, only_b) == compose(only_b, without_b) == params
    assert split(params, ("a", "b"))[0] == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, w: fedper(m, w, n_personal=3), "n_personal=3"),
        (lambda m, w: lg_fedavg(m, w, n_shared=-1), "n_shared=-1"),
        (lambda m, w: fedrep(m, w, body_epochs=3), "body_epochs=3"),
        (lambda m, w: fedrep(m, w, ft_epochs=-1), "ft_epochs=-1"),
        (lambda m, w: fedbabu(m, w, ft_epochs=-1), "ft_epochs=-1"),
        (lambda m, w: ditto(m, w, personal_epochs=0), "personal_epochs=0"),
        (lambda m, w: ditto(m, w, weighting="median"), "weighting='median'"),
    ],
)
def test_what_cannot_be_is_refused(model, work, make, message):
    with pytest.raises(ValueError, match=message):
        make(model, work)


@pytest.mark.slow
def test_a_shared_body_is_not_copied_per_client(key):
    algorithm, hyper = fedper(mlp((4, 4, 1), (4096,), 4), Work(1, 8)), as_traced(fljax.fedper.Hyper())

    def temporaries(n_clients):
        federation = linear_groups(n_clients, 2, examples=24)
        state = jax.eval_shape(algorithm.init, key, hyper, federation.train)
        far_round = jnp.int32(2**30)
        arguments = (hyper, federation, key, None, far_round, far_round, state, jnp.int32(0), jnp.int32(4))
        memory = run_chunk.lower(algorithm, 2, 8, *arguments).compile().memory_analysis()
        return memory.temp_size_in_bytes, 4 * tree.size(state.server)

    (with_4_clients, body), (with_12_clients, _) = temporaries(4), temporaries(12)
    assert with_12_clients - with_4_clients < 8 * body / 2  # their heads, a quarter of a body each, but no bodies
