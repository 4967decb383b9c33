"""The made-up data sets and federations of the other tests, and how often a file is changed."""

import pytest

from tests.data.conftest import (  # noqa: F401 - fixtures
    celeba_folder,
    idx_folder,
    leaf_folder,
    no_data_of_this_machine,
    prepare_set,
    sqlite_file,
)
from tests.robustness.tally import cases

QUICK, SLOW = 12, 125


@pytest.fixture(params=[pytest.param(QUICK, id="quick"), pytest.param(SLOW, id="slow", marks=pytest.mark.slow)])
def count(request):
    """Changes of a file."""
    return request.param if request.param == QUICK else cases(SLOW)
