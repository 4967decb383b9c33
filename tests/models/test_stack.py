"""A client trains to the same model alone and in a stack of twenty, measured by what training changes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fljax import tree
from fljax.client import train_clients, training_loss
from fljax.models import MODELS
from fljax.types import ClientData, Examples, Work
from tests.models.small import SMALL, examples
from tests.oracle import as_float64

N_CLIENTS = 20
TOLERANCE = 1e-4
FLOOR = 1e-3
"""A leaf's error is relative to its own change, but to no less than this share of the whole model's: the gradient of a
bias before a normalisation is 0, and what it changes by is nothing but rounding."""


class Case(NamedTuple):
    """How a model is trained. Steps are large, for a change is known no better than a rounding of the weight."""

    arguments: dict[str, Any] = {}  # noqa: RUF012
    lr: float = 0.05
    dtype: str = "float32"


# Two programs sum in their own order, and normalisation hands each rounding on to every unit: some unit in a million
# then falls on the other side of its ReLU, which moves a gradient by a hundredth. In float64 none does.
NORMALISED = Case(dtype="float64")
CASES = {name: Case() for name in MODELS} | {
    "celeba_cnn": NORMALISED,
    "fedbabu_cnn": NORMALISED,
    "fasttext": Case(lr=0.5),
    "lstm": Case(lr=0.5),
    "fedbabu_cnn batch": Case({"norm": "batch"}, dtype="float64"),
    "resnet18": NORMALISED,
    "resnet18 batch": Case({"norm": "batch"}, dtype="float64"),
    "transformer": Case(lr=0.5),
    "vgg16": Case(lr=0.5, dtype="float64"),
}
LARGE = (
    "heterogeneous",
    "mlp",  # as logistic_regression
    "lstm",
    "resnet18",
    "resnet18 batch",
    "transformer",
    "vgg16",
    "variational_cnn",
    "fedcr_cnn",
    "femnist_cnn",
    "fedbabu_cnn",
    "fedbabu_cnn batch",
    "celeba_cnn",
    "lenet",
    "mnist_cnn",
)


def clients(name: str, n_classes: int, dtype: str) -> ClientData:
    """Twenty clients of 3 to 8 examples: one or two steps on batches of 4, many of them short."""
    rng, n = np.random.default_rng(0), 8 * N_CLIENTS
    pool = Examples(examples(name, n, dtype), rng.integers(n_classes, size=n, dtype=np.int32))
    index = np.arange(n, dtype=np.int32).reshape(N_CLIENTS, 8)
    return jax.tree.map(jnp.asarray, ClientData(pool, index, 3 + np.arange(N_CLIENTS, dtype=np.int32) % 6))


def norm(params):
    return np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(params)))


def assert_same_change(start, single, row_of_stack):
    """Every leaf of ``single - start`` and ``row_of_stack - start`` is the same, to `TOLERANCE` of its norm."""
    start, single, row_of_stack = map(as_float64, (start, single, row_of_stack))
    change, error = jax.tree.map(np.subtract, single, start), jax.tree.map(np.subtract, row_of_stack, single)
    norm_of_change = norm(tree.split_statistics(change)[0])
    assert norm_of_change > 1e-3 * norm(tree.split_statistics(start)[0])  # there was training
    relative_errors = jax.tree.map(lambda e, c: norm(e) / max(norm(c), FLOOR * norm_of_change), error, change)
    assert max(jax.tree.leaves(relative_errors)) <= TOLERANCE, relative_errors


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LARGE else ()) for n in sorted(CASES)])
def test_a_client_equals_its_row_of_a_stack(name):
    case, shape = CASES[name], SMALL[name.split()[0]][0]
    arguments = SMALL[name.split()[0]][1] | case.arguments
    # In float64 mode JAX counts in int64 too, which meets the library's int32.
    promotion = "standard" if case.dtype == "float64" else "strict"
    with jax.enable_x64(case.dtype == "float64"), jax.numpy_dtype_promotion(promotion):
        model = MODELS[name.split()[0]](input_shape=shape, n_classes=10, dtype=case.dtype, **arguments)
        data, keys = clients(name.split()[0], 10, case.dtype), jax.random.split(jax.random.key(0), N_CLIENTS)
        start = jax.tree.map(lambda leaf: np.asarray(leaf, case.dtype), jax.jit(jax.vmap(model.init))(keys))

        @jax.jit
        def train(key, start, data):
            work = Work(epochs=1, batch_size=4, at_once=N_CLIENTS)
            return train_clients(key, start, data, training_loss(model), optax.sgd(case.lr), work)

        stacked = jax.device_get(train(keys, start, data))
        for i in range(N_CLIENTS):
            row = slice(i, i + 1)
            client_data = data._replace(index=data.index[row], size=data.size[row])
            single = jax.device_get(train(keys[row], tree.take(start, row), client_data))
            assert single.ok
            assert_same_change(*(tree.take(p, j) for p, j in ((start, i), (single.params, 0), (stacked.params, i))))
