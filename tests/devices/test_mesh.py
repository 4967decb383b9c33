"""Devices of the CPU: one a core, and they wait for each other."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from fljax.devices.mesh import device_mesh, over_devices, replicated

SUM_OF_TWO = """
import os, sys, time
import jax, jax.numpy as jnp, numpy as np
from fljax.devices.mesh import device_mesh, use_all_cores

os.sched_getaffinity = lambda process: {0, 1}
use_all_cores()

def late(x):
    value = np.asarray(x)
    time.sleep(float(sys.argv[1]) * (value[0] == 1))
    return value

def both(x):
    return jax.lax.psum(jax.pure_callback(late, x, x), "clients")

axis = jax.sharding.PartitionSpec("clients")
spread = jax.shard_map(both, mesh=device_mesh(), in_specs=axis, out_specs=jax.sharding.PartitionSpec(), check_vma=False)
print(float(jax.jit(spread)(jnp.array([1.0, 2.0]))[0]))
"""


def sum_of_two(seconds: float, flags: str) -> subprocess.CompletedProcess:
    """Two devices add their numbers up, one of them so many seconds late."""
    env = os.environ | {"XLA_FLAGS": flags}
    return subprocess.run([sys.executable, "-c", SUM_OF_TWO, str(seconds)], env=env, capture_output=True, text=True)


def test_a_pool_that_splits_share_is_copied_once():
    mesh = device_mesh(jax.devices()[:2])
    pool = jnp.arange(8.0)
    first, second, equal_pool = replicated((pool, pool, jnp.arange(8.0)), mesh)
    assert first is second
    assert first is not equal_pool
    assert len(first.devices()) == 2


PREFIX = "--xla_cpu_collective_call"
SECOND = f"{PREFIX}_warn_stuck_timeout_seconds=1 {PREFIX}_terminate_timeout_seconds=1"


@pytest.mark.slow
def test_a_device_that_is_late_is_waited_for_as_the_user_says():
    process = sum_of_two(6, SECOND)
    assert process.returncode < 0
    assert "Termination timeout" in process.stderr


def test_no_devices_are_refused():
    with pytest.raises(ValueError, match=r"devices=\[\] is empty"), over_devices([]):
        pass


@pytest.mark.slow
def test_a_device_that_is_later_than_xla_waits_does_not_end_the_process():
    assert sum_of_two(0, SECOND).stdout.splitlines()[-1] == "3.0"
    assert sum_of_two(65, "").stdout.splitlines()[-1] == "3.0"
