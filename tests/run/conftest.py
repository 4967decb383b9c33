import pytest

from fljax.algorithms.fedavg import fedavg
from fljax.data.synthetic import linear_groups
from fljax.models import logistic_regression, mlp
from fljax.types import Algorithm, Federation, Model, Work


@pytest.fixture(scope="session")
def federation() -> Federation:
    """Nine ragged clients in three hidden groups, 4x4 features, four classes."""
    return linear_groups(9, 3, examples=30, ragged=0.5)


@pytest.fixture(scope="session")
def model() -> Model:
    return mlp(input_shape=(4, 4, 1), hidden=(8,), n_classes=4)


@pytest.fixture(scope="session")
def averaging() -> Algorithm:
    """The plainest method with the plainest model, for tests of what is around it."""
    return fedavg(logistic_regression((4, 4, 1), 4), Work(epochs=1, batch_size=8))
