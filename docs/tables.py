"""The tables that pages have of the library and of results: ``python docs/tables.py`` puts them there.

They are kept in the pages, so that a page reads whole where it is not built; a test compares them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import boards
import costs
import marked
import written

from fljax.catalogue.entries import methods_table

HERE = Path(__file__).parent
TABLES: Mapping[tuple[str, str], Callable[[], str]] = {
    ("methods", "methods"): methods_table,
    ("methods", "bricks"): partial(written.table_of, "brick"),
    ("choosing", "choosing"): lambda: written.choosing_table(costs.of_methods()),
    ("hostile_and_slow", "samplings"): partial(written.table_of, "sampling"),
    ("own_data", "partitions"): partial(written.table_of, "partition"),
    ("own_data", "models"): partial(written.table_of, "model"),
    ("leaderboards", "pfllib"): boards.pfllib_page,
    ("leaderboards", "clustered"): boards.clustered_page,
}
"""(page, table) -> what writes it."""


def origin(name: str) -> str:
    """What the mark before a table says."""
    return f"docs/tables.py, {name}"


if __name__ == "__main__":
    for (page, name), write in TABLES.items():
        marked.show(origin(name), write(), HERE / f"{page}.md")
