import jax
import jax.numpy as jnp
import pytest

from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.types import Examples, Federation, Model, Work


@pytest.fixture(scope="session")
def federation() -> Federation:
    """Eight ragged clients in two hidden groups, 4x4 features, four classes; the server has 16 unlabelled images."""
    federation = linear_groups(8, 2, examples=24, ragged=0.4)
    return federation._replace(public=Examples(federation.train.pool.x[:16], jnp.full(16, -1)))


@pytest.fixture(scope="session")
def model() -> Model:
    model = mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4)
    return model._replace(init=jax.jit(model.init))  # traced once for all methods, compiled once for all tests


@pytest.fixture(scope="session")
def work() -> Work:
    return Work(epochs=2, batch_size=8)
