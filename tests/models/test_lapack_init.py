"""Several networks whose parameters LAPACK has a part in begin, however many threads there are."""

import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.extend.core import jaxprs_in_params

import fljax
from fljax import tree
from fljax.models import lstm
from fljax.models.lapack_init import LAPACK
from tests.slow import slow

SQUARE = nn.initializers.orthogonal()


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.Dense(6, kernel_init=SQUARE)(x)
        return x


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = (nnx.Linear(6, 6, kernel_init=SQUARE, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        return self.second(self.first(x))


def init(key):
    return {name: SQUARE(key, (6, 6)) for name in "ab"}


MODELS = {
    "lstm": lambda: lstm((4, 3), 2, (8, 8)),
    "linen": lambda: fljax.from_linen(Linen(), (6,)),
    "nnx": lambda: fljax.from_nnx(Nnx, (6,)),
    "functions": lambda: fljax.from_functions(init, lambda params, x: x @ params["a"] @ params["b"]),
}


def lapack_n_axes(jaxpr):
    """Numbers of axes of what its operations are given."""
    for equation in jaxpr.eqns:
        if equation.primitive.name in LAPACK:
            yield equation.invars[0].aval.ndim
        for inner in jaxprs_in_params(equation.params):
            yield from lapack_n_axes(inner)


@pytest.mark.parametrize("kind", MODELS)
def test_lapack_is_given_one_matrix_at_a_time(kind):
    keys = jax.random.split(jax.random.key(0), (2, 3))
    init_all = jax.vmap(jax.vmap(MODELS[kind]().init))  # a sweep's points, and the models of each
    axes = list(lapack_n_axes(jax.make_jaxpr(init_all)(keys).jaxpr))
    assert len(axes) >= 2
    assert set(axes) == {2}


@pytest.mark.parametrize("kind", ["linen", "functions", *slow("lstm", "nnx")])
def test_each_is_as_by_itself(kind):
    model, keys = MODELS[kind](), jax.random.split(jax.random.key(0), 3)
    stacked = jax.jit(jax.vmap(model.init))(keys)
    expected = jax.jit(model.init)(keys[1])
    jax.tree.map(np.testing.assert_array_equal, tree.row(stacked, 1), expected)


def test_other_networks_are_drawn_all_at_once():
    model = fljax.from_linen(nn.Dense(3), (6,))
    keys = jax.random.split(jax.random.key(0), 3)
    assert "scan" not in str(jax.make_jaxpr(jax.vmap(model.init))(keys))


SCRIPT = """
import jax
import jax.numpy as jnp
import fljax

first = jax.jit(jax.vmap(fljax.models.lstm((8, 8, 1), 10, (256, 256)).init))
for seed in range(3):
    made = first(jax.random.split(jax.random.key(seed), 4))
print(all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(made)))
"""


@pytest.mark.slow
def test_first_models_of_several_layers_are_made():
    """On two cores the two layers would wait for each other for ever."""
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert process.stdout == "True\n", process.stderr[-500:]
