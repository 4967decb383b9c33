"""The same small federation as in the tests of runs, and FedAvg of the same model."""

import pytest

from fljax.algorithms.fedavg import fedavg
from fljax.types import Algorithm, Model, Work
from tests.run.conftest import federation, model, no_rounds

__all__ = ["federation", "model", "no_rounds"]


@pytest.fixture(scope="session")
def averaging(model: Model) -> Algorithm:
    return fedavg(model, Work(epochs=1, batch_size=8))
