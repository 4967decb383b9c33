"""How the documentation is built: `.ci/docs`, or ``sphinx-build -W -b html docs docs/_build/html``."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import written  # noqa: E402
from docutils import nodes  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import fljax  # noqa: E402

project = "fljax"
copyright = "the authors of fljax, Apache-2.0"
release = version = fljax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
autodoc_typehints = "none"  # docstrings name shapes, which types do not
autodoc_member_order = "bysource"
add_module_names = False
viewcode_line_numbers = False

html_title = "fljax"
html_theme = "sphinx_book_theme"
html_theme_options = {
    "show_navbar_depth": 1,
    "home_page_in_toc": True,
    "use_download_button": False,
    "navbar_persistent": [],  # the search is in the sidebar, and need not be above the page too
}
html_static_path = ["static"]
html_js_files = ["sort.js"]
html_css_files = ["fit.css"]


def _no_reference(app: Sphinx, env: object, node: nodes.Element, contnode: nodes.Node) -> nodes.Node | None:
    """A type that has no page here stays plain text."""
    return contnode if node.get("refdomain") == "py" else None


def _linked(app: Sphinx, page: str, source: list[str]) -> None:
    """Names of methods in tables lead to the methods' pages, which only the site has."""
    if page in ("methods", "choosing"):
        source[0] = re.sub(r"^(\| [^|`]*)`(\w+)`", written.link, source[0], flags=re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Writes the pages that are made of the library itself, before any page is read."""
    written.write_all(HERE / "generated")
    app.connect("source-read", _linked)
    app.connect("missing-reference", _no_reference)
