import doctest
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from fljax import server

FUNCTIONS = [name for name in server.__all__ if not inspect.isclass(getattr(server, name))]


def failures(text: str, name: str) -> str:
    """What the examples in ``text`` print where it differs from what they state; there must be an example."""
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert test.examples
    report: list[str] = []
    with np.printoptions():  # an example may change how arrays are printed
        doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    return "".join(report)


@pytest.mark.slow
def test_the_page_runs():
    assert not failures(inspect.getdoc(server) or "", "fljax.server")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_on_the_page_and_has_an_example_that_runs(name):
    page, docstring = inspect.getdoc(server) or "", inspect.getdoc(getattr(server, name)) or ""
    assert f"`{name}`" in page
    assert docstring
    if ">>>" in docstring:
        assert not failures(docstring, name)
    else:
        assert re.search(rf">>> .*\b{name}\(", page)


def test_the_page_names_nothing_else():
    names = set(re.findall(r"`(\w+)`", inspect.getdoc(server) or ""))
    assert names - {"jit", "vmap", "scan"} == set(FUNCTIONS)


def test_every_module_is_reached_from_the_page():
    # What the other modules are made of.
    private = {"blocks", "checks", "entry", "gram", "order_statistics", "projected_gradient"}
    modules = {path.stem for path in Path(server.__file__).parent.glob("*.py")} - private - {"__init__"}
    assert {inspect.getmodule(getattr(server, name)).__name__.split(".")[-1] for name in FUNCTIONS} == modules
