"""The same small federation as in the tests of runs."""

from tests.run.conftest import averaging, federation, model

__all__ = ["averaging", "federation", "model"]
