"""Strict JAX under test: no silent dtype or rank promotion, warnings are errors, two CPU devices, quick compilation."""

import gc
import os
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

# Most of what tests cost is compilation, of programs that run for milliseconds: with these a third of it is left.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
    " --xla_cpu_collective_call_terminate_timeout_seconds=3600"  # two devices on a busy machine are late
)
if version("jaxlib").startswith("0.10."):  # later ones end the process, for they do not have it
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
# Without optimisation Winograd's sums cost more than they save; `models/test_winograd.py` has it on.
os.environ.setdefault("FLJAX_WINOGRAD", "0")

import jax
import pytest
from jaxlib import _jax

from fljax.devices import programs
from fljax.run.compile_ahead import NAME as COMPILES_AHEAD
from tests.eager import move_by_numpy
from tests.fixtures import averaging, federation, model, no_programs, no_rounds, one_device, with_ctrl_c
from tests.lowering import keep_what_is_lowered

__all__ = ["averaging", "federation", "model", "no_programs", "no_rounds", "one_device", "with_ctrl_c"]

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_traceback_in_locations_limit", 0)  # where each operation was written: a twentieth of the time
getattr(_jax, "set_tracebacks_enabled", bool)(False)  # nor is that noted
if cache := os.environ.get("FLJAX_TEST_CACHE"):
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)

move_by_numpy()
keep_what_is_lowered()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a file go to one worker, whose compiled programs they share, unless the file says otherwise."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuses to run where groups are lost, as with pytest 9.2 and pytest-xdist 3.8: all would pass, but later."""
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError(
            "tests are not grouped: this pytest-xdist does not know this pytest; install pytest<9.2"
        )


def pytest_sessionfinish() -> None:
    """Waits for threads in the compiler, of jobs that tests have ended: they abort a process whose interpreter ends."""
    gc.freeze()  # pytest now searches what stays five times
    for thread in threading.enumerate():
        if thread.name == COMPILES_AHEAD:
            thread.join(timeout=60)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


compiled: list[str] = []
"""Programs since the process's memory maps were counted last."""
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if event.endswith("backend_compile_duration") else None
)


# Traced programs are millions of objects that stay: looking through them again and again is a tenth of the time.
gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="module", autouse=True)
def what_stays_is_not_searched_for_garbage() -> None:
    gc.collect(1)  # what is young: all of it takes a tenth of a second, with each of 150 files
    gc.freeze()


PAGE = os.sysconf("SC_PAGE_SIZE")
MOST_BYTES = os.sysconf("SC_PHYS_PAGES") * PAGE // (2 * int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
"""Half of the machine's memory for all workers: to let programs go takes seconds, and to compile them anew more."""

most_bytes = [MOST_BYTES]
"""Of memory before programs are let go: what stayed when that was done last, and half of `MOST_BYTES`, where that is
more. Else a process that memory does not come back from would let its programs go again and again."""


def n_bytes_held() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


@pytest.fixture(autouse=True)
def compiled_programs_are_let_go() -> Iterator[None]:
    """Drops compiled programs, JAX's and those that fljax holds, before they fill the memory or use up its maps."""
    yield
    if len(compiled) >= 50 and Path("/proc/self/maps").exists():
        compiled.clear()
        if n_bytes_held() > most_bytes[0]:
            programs.trim()
        if n_bytes_held() > most_bytes[0] or programs.maps_are_short():
            gc.unfreeze()
            programs.let_go()
            most_bytes[0] = max(MOST_BYTES, n_bytes_held() + MOST_BYTES // 2)
