"""Runs of the command line in this process, in a folder of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure

from fljax.cli import main
from fljax.devices import mesh


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory) -> Iterator[str]:
    """A cache folder for the catalogue; the user's own is not touched. Compiled programs are not kept: not under
    test, nor is a machine that stops: files are not waited for until they are on its disk. Small jobs have one device,
    as the user's have, but for files with `two_devices`."""
    folder = str(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        patch.setattr("fljax.cli.run.cache_compilations", lambda: None)
        patch.setattr("os.fsync", lambda descriptor: None)
        patch.setattr(mesh, "_divided", True)
        yield folder


@pytest.fixture(scope="module")
def two_devices() -> Iterator[None]:
    """For files whose jobs have both, as those of many rounds have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mesh, "_divided", False)
        yield


@pytest.fixture(scope="module")
def programs_of_seeds() -> Iterator[list[str]]:
    """Grows by one with each program of several seeds' rounds that is compiled; none is found where others are kept."""
    names = []

    def listener(event: str, _: float, fun_name: str = "", **__: Any) -> None:
        if event.endswith("backend_compile_duration") and fun_name == "jit(advance_all)":
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(listener)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fljax.run.together.shelf_for", lambda *arguments: None)
        yield names
    jax.monitoring.unregister_event_duration_listener(listener)


@pytest.fixture
def drawn() -> None:
    """Asked for by tests of what figures show."""


@pytest.fixture(autouse=True)
def figures(request, monkeypatch) -> None:
    if "drawn" not in request.fixturenames:
        leave_figures_empty(monkeypatch)


def leave_figures_empty(patch: pytest.MonkeyPatch) -> None:
    """Figures are files with a name and nothing in them: drawing takes longer than what most tests are about.

    For what runs before or outside of this folder's tests: fixtures of modules, and other folders.
    """

    def only_named(draw: Callable) -> Callable:
        def draw_into(figure: Any, file: Any, **options: Any) -> None:
            if isinstance(file, str | Path):
                Path(file).touch()
            else:
                draw(figure, file, **options)  # into a page

        return draw_into

    for class_, method in ((Figure, "savefig"), (FigureCanvasAgg, "print_png"), (FigureCanvasPdf, "print_pdf")):
        patch.setattr(class_, method, only_named(getattr(class_, method)))


@pytest.fixture
def fljax(tmp_path, monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """``fljax("run", "--rounds", "1") -> (status, stdout, stderr)``; files go under a temporary folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

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
