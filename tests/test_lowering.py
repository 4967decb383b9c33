"""Programs of operations that were kept are JAX's own, word for word."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from fljax.algorithms.fedavg import fedavg
from fljax.devices.mesh import over_devices
from fljax.run.chunk import on_devices, run_chunk
from fljax.run.one_round import split_key
from tests import lowering
from tests.slow import slow


def text_of(algorithm: Any, federation: Any, devices: Any) -> str:
    """Of three rounds, as they are lowered; `jax.jit` of a new function, for which JAX has kept nothing."""
    with over_devices(devices) as mesh:
        arguments = on_devices(mesh, fedavg.Hyper(), federation, jax.random.key(0), None, 1, 3)
        state = jax.eval_shape(algorithm.init, split_key(arguments[2]).init, arguments[0], arguments[1].train)
        rest = (*arguments, state, jnp.int32(0), jnp.int32(0))
        return jax.jit(lambda *rest: run_chunk(algorithm, 9, 4, *rest)).lower(*rest).as_text()


@pytest.mark.skipif(lowering.lower_anew is None, reason="this JAX lowers in another way: nothing is kept")
@pytest.mark.parametrize("n_devices", [2, *slow(1)])
def test_a_program_of_kept_operations_is_jaxs_own(federation, averaging, monkeypatch, n_devices):
    devices, made = jax.devices()[:n_devices], []

    def counted(lower: Callable) -> Callable:
        return lambda *arguments, **params: made.append(1) or lower(*arguments, **params)

    monkeypatch.setattr(lowering, "lower_anew", counted(lowering.lower_anew))
    text_of(averaging, federation, devices)
    made.clear()
    text = text_of(averaging, federation, devices)
    n_made = len(made)
    with monkeypatch.context() as patch:
        patch.setattr("jax._src.interpreters.mlir._cached_lowering_miss", lowering.lower_anew)
        assert text == text_of(averaging, federation, devices)
    assert n_made < (len(made) - n_made) / 2
