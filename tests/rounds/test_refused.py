"""What own methods get wrong without a sound: names of layers, choices, terms of bricks, labels of no cluster."""

import re
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fljax
from fljax.data.synthetic import linear_groups
from fljax.models import logistic_regression, mlp
from fljax.numbers import LocalHyper, Scalar, hyper, number
from fljax.rounds import Brick, Clusters, Rule, all_but, averaging, clustered, only, two_models
from fljax.rounds.bricks import BRICKS
from fljax.rounds.clock.buffered import asynchronous, buffered
from fljax.rounds.combine import Combine, mean, median
from fljax.rounds.combine_parts import on_layers
from fljax.rounds.joining import held_with_least_loss
from fljax.rounds.uplink.chain import NOTHING, Transform, with_uplink
from fljax.rounds.uplink.downlink import with_downlink
from fljax.run.sweep import search, stack
from fljax.run.train import train
from fljax.types import ModelTable, Trained, Work
from tests.algorithms.round_by_round import jitted

WORK = Work(epochs=1, batch_size=8)
HYPER = fljax.fedavg.Hyper(lr=0.1)


@pytest.fixture(scope="module")
def model():
    return mlp(input_shape=(4, 4, 1), hidden=(3,), n_classes=4)


@pytest.fixture(scope="module")
def one_layer_model():
    """A network for what takes compiled rounds: no layers are asked for."""
    return logistic_regression(input_shape=(4, 4, 1), n_classes=4)


@pytest.fixture(scope="module")
def federation():
    return linear_groups(6, 2, examples=10, ragged=0.4)


def shapes(algorithm, federation, key, hyper=HYPER):
    return jax.eval_shape(lambda key: fljax.simulate(algorithm, hyper, federation, key, 1), key)


@pytest.mark.parametrize("choose_layers", [all_but, only, lambda layers: on_layers(median, layers)])
@pytest.mark.parametrize("layers", [("fc2", "conv"), "fc2", 3])
def test_layers_that_the_model_does_not_have(key, model, federation, choose_layers, layers):
    slot = (
        {"sharing": choose_layers(layers)} if choose_layers in (all_but, only) else {"combine": choose_layers(layers)}
    )
    with pytest.raises(
        ValueError,
        match=r"^layers.*(there is no layer 'conv'; choose among|(one string|int, not a list); give a tuple of) "
        r"\('fc1', 'fc2'\)",
    ):
        shapes(averaging(model, WORK, **slot), federation, key)


def test_choices_that_there_are_not(key, model, federation):
    with pytest.raises(ValueError, match=r"^weighting='sizes' is unknown; choose one of 'size', 'uniform'"):
        shapes(averaging(model, WORK, weighting="sizes"), federation, key)
    with pytest.raises(ValueError, match=r"^deployed='personal' is unknown; choose one of 'global', 'own'$"):
        two_models(model, lambda *arguments: None, "personal")


def test_a_term_that_the_clients_training_would_leave_out(key, model, federation):
    @fljax.method()
    def direct(model, work):
        def local(hyper, start, cohort):
            loss = fljax.training_loss(model)
            return fljax.train_clients(cohort.key, start, cohort.data, loss, optax.sgd(hyper.lr), work)

        return averaging(model, local)

    shapes(direct(model, WORK), federation, key)
    private = direct + BRICKS["dp_sgd"]
    with pytest.raises(ValueError, match=r"^work.terms=.*call fljax.rounds.train"):
        shapes(private(model, WORK), federation, key, private.Hyper(lr=0.1))


def test_a_term_that_clients_who_train_in_their_own_way_never_see(key, model, federation):
    @fljax.method()
    def without_training(model, work):
        def local(hyper, start, cohort):
            n = cohort.ids.shape[0]
            return Trained(fljax.tree.stacked(start), jnp.zeros(n), jnp.ones(n, bool))

        return averaging(model, local)

    @fljax.method()
    def without_training_of_combine(model, work, *, combine=mean):
        return without_training(model, work)

    shapes(without_training(model, WORK), federation, key)
    for private in (
        without_training + BRICKS["dp_sgd"],
        without_training_of_combine + BRICKS["dp_sgd"] + BRICKS["sign"],
    ):
        with pytest.raises(
            ValueError, match=rf"^{re.escape(private.name)}: its clients train without dp_sgd; train them"
        ):
            shapes(private(model, WORK), federation, key, private.Hyper(lr=0.1))
    method_with_terms = fljax.compose("fedavg+prox+sam")
    for _ in range(2):  # the second time its training is not traced again
        shapes(method_with_terms(model, WORK), federation, key, method_with_terms.Hyper(lr=0.1))


@pytest.mark.slow
def test_a_client_of_no_cluster_is_not_tested(key, one_layer_model, federation):
    def begin(key, hyper, data):
        centers = jax.vmap(one_layer_model.init)(jax.random.split(key, 2))
        return Clusters(centers, jnp.array([0, 1, 0, -1, -1, 1], jnp.int32))

    algorithm = clustered(one_layer_model, WORK, Rule(begin))
    state, metrics = fljax.simulate(algorithm, HYPER, federation, key, 1)
    accuracy = np.asarray(metrics["client_accuracy"][0])
    np.testing.assert_array_equal(np.isnan(accuracy), [False, False, False, True, True, False])
    assert metrics["accuracy_macro"][0] == pytest.approx(np.nanmean(accuracy))
    assert np.isnan(metrics["client_loss"][0, 3:5]).all()
    # New clients choose among the models that somebody holds: of a label of -1 that is none, not the first.
    models = ModelTable(state.server.centers, jnp.array([-1, 1, 1, -1, 1, -1], jnp.int32))
    chosen = jax.jit(lambda models: held_with_least_loss(one_layer_model, models, federation.train).row)
    actual = chosen(models)
    np.testing.assert_array_equal(actual, np.ones(6))
    row_of_newcomers = jitted(algorithm.join)(key, HYPER, state, federation.train, np.int32(0)).row
    models_of_nobody = models._replace(row=jnp.full(6, -1, jnp.int32))
    np.testing.assert_array_equal(chosen(models_of_nobody), row_of_newcomers)


def test_a_rule_that_counts_clusters_from_1_is_told_so(key, one_layer_model, federation, tmp_path, no_rounds):
    def begin(key, hyper, data):
        centers = jax.vmap(one_layer_model.init)(jax.random.split(key, 2))
        return Clusters(centers, jnp.array([1, 2, 1, 2, 1, 2], jnp.int32))

    no_rounds()
    with pytest.raises(ValueError, match=r"^a rule begins with labels 1 to 2 and 2 models; give 0 to 1, or -1 for a"):
        train(
            clustered(one_layer_model, WORK, Rule(begin)), fljax.LocalHyper(lr=0.1), federation, key, 1, folder=tmp_path
        )
    assert not list(tmp_path.glob("rounds/*"))


@hyper
class LabelHyper(fljax.LocalHyper):
    label: Scalar = number(0, "of client 3 from the second round on")


@pytest.mark.slow
def test_a_rule_whose_later_labels_are_no_clusters_is_told_so(key, one_layer_model, federation):
    def begin(key, hyper, data):
        centers = jax.vmap(one_layer_model.init)(jax.random.split(key, 2))
        return Clusters(centers, jnp.zeros(6, jnp.int32))

    def after(key, hyper, clusters, sent, cohort):
        label = jnp.asarray(hyper.label, jnp.float32).astype(jnp.int32)
        next_label = clusters.label.at[3].set(jnp.where(cohort.round == 1, label, 0))
        return clusters._replace(label=next_label), sent, {}

    algorithm, numbers = clustered(one_layer_model, WORK, Rule(begin, after=after)), LabelHyper(lr=0.1)
    arguments, one_device = (federation, key), jax.devices()[:1]
    for run in (
        lambda numbers, n: fljax.simulate(algorithm, numbers, *arguments, n),
        lambda numbers, n: train(algorithm, numbers, *arguments, n),
        # Both by one program: of four points, as a search runs at once.
        lambda numbers, n: fljax.sweep(algorithm, stack([numbers] * 4), *arguments, 1, n, compile="fast"),
        lambda numbers, n: search(
            algorithm, stack([numbers] * 4), *arguments, 1, n, compile="fast", devices=one_device
        ),
    ):
        for label in (2, -2):
            with pytest.raises(ValueError, match=r"^a rule put client 3 into a cluster that does not exist; give"):
                run(numbers.replace(label=label), 2)
    train(algorithm, numbers.replace(label=2), *arguments, 1)  # in the first round it puts nobody anywhere
    jax.eval_shape(lambda key: fljax.simulate(algorithm, numbers, federation, key, 2), key)


def own_round(model):
    base = averaging(model, WORK)

    def round(key, hyper, state, cohort):
        state, metrics = base.round(key, hyper, state, cohort)
        return state._replace(server=jax.tree.map(jnp.zeros_like, state.server)), metrics | {"mine": 1.0}

    return base._replace(round=round)


def test_a_replaced_round_is_run_or_refused_and_never_left_out(key, one_layer_model, federation):
    """The halves of the round that lies under it, its `exchange`, are not what a run does."""
    algorithm = own_round(one_layer_model)
    assert averaging(one_layer_model, WORK).round_exchange is not None
    assert algorithm.round_exchange is None

    with pytest.raises(ValueError, match="its round is not made of two halves, so nothing can change updates"):
        with_uplink(algorithm, NOTHING)
    with pytest.raises(ValueError, match="its round is its own, so nothing can change the model"):
        with_downlink(algorithm, NOTHING)
    with pytest.raises(ValueError, match="more than one model, or a round of its own"):
        buffered(algorithm, asynchronous(np.ones(6), concurrency=2, buffer=2, n_rounds=2))
    with pytest.raises(ValueError, match="its round is not made of two halves"):
        fljax.attacks.attacked(algorithm, federation, fljax.attacks.sign_flip(share=0.2))
    later_attack = fljax.attacks.label_flip(share=0.2, start=1)
    attacked_algorithm, data, _ = fljax.attacks.attacked(algorithm, federation, later_attack)
    state, metrics = fljax.simulate(attacked_algorithm, fljax.LocalHyper(lr=0.1), data, key, 2)
    assert "mine" in metrics
    assert not any(leaf.any() for leaf in jax.tree.leaves(state.server))


def test_a_combine_that_is_no_function_is_named(model):
    with pytest.raises(ValueError, match=r"^combine is 'median', not a Combine or a function; give one of flj"):
        fljax.fedavg(model, WORK, combine="median")


@pytest.mark.parametrize("name", ["apfl", "apple", "feddbe", "pfedme"])
def test_a_method_that_trains_more_than_a_model_has_no_place_for_a_term(name):
    """A term would know nothing of the vector or the weights that are trained beside the model."""
    with pytest.raises(ValueError, match=r"has no slot 'loss' for sam; its slots: "):
        fljax.compose(f"{name}+sam")


def test_a_local_part_that_returns_no_trained_models(key, one_layer_model, federation):
    @fljax.method
    def untrained(model, work):
        return averaging(model, lambda hyper, start, cohort: start)

    with pytest.raises(
        ValueError, match=r"^what local returned is of type ModelTable, not a Trained; return one, as f"
    ):
        shapes(untrained(one_layer_model, WORK), federation, key)


@dataclass
class Mutable:
    """A function that is no key of a dict, as a brick must be."""

    def __call__(self, *arguments):
        return arguments


def test_bricks_of_the_wrong_kind(one_layer_model):
    class Size:
        size: float = 1.0

    same = Transform(lambda hyper, memory, message, trip: (memory, message))
    for Hyper, shown in ((Size, "<class .*Size'>"), (LocalHyper(), r"LocalHyper\(.*\)")):
        with pytest.raises(ValueError, match=rf"^sized: Hyper={shown} is not a class of hyperparameters; write @flj"):
            fljax.fedavg + Brick("sized", "uplink", same, "", Hyper)
    plain = Brick("sized", "uplink", same, "")
    for field in ("name", "slot", "summary", "paper", "link"):
        with pytest.raises(ValueError, match=f"^{field} of a brick is 5, not a str; give a text$"):
            fljax.fedavg + plain._replace(**{field: 5})
    for name in ("", "a+b", "a/b", "a:b", "a b"):
        with pytest.raises(ValueError, match=rf"^name='{re.escape(name)}' of a brick; give letters, digits, "):
            fljax.fedavg + plain._replace(name=name)
    with pytest.raises(ValueError, match=r"^sized: before is 'top_k', not a tuple; give a tuple of names of bricks"):
        fljax.fedavg + plain._replace(before="top_k")
    for slot, value, message in (
        ("conbine", fljax.rounds.krum, r"slot='conbine' is unknown; choose one of 'loss', 'augment', 'uplink', "),
        (
            "uplink",
            "half",
            r"value is 'half', not a Transform or a function; give fljax.rounds.uplink.Transform\(apply\)",
        ),
        (
            "downlink",
            Transform("half"),
            r"value.apply is 'half', not a function; give \(hyper, memory, message, trip\) -> ",
        ),
        ("combine", Transform, r"value is <class .*Transform'>, not a Combine or a function; give one of fljax.rounds"),
        (
            "loss",
            Combine(fljax.rounds.krum),
            r"value is of type Combine, not a function; give \(loss, hyper\) -> loss$",
        ),
        ("augment", fljax.fedavg, r"value is <method fedavg>, not a function; give \(key, x, hyper\) -> x$"),
        (
            "server",
            lambda hyper, shared: shared,
            r"value is called with \(combine\), but <lambda> takes \(hyper, shared\)$",
        ),
        ("combine", Mutable(), r"value is of type Mutable, which is mutable; give a function, or freeze its class$"),
    ):
        for add in (fljax.fedavg.__add__, partial(fljax.compose, "fedavg")):
            with pytest.raises(ValueError, match=f"^mine: {message}"):
                add(Brick("mine", slot, value, ""))
    for field, kind in (("epochs", "a field of Work"), ("weighting", "a hyperparameter")):
        Named = hyper(type("Named", (), {"__annotations__": {field: Scalar}, field: number(0.5, "a factor")}))
        with pytest.raises(
            ValueError, match=rf"^fedavg\+mine: '{field}' is both a .* and {kind}; give one another name$"
        ):
            fljax.fedavg + Brick("mine", "server", lambda combine: combine, "", Named)
    with pytest.raises(
        ValueError, match=r"^fedavg\+pale\+pale: pale is there already; leave one out, or give one another"
    ):
        fljax.fedavg + Brick("pale", "augment", lambda key, x, hyper: x, "") + Brick("pale", "augment", max, "")
    bare = fljax.fedavg + Brick("bare", "uplink", lambda *arguments: arguments, "a function, not a transform")
    with pytest.raises(ValueError, match=r"^what a brick of the uplink returned is .* not a Transform; write Brick\("):
        bare(one_layer_model, WORK)
    with pytest.raises(ValueError, match=r"^other\(net, work\): the first arguments of a method are model, work$"):

        @fljax.method
        def other(net, work):
            return averaging(net, work)
