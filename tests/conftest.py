"""Strict JAX under test: no silent dtype or rank promotion, warnings are errors, two CPU devices, quick compilation."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

# Most of what tests cost is compilation, of programs that run for milliseconds: this halves it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
if cache := os.environ.get("FLJAX_TEST_CACHE"):
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


@pytest.fixture
def key() -> jax.Array:
    return jax.random.key(0)


@pytest.fixture(autouse=True)
def compiled_programs_are_let_go() -> Iterator[None]:
    """Drops compiled programs before their memory maps reach the kernel's limit of 65,530 a process.

    Each program holds some; beyond the limit jaxlib ends the process with a segmentation fault.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 15_000:
        jax.clear_caches()
        gc.collect()
