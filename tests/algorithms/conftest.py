import pytest

from fljax.data.synthetic import linear_groups
from fljax.models import mlp
from fljax.types import Federation, Model, Work


@pytest.fixture(scope="session")
def federation() -> Federation:
    """Eight ragged clients in two hidden groups, 4x4 features, four classes."""
    return linear_groups(8, 2, examples=24, ragged=0.4)


@pytest.fixture(scope="session")
def model() -> Model:
    return mlp(input_shape=(4, 4, 1), hidden=(6,), n_classes=4)


@pytest.fixture(scope="session")
def work() -> Work:
    return Work(epochs=2, batch_size=8)
