"""What a user's functions in a skeleton's slots give back: taken as the engine goes on with it, or refused by name."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.cluster.hierarchy

import fljax
from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.rounds import Clusters, Rule, averaging, clustered, train
from fljax.rounds.check_like import check_like
from fljax.types import Work
from tests.algorithms.round_by_round import simulate

WORK = Work(epochs=1, batch_size=8)
HYPER = fljax.fedavg.Hyper(lr=0.1)
N = 4


@pytest.fixture(scope="module")
def model():
    return mlp(input_shape=(4, 4, 1), hidden=(3,), n_classes=4)


@pytest.fixture(scope="module")
def federation():
    return linear_groups(N, 2, examples=10)


@pytest.fixture
def shapes(key, federation):
    return lambda algorithm: jax.eval_shape(lambda key: fljax.simulate(algorithm, HYPER, federation, key, 2), key)


class Pair(NamedTuple):
    a: object
    b: object


def test_what_takes_the_place_of_another_is_like_it():
    expected = {"a": jnp.zeros((2, 3)), "b": Pair(jnp.int32(1), ())}
    check_like("it is a state", expected, expected)
    check_like("it is a state", expected | {"a": jnp.zeros((2, 3), jnp.bfloat16)}, expected)  # a matter of precision
    check_like("it is a state", {"n": jnp.float32(0)}, {"n": jnp.asarray(0)})  # whole by accident, JAX raises it
    for state, message in (
        (
            {"a": expected["a"]},
            r"^it is a state without \['b'\].a; return the structure that it received: \['a'\], \['b'\].a$",
        ),
        (expected | {"c": 1.0}, r"state with \['c'\]; return"),
        (expected | {"b": (jnp.int32(1), ())}, r"state without \['b'\].a; return"),
        (
            expected | {"a": jnp.zeros((3, 2))},
            r"state whose \['a'\] has shape \(3, 2\); return \(2, 3\), as it received$",
        ),
        (expected | {"b": Pair(jnp.float32(1), ())}, r"state whose \['b'\].a is float32; return int32"),
        (expected | {"b": Pair(jnp.bool_(1), ())}, r"\['b'\].a is bool; return int32"),
        (3.0, r"state without \['a'\]; return"),
    ):
        with pytest.raises(ValueError, match=message):
            check_like("it is a state", state, expected)
    with pytest.raises(ValueError, match=r"^a model that has shape \(2,\); return \(\), as it received$"):
        check_like("a model", np.zeros(2), 1.0)
    with pytest.raises(
        ValueError, match=r"^a memory with a structure; return the structure that it received: no arrays$"
    ):
        check_like("a memory", 1.0, ())
    with pytest.raises(
        ValueError,
        match=r"^a model of the structure PyTreeDef\(\[\*\]\); return the structure that it received: .*\(\*,",
    ):
        check_like("a model", [1.0], (1.0,))


@pytest.mark.parametrize(
    ("combine", "message"),
    [
        (lambda hyper, shared, received, weight: 0.0, r"a model without \['fc1'\]\['bias'\]"),
        (lambda hyper, shared, received, weight: received, r"\['fc1'\]\['bias'\] has shape \(4, 3\); return \(3,\)"),
        (lambda hyper, shared, received, weight: jax.tree.map(jnp.int32, shared), "is int32; return float32"),
    ],
)
@pytest.mark.parametrize("skeleton", ["averaging", "clustered"])
def test_a_model_that_the_server_cannot_go_on_with(shapes, model, skeleton, combine, message):
    def begin(key, hyper, data):
        return Clusters(jax.vmap(model.init)(jax.random.split(key, 2)), jnp.arange(N) % 2)

    make = {
        "averaging": averaging,
        "clustered": lambda *arguments, **slots: clustered(*arguments, Rule(begin), **slots),
    }[skeleton]
    with pytest.raises(ValueError, match=f"^combine <lambda> returned .*{message}"):
        shapes(make(model, WORK, combine=combine))


def test_a_state_that_the_next_round_cannot_go_on_with(shapes, model):
    algorithm = averaging(model, WORK)

    def round(key, hyper, state, cohort):
        state, metrics = algorithm.round(key, hyper, state, cohort)
        return state._replace(server=state.server | {"round": cohort.round}), metrics

    with pytest.raises(
        ValueError, match=r"^a round returned a state with \.server\['round'\]; return the structure that it received"
    ):
        shapes(algorithm._replace(round=round))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (jnp.array([True, False, True, False]), r"shape \(4,\) and dtype bool; return whole numbers of shape"),
        (jnp.array([1.0, 0, 1, 0]), "dtype float32"),
        (jnp.array([1, 0]), r"shape \(2,\) and dtype int32; return whole numbers of shape \(clients,\) = \(4,\)"),
        (jnp.zeros((4, 1), jnp.int32), r"shape \(4, 1\)"),
    ],
)
def test_labels_that_say_of_no_client_where_it_is(shapes, model, label, message):
    def begin(key, hyper, data):
        return Clusters(jax.vmap(model.init)(jax.random.split(key, 2)), label)

    with pytest.raises(ValueError, match=f"^a rule's begin returned labels of .*{message}"):
        shapes(clustered(model, WORK, Rule(begin)))


def test_labels_of_any_whole_type_are_taken(key, model, federation):
    def begin_with(label):
        return lambda key, hyper, data: Clusters(jax.vmap(model.init)(jax.random.split(key, 2)), label)

    labels = ([1, 0, 1, 0], np.array([1, 0, 1, 0]), jnp.array([1, 0, 1, 0], jnp.uint8))
    for label in labels:
        state, metrics = jax.eval_shape(
            lambda key, label=label: fljax.simulate(
                clustered(model, WORK, Rule(begin_with(label))), HYPER, federation, key, 2
            ),
            key,
        )
        assert (state.server.label.dtype, metrics["label"].dtype) == (jnp.int32, jnp.int32)


def test_a_rule_that_gives_something_else(shapes, model):
    def begin(key, hyper, data):
        return Clusters(jax.vmap(model.init)(jax.random.split(key, 2)), jnp.arange(N) % 2)

    for rule, message in (
        (Rule(lambda *arguments: begin(*arguments)[0]), "what a rule's begin returned is of type dict, not a Clusters"),
        (
            Rule(lambda key, *arguments: Clusters(model.init(key), jnp.arange(N) % 2)),
            r"^a rule's begin returned centers without a row for each cluster; return .*, as jax.vmap\(model.init\)",
        ),
        (Rule(begin, before=lambda *arguments: None), "what a rule's before returned is None, not a Clusters"),
        (
            Rule(begin, after=lambda *arguments: arguments[2:4]),
            r"a rule's after returned \['Clusters', 'Sent'\]; return Clusters, Sent and",
        ),
        (Rule(begin, after=lambda *arguments: None), "a rule's after returned NoneType; return"),
        (
            Rule(
                begin, after=lambda *arguments: (arguments[2]._replace(label=arguments[2].label[:2]), arguments[3], {})
            ),
            "after returned labels of shape",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            shapes(clustered(model, WORK, rule))


@fljax.hyper
class OnceHyper(fljax.LocalHyper):
    warmup: fljax.Scalar = fljax.number(2, "rounds of FedAvg", least=1)


@pytest.mark.slow
def test_groups_that_another_library_finds_once(key, model, federation):
    """FL+HC by SciPy's clustering of SciPy's distances, called from within the run."""

    def by_scipy(updates):
        tree = scipy.cluster.hierarchy.linkage(updates, "average", metric="cosine")
        return scipy.cluster.hierarchy.fcluster(tree, 2, "maxclust").astype(np.int32) - 1

    def find(key, hyper, updates, is_present):
        update_rows = jnp.concatenate([leaf.reshape(N, -1) for leaf in jax.tree.leaves(updates)], axis=1)
        return jax.pure_callback(by_scipy, jax.ShapeDtypeStruct((N,), jnp.int32), update_rows, vmap_method="sequential")

    one_shot = clustered(model, WORK, fljax.rounds.one_shot_clustering(model, find))
    state, metrics = simulate(one_shot, OnceHyper(lr=0.1), federation, key, 3)
    flhc = fljax.flhc(model, WORK, n_clusters=2)
    expected_state, expected_metrics = simulate(flhc, fljax.flhc.Hyper(lr=0.1, warmup=2), federation, key, 3)
    assert len(set(state.server.label.tolist())) == 2
    for a, b in (
        (state.server.label, expected_state.server.label),
        (metrics["loss"], expected_metrics["loss"]),
        *zip(*(jax.tree.leaves(some_state.server.centers) for some_state in (state, expected_state)), strict=True),
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("given", "hyper", "message"),
    [
        (
            jnp.zeros(3, jnp.int32),
            OnceHyper(),
            r"^a rule's find returned labels of shape \(3,\) and dtype int32; return whole",
        ),
        (
            jnp.zeros(N),
            OnceHyper(),
            r"^a rule's find returned labels of shape \(4,\) and dtype float32; return whole numbers",
        ),
        (
            jnp.zeros(N, jnp.int32),
            HYPER,
            "^LocalHyper has no field warmup, the rounds before groups form; add it",
        ),
    ],
)
def test_what_finds_groups_once_is_refused_by_name(key, model, federation, given, hyper, message):
    algorithm = clustered(model, WORK, fljax.rounds.one_shot_clustering(model, lambda *arguments: given))
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda key: fljax.simulate(algorithm, hyper, federation, key, 2), key)


def test_a_loss_of_every_example(shapes, model):
    def local(hyper, start, cohort):
        def losses(params, batch, key):
            return model.loss(model.apply(params, batch.x, key)[0], batch.y), params

        return train(hyper, start, cohort, losses, WORK)

    with pytest.raises(
        ValueError, match=r"^a loss returned an array of shape \(8,\); return one number, the batch's mean"
    ):
        shapes(averaging(model, local))
