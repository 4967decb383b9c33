"""Fixtures for all tests: a small federation and model, and runs that must not begin; conftest.py takes them up."""

import importlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import jax
import pytest

from fljax.algorithms.fedavg import fedavg
from fljax.data.synthetic import linear_groups
from fljax.devices import mesh
from fljax.devices.programs import Compiler, Program
from fljax.models import logistic_regression, mlp
from fljax.types import Algorithm, Federation, Model, Work


@pytest.fixture(scope="session")
def federation() -> Federation:
    """Nine ragged clients in three hidden groups, 4x4 features, four classes."""
    return linear_groups(9, 3, examples=30, ragged=0.5)


@pytest.fixture(scope="session")
def model() -> Model:
    return mlp(input_shape=(4, 4, 1), hidden=(8,), n_classes=4)


@pytest.fixture(scope="session")
def averaging() -> Algorithm:
    """The plainest method with the plainest model, for tests of what is around it."""
    return fedavg(logistic_regression((4, 4, 1), 4), Work(epochs=1, batch_size=8))


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """Runs have one device where none is asked for: a third less to compile. For files of another subject."""
    chosen = mesh.chosen

    def first(devices: Any) -> Any:
        return jax.devices()[:1] if devices is None else chosen(devices)

    with pytest.MonkeyPatch.context() as patch:
        for module in ("fljax.devices.mesh", "fljax.run.sweep.search"):
            patch.setattr(importlib.import_module(module), "chosen", first)  # a function has that name, too
        yield


@pytest.fixture
def no_rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``no_rounds()``: from here on `train` must refuse. Its rounds are traced and not compiled; to run them fails."""
    compiled_program = Compiler.program

    def never(*arguments: Any) -> NoReturn:
        pytest.fail("a round was run")

    def program(self: Compiler, name: str, *arguments: Any) -> Program:
        return Program(never, 0.0, was_kept=False) if name == "chunk" else compiled_program(self, name, *arguments)

    return lambda: monkeypatch.setattr(Compiler, "program", program)


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """``with no_programs():`` `train` must refuse in it, before it compiles anything."""

    def never(*arguments: Any) -> NoReturn:
        pytest.fail("a program was asked for")

    @contextmanager
    def refusing() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(Compiler, "program", never)
            yield

    return refusing


@pytest.fixture
def with_ctrl_c() -> Iterator[None]:
    """Ctrl-C is heard, also where a shell started the tests in the background."""
    old_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old_handler)
