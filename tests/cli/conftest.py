"""Runs of the command line in this process, in a folder of their own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from fljax.cli import main


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> str:
    """A cache folder for the session's catalogue; the user's own is not touched."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)


@pytest.fixture
def drawn() -> None:
    """Asked for by tests of what figures show."""


@pytest.fixture(autouse=True)
def figures(request, monkeypatch) -> None:
    """Figures are files with a name and nothing in them: drawing takes longer than what most tests are about."""
    if "drawn" in request.fixturenames:
        return

    def named(draw: Callable) -> Callable:
        def draw_into(own: Any, file: Any, **options: Any) -> None:
            if isinstance(file, str | Path):
                Path(file).touch()
            else:
                draw(own, file, **options)  # into a page

        return draw_into

    for kind, way in ((Figure, "savefig"), (FigureCanvasAgg, "print_png"), (FigureCanvasPdf, "print_pdf")):
        monkeypatch.setattr(kind, way, named(getattr(kind, way)))


@pytest.fixture
def fljax(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """``fljax("run", "--rounds", "1") -> (status, stdout, stderr)``; files go under a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    # The command keeps compiled programs in the user's cache folder: not under test.
    monkeypatch.setattr("fljax.cli.run.cache_compilations", lambda: None)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(arguments)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def refused(fljax) -> Callable[..., str]:
    """``refused("run", "--rounds", "x")``: the one line on stderr of a command that must end with status 2."""

    def run(*arguments: str) -> str:
        status, _, err = fljax(*arguments)
        assert status == 2, err
        assert err.startswith("fljax: ")
        assert err.count("\n") == 1
        return err

    return run
