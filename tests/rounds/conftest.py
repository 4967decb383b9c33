"""The same small federation as in the tests of runs, and the plainest method."""

from tests.run.conftest import averaging, federation, model, no_rounds

__all__ = ["averaging", "federation", "model", "no_rounds"]
