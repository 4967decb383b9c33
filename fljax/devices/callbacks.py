"""Programs that call Python, which may deadlock on several devices of a CPU."""

import os
import warnings
from typing import Any

import jax

from fljax.devices.mesh import n_cores
from fljax.devices.program_cost import has_operation


def warn_of_callbacks(jaxpr: Any) -> None:
    """Warns if a program on several devices of a CPU calls Python and XLA has no spare thread.

    A thread of XLA passes the arrays to Python; large arrays need one more thread. XLA has as many threads as cores,
    and each may run a device that waits for the others.
    """
    n_devices, nproc = jax.sharding.get_abstract_mesh().size, os.environ.get("NPROC", "")
    n_threads = int(nproc) if nproc.isdigit() else n_cores()
    has_no_spare_thread = jax.default_backend() == "cpu" and n_devices > 1 and n_threads <= n_devices
    if has_no_spare_thread and has_operation(jaxpr, "pure_callback", "io_callback"):
        warnings.warn(
            f"this program calls Python (jax.pure_callback) on {n_devices} devices of a CPU, and with hundreds of "
            "clients it may never finish; set the environment variable NPROC=8 or JAX_NUM_CPU_DEVICES=1",
            stacklevel=2,
        )
