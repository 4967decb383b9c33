"""Strict JAX under test: no silent dtype or rank promotion, warnings are errors, two CPU devices."""

import os

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
