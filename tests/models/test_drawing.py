"""Several networks whose parameters LAPACK has a part in begin, however many threads there are."""

import subprocess
import sys

import jax
import numpy as np
import pytest

from fljax import tree
from fljax.models import lstm

SCRIPT = """
import sys
import jax
import jax.numpy as jnp
from flax import linen as nn, nnx
import fljax

square = nn.initializers.orthogonal()

class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = x.reshape(len(x), -1)
        for _ in range(3):
            x = nn.Dense(300, kernel_init=square)(x)
        return nn.Dense(10)(x)

class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second, self.third = (
            nnx.Linear(300, 300, kernel_init=square, rngs=rngs) for _ in range(3)
        )

    def __call__(self, x):
        return self.third(self.second(self.first(x)))

def init(key):
    return {name: square(key, (300, 300)) for name in "abc"}

models = {
    "lstm": lambda: fljax.models.lstm((8, 8, 1), (256, 256), 10),
    "linen": lambda: fljax.from_linen(Linen(), (8, 8, 1)),
    "nnx": lambda: fljax.from_nnx(Nnx, (300,)),
    "functions": lambda: fljax.from_functions(init, lambda params, x: x @ params["a"] @ params["b"] @ params["c"]),
}
first = jax.jit(jax.vmap(models[sys.argv[1]]().init))
for seed in range(3):
    made = first(jax.random.split(jax.random.key(seed), 4))
print(all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(made)))
"""


@pytest.mark.parametrize("kind", ["lstm", "linen", "nnx", "functions"])
def test_first_models_of_several_layers_are_made(kind):
    done = subprocess.run([sys.executable, "-c", SCRIPT, kind], capture_output=True, text=True, timeout=300)
    assert done.stdout == "True\n", done.stderr[-500:]


def test_each_is_as_by_itself():
    model, keys = lstm((4, 3), (8, 8), 2), jax.random.split(jax.random.key(0), 3)
    together = jax.vmap(model.init)(keys)
    for i, key in enumerate(keys):
        jax.tree.map(np.testing.assert_array_equal, tree.row(together, i), model.init(key))
