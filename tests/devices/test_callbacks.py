import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fljax.devices.mesh import over_devices
from fljax.devices.program_cost import has_operation
from fljax.devices.programs import Compiler


def doubled(x):
    return jax.pure_callback(lambda x: 2 * np.asarray(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def in_a_loop(x):
    return jax.lax.fori_loop(0, 2, lambda i, x: jax.lax.cond(i > 0, jax.jit(doubled), lambda x: x, x), x)


def test_calls_of_python_are_found_inside_loops_and_branches():
    x = jnp.ones(3)
    assert has_operation(jax.jit(doubled).trace(x).jaxpr, "pure_callback")
    assert has_operation(jax.jit(in_a_loop).trace(x).jaxpr, "sin", "pure_callback")
    assert not has_operation(jax.jit(jnp.cumsum).trace(x).jaxpr, "pure_callback")


def test_a_program_that_may_wait_for_ever_is_a_warning(monkeypatch):
    compiler, x = Compiler("fast", None), jnp.ones(3)
    monkeypatch.setenv("NPROC", "2")
    with (
        over_devices(jax.devices()[:2]),
        pytest.warns(UserWarning, match="on 2 devices .* set the environment variable NPROC=8"),
    ):
        compiler.program("loop", jax.jit(in_a_loop), (), x)
    with warnings.catch_warnings(action="error"):
        compiler.program("loop", jax.jit(in_a_loop), (), x)  # one device
        with over_devices(jax.devices()[:2]):
            compiler.program("sum", jax.jit(jnp.sum), (), x)
            monkeypatch.setenv("NPROC", "8")
            compiler.program("loop", jax.jit(lambda x: in_a_loop(x)), (), x)
