"""The clustered methods' slots: every brick that fits goes in, and layers in common are combined over everybody."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax.algorithms import ALGORITHMS
from fljax.data.synthetic import linear_groups
from fljax.numbers import LocalHyper, hyper, number, numbers_of
from fljax.rounds import by_optimizer, mean, median, regrouped, traffic
from fljax.rounds.bricks import BRICKS
from fljax.rounds.clustered import Clusters
from fljax.rounds.cohort import sample_cohort
from fljax.rounds.combine_parts import over_everybody
from fljax.rounds.first_models import with_first_models
from fljax.run.one_round import as_traced
from fljax.types import Work
from tests import oracle
from tests.algorithms.round_by_round import jitted
from tests.algorithms.test_oracles import LR, WORK, Reference, assert_models
from tests.oracle import examples_of
from tests.slow import slow, slow_rows

METHODS = {
    "ifca": {"n_shared": 1},
    "hypcluster": {},
    "fesem": {"objective": True, "empty": "reseed"},
    "fesem_ma": {},
    "robust_cfl": {},
    "group_pfl": {},
    "group_pfl_dynamic": {},
    "flc": {},
    "layercfl": {"layers": "label"},
    "cfl": {},
    "adacfl": {},
}

OTHER_BRICKS = ("median", "adam"), ("multi_krum",)
"""In the slots of the other three; quick in one method."""
TOGETHER = "ifca", "hypcluster", "fesem", "robust_cfl", "layercfl"
"""The methods that are quick with three bricks at once: each with a rule of its own for who is in which cluster."""


@pytest.fixture(scope="module")
def cohort(federation):
    """A round's clients."""
    return jax.jit(lambda key: sample_cohort(key, jnp.int32(0), federation, 4, None))(jax.random.key(0))


@pytest.mark.parametrize(
    ("name", "bricks"),
    [
        *((name, ("prox", "krum", "momentum")) for name in TOGETHER),
        *slow_rows(*((name, ("prox", "krum", "momentum")) for name in METHODS if name not in TOGETHER)),
        *(("ifca", bricks) for bricks in OTHER_BRICKS),
        *slow_rows(*itertools.product([name for name in METHODS if name != "ifca"], OTHER_BRICKS)),
    ],
)
def test_bricks_fit_every_clustered_method(key, model, work, federation, cohort, name, bricks):
    """The state keeps its shapes from round to round whatever the server remembers."""
    method, composed = ALGORITHMS[name], []
    for brick in bricks:
        numbers = BRICKS[brick].Hyper
        if numbers and numbers_of(numbers).keys() & numbers_of(method.Hyper).keys():
            continue  # FeSEM has a pull of its own, HypCluster a server optimiser
        method, composed = method + BRICKS[brick], [*composed, brick]
    algorithm, numbers = method(model, work, **METHODS[name]), as_traced(method.Hyper(lr=0.1))
    assert algorithm.about.name == "+".join([name, *composed])
    state = jax.eval_shape(algorithm.init, key, numbers, federation.train)
    next_state, metrics = jax.eval_shape(algorithm.round, key, numbers, state, cohort)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), next_state) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    assert {"loss", "label", "n_clusters", "uplink", "downlink"} <= set(metrics)


@pytest.mark.parametrize(
    ("combine", "common_value", "cluster_values"),
    [(mean, 4.0, [2.0, 6.5, 9.0]), (median, 3.0, [2.0, 6.5, 9.0])],
    ids=["mean", "median"],
)
def test_layers_in_common_are_combined_over_everybody(combine, common_value, cluster_values):
    value = jnp.array([1.0, 2.0, 3.0, 3.0, 10.0, 5.0])
    received = {"a": {"w": value}, "b": {"w": value}}
    centers = {"a": {"w": jnp.zeros(3)}, "b": {"w": jnp.array([7.0, 8.0, 9.0])}}
    label = jnp.array([0, 0, 1, 0, 1, 5])  # the last is in no cluster, but is somebody
    combining = over_everybody(combine, ("a",))
    centers_of_members, _ = combining.members(None, ((), ()), centers, received, jnp.ones(6), label)
    np.testing.assert_allclose(centers_of_members["a"]["w"], [common_value] * 3)
    np.testing.assert_allclose(centers_of_members["b"]["w"], cluster_values)
    center_of_all, _ = combining.apply(
        None, ((), ()), {"a": {"w": jnp.zeros(())}, "b": {"w": jnp.zeros(())}}, received, jnp.ones(6)
    )
    assert float(center_of_all["a"]["w"]) == float(center_of_all["b"]["w"]) == common_value


@hyper
class ServerHyper(LocalHyper):
    """Numbers of a server with momentum."""

    server_lr: float = number(0.5, "learning rate of the server", above=0)
    beta1: float = number(0.5, "momentum", least=0, below=1)


def test_layers_in_common_have_one_memory():
    common = over_everybody(by_optimizer(mean, "momentum"), ("a",))
    centers = {"a": {"w": jnp.zeros(2)}, "b": {"w": jnp.zeros(2)}}
    memory = jax.vmap(lambda center: common.init(ServerHyper(), center))(centers)
    received = {"a": {"w": jnp.array([2.0, 4.0])}, "b": {"w": jnp.array([2.0, 4.0])}}
    for a, b in ((1.5, [1.0, 2.0]), (3.0, [2.0, 4.0])):  # v <- v/2 + theta - mean; theta <- theta - v/2
        centers, memory = common.members(ServerHyper(), memory, centers, received, jnp.ones(2), jnp.array([0, 1]))
        np.testing.assert_allclose(centers["a"]["w"], [a, a])
        np.testing.assert_allclose(centers["b"]["w"], b)


def test_new_clusters_take_over_model_and_memory():
    clusters = Clusters(
        {"w": jnp.array([1.0, 2.0, 3.0])}, jnp.array([0, 1, 1]), memory={"v": jnp.array([4.0, 5.0, 6.0])}
    )
    parted = regrouped(clusters, jnp.array([0, 1, 2]))
    np.testing.assert_array_equal(parted.centers["w"], [1, 2, 2])
    np.testing.assert_array_equal(parted.memory["v"], [4, 5, 5])
    np.testing.assert_array_equal(parted.label, [0, 1, 2])


def test_a_gradient_takes_no_more_than_a_plain_step(key, model, federation, cohort):
    method = ALGORITHMS["ifca"]
    with pytest.raises(ValueError, match="takes one step per round; use epochs=1"):
        method(model, Work(2, 8), averaging="gradient")
    with pytest.raises(ValueError, match="sends the gradient of the plain loss; remove bricks"):
        (method + BRICKS["prox"])(model, Work(1, 8), averaging="gradient")
    algorithm = method(model, Work(1, 8), averaging="gradient")
    numbers = as_traced(method.Hyper(lr=0.1, momentum=0.5))
    state = jax.eval_shape(algorithm.init, key, numbers, federation.train)
    with pytest.raises(ValueError, match="use momentum=None and weight_decay=None"):
        jax.eval_shape(algorithm.round, key, numbers, state, cohort)


@pytest.mark.parametrize("name", ["hypcluster", "fedcps", *slow("ifca", "fedsoft")])
def test_k_first_models_that_would_be_equal_are_refused(key, federation, name):
    model = fljax.MODELS["logistic_regression"]((4, 4, 1), 4)
    params = jax.jit(model.init)(key)
    constant_model = model._replace(init=lambda key: params)

    def noisy_init(key):
        return jax.tree.map(lambda leaf: leaf + 0.01 * jax.random.normal(key, leaf.shape), params)

    method, work = fljax.ALGORITHMS[name], fljax.Work(1, 8)
    with pytest.raises(ValueError, match="initial parameters do not depend on the key, so all 3 initial models"):
        jax.eval_shape(method(constant_model, work, n_clusters=3).init, key, method.Hyper(), federation.train)
    jax.eval_shape(method(constant_model, work, n_clusters=1).init, key, method.Hyper(), federation.train)
    algorithm = method(constant_model._replace(init=noisy_init), work, n_clusters=3)
    state = jitted(algorithm.init)(key, method.Hyper(), federation.train)
    first_leaf = np.asarray(jax.tree.leaves(state.server)[0])
    assert len(np.unique(first_leaf.reshape(3, -1), axis=0)) == 3
    if name != "fedcps":  # clients' data tell models apart that they have trained alone
        trained_alone = method(constant_model, work, n_clusters=3, alone_epochs=1)
        jax.eval_shape(trained_alone.init, key, method.Hyper(), federation.train)


@pytest.mark.parametrize("name", ["hypcluster", *slow("ifca", "fedsoft")])
def test_first_models_of_clients_alone_are_farthest_by_loss(key, model, federation, name):
    """The first is a random client's, the next that of the client with the largest loss under those before.

    One without examples and one of NaN, whom chance favours, are not chosen.
    """
    ticket = np.asarray(jax.random.uniform(jax.random.fold_in(key, 2), 8))
    empty, broken, *others = np.argsort(-ticket).tolist()
    x, size = np.array(federation.train.pool.x), np.asarray(federation.train.size).copy()
    x[np.asarray(federation.train.index)[broken, : size[broken]]] = np.nan
    size[empty] = 0
    data = federation.train._replace(pool=federation.train.pool._replace(x=x), size=size)
    reference = Reference(key, model, federation._replace(train=data))
    theta, keys = model.init(key), [jax.random.fold_in(jax.random.fold_in(key, 1), i) for i in range(8)]
    theta = jax.tree.map(np.float64, theta)
    trained = {i: oracle.local_sgd(theta, reference.batches(i, keys[i], 3), LR) for i in others}
    chosen = others[:1]
    while len(chosen) < 4:
        least = {
            i: min(oracle.training_loss(trained[j], *examples_of(data, i)) for j in chosen)
            for i in trained.keys() - set(chosen)
        }
        chosen.append(max(least, key=lambda i: least[i]))
    method = ALGORITHMS[name]
    algorithm = method(model, WORK, 4, alone_epochs=3)
    server = jitted(algorithm.init)(key, method.Hyper(lr=LR), data).server
    assert_models(getattr(server, "centers", server), [trained[i] for i in chosen])


def test_first_models_of_clients_alone_are_sent_in_the_first_round(cohort):
    """A model and two losses up; the initial model and the first two of three down."""
    for round, expected in ((0, {"uplink": 11 + 10 + 2, "downlink": 30 + 30}), (1, {"uplink": 11, "downlink": 30})):
        metrics = with_first_models(traffic(11, 30), cohort._replace(round=np.int32(round)), 10, 3, alone=True)
        assert jax.tree.map(int, metrics) == expected


@pytest.mark.slow
def test_more_first_models_than_clients_that_trained_repeat(key, model, work):
    federation = linear_groups(2, 2, examples=24)
    method = ALGORITHMS["ifca"]
    server = jitted(method(model, work, 4, alone_epochs=1).init)(key, method.Hyper(lr=LR), federation.train).server
    kernels = np.asarray(server.centers["fc2"]["kernel"])
    assert len(np.unique(kernels.reshape(4, -1), axis=0)) == 2
