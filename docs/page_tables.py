"""The tables that pages have of the library and of results: ``python docs/page_tables.py`` puts them there.

They are kept in the pages, so that a page reads whole where it is not built; a test compares them.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import boards
import costs
import figure_tables
import marked
import written

from fljax.catalogue.entries import methods_table

HERE = Path(__file__).parent
ROOT = HERE.parent


def copied(file: str) -> str:
    """A table that another script writes; its headings stand below the page's."""
    return re.sub("^#", "##", (ROOT / file).read_text(), flags=re.MULTILINE)


TABLES: Mapping[tuple[str, str], Callable[[], str]] = {
    ("methods", "methods"): methods_table,
    ("methods", "bricks"): partial(written.table_of, "brick"),
    ("choosing", "choosing"): lambda: written.choosing_table(costs.of_methods()),
    ("participation", "samplings"): partial(written.table_of, "sampling"),
    ("own_data", "partitions"): partial(written.table_of, "partition"),
    ("own_data", "models"): partial(written.table_of, "model"),
    ("leaderboards", "pfllib"): boards.pfllib_page,
    ("leaderboards", "pfllib_steps"): boards.steps_page,
    ("leaderboards", "authors_steps"): boards.authors_page,
    ("leaderboards", "clustered"): boards.clustered_page,
    ("results", "reproduction"): partial(copied, "experiments/results/reproduction.md"),
    ("results", "claims"): partial(copied, "experiments/results/claims.md"),
    ("results", "commands"): partial(copied, "experiments/results/commands.md"),
    ("results", "peers"): partial(copied, "benchmarks/results/peers.md"),
    **{("figures", name): partial(figure_tables.figure_table, name) for name in figure_tables.FIGURES},
}
"""(page, table) -> what writes it."""


def origin(name: str) -> str:
    """What the mark before a table says."""
    return f"docs/page_tables.py, {name}"


if __name__ == "__main__":
    for (page, name), write in TABLES.items():
        marked.show(origin(name), write(), HERE / f"{page}.md")
