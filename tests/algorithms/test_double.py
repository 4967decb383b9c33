"""With JAX's 64-bit types enabled: a model of float32 gives the run that it gives without, one of float64 is exact."""

import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fljax
from fljax import tree
from fljax.algorithms.fedavg import fedavg
from fljax.models import mlp
from tests import oracle
from tests.algorithms.round_by_round import written_out
from tests.algorithms.table import CASES
from tests.algorithms.test_contract import ENGINE, FIRST, case, cohort, first_round, of, padded_federation  # noqa: F401
from tests.algorithms.test_oracles import WORK, Reference

INSIDE_OTHERS = ("adacfl", "afl", "fedma", "fedma-retrain", "fedpac", "fesem_ma")
"""Where arrays of float64 are JAX's own, in a median, or Optax's, in an assignment or a projection."""


@pytest.fixture(autouse=True)
def promotion_of_a_user():
    """Our tests let no whole number of 64 bits, which an index then is, meet one of 32."""
    with jax.numpy_dtype_promotion("standard"):
        yield


SOME = of(("fedavg", "scaffold"), FIRST)


@SOME
def test_a_model_of_float32_draws_and_computes_as_without(key, name, case, padded_federation, cohort):  # noqa: F811
    algorithm, hyper = case
    structures = first_round(algorithm).eval_shape(hyper, padded_federation, key, cohort)
    with jax.enable_x64(True):
        chex.assert_trees_all_equal_shapes_and_dtypes(
            first_round(algorithm).eval_shape(hyper, padded_federation, key, cohort), structures
        )
        text = written_out(algorithm, hyper, padded_federation)
    assert "bit_width=64" not in text  # other random numbers
    if name not in INSIDE_OTHERS:
        assert not re.findall(r"\S*f64\[\d.*", text)  # numbers without a shape are those of Python


@SOME
def test_parameters_of_float64_stay_so(key, name, model, work, padded_federation, cohort):  # noqa: F811
    original = CASES[name].model or model

    def init(key):
        trainable, statistics = tree.split_statistics(original.init(key))
        return tree.join_statistics(jax.tree.map(lambda leaf: leaf.astype(jnp.float64), trainable), statistics)

    with jax.enable_x64(True):
        algorithm = CASES[name]._replace(model=original._replace(init=init)).make(model, work)
        state, next_state, _, deployed = first_round(algorithm).eval_shape(
            CASES[name].hyper, padded_federation, key, cohort
        )
    chex.assert_trees_all_equal_shapes_and_dtypes(state, next_state)
    leaves = tree.named_leaves(deployed.params)  # a method's own small networks and statistics beside them are float32
    layers = {leaf.dtype for path, leaf in leaves.items() if {*original.layers} & {*path} and "batch_stats" not in path}
    assert layers == {jnp.dtype("float64")}


def test_fedavg_in_float64_equals_numpy(key, model, federation):
    reference, lr, momentum = Reference(key, model, federation), 0.25, 0.5  # both are float32's too
    theta = reference.start
    for members in reference.rounds(4, None):
        sent = [oracle.local_sgd(theta, reference.batches(i, k), lr, momentum) for i, k, _ in members]
        theta = oracle.average(sent, [size for *_, size in members])
    with jax.enable_x64(True):
        double = mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4, dtype=jnp.float64)
        hyper = fljax.fedavg.Hyper(lr=lr, momentum=momentum)
        state, metrics = fljax.simulate(fedavg(double, WORK), hyper, federation, key, 3, participation=0.5)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.server)} == {"float64"}
    chex.assert_trees_all_close(state.server, theta, rtol=1e-12, atol=1e-14)
    assert {str(value.dtype) for value in metrics.values()} == {"float32", "int32", "bool"}


@pytest.mark.slow
def test_a_whole_run_is_the_same(key, model, work, federation):
    algorithm = fljax.compose("ifca+top_k")(model, work, n_clusters=2)

    def run():
        hyper = fljax.compose("ifca+top_k").Hyper(lr=0.1)
        return fljax.simulate(algorithm, hyper, federation, key, 2, participation=0.75, dropout=0.3)

    in_float32 = run()
    with jax.enable_x64(True):
        in_float64 = run()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), in_float64, in_float32)


@pytest.mark.parametrize("name", ["fedala", "fedgwc", "fedcac", "fedsgd"])
def test_losses_of_float64_go_where_float32_is_kept(key, name, work, padded_federation, cohort):  # noqa: F811
    """Of a network that computes in float64 too."""

    def apply(params, x):
        return jnp.asarray(x, jnp.float64).reshape(x.shape[0], -1) @ params["first"]["w"] @ params["last"]["w"]

    with jax.enable_x64(True):
        model = fljax.from_functions(
            lambda key: {"first": {"w": jnp.ones((16, 3), jnp.float64)}, "last": {"w": jnp.ones((3, 4), jnp.float64)}},
            apply,
        )
        algorithm = CASES[name]._replace(model=model).make(model, work)
        state, next_state, *_ = first_round(algorithm).eval_shape(CASES[name].hyper, padded_federation, key, cohort)
    chex.assert_trees_all_equal_shapes_and_dtypes(state, next_state)
