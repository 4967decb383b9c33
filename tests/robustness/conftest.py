"""The made-up data sets and federations of the other tests."""

from tests.data.conftest import (  # noqa: F401 - fixtures
    celeba_folder,
    idx_folder,
    leaf_folder,
    no_data_of_this_machine,
    prepared,
    sqlite_file,
)
from tests.run.conftest import averaging, federation, model  # noqa: F401
