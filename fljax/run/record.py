"""Where a run was made: versions and machine, as plain data for its record."""

import importlib.metadata
import os
import platform
from typing import Any

import jax

PACKAGES = ("fljax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of Python and of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def machine() -> dict[str, Any]:
    """What the run was computed on."""
    kinds = [device.device_kind for device in jax.devices()]
    return {
        "system": platform.platform(),
        "cores": os.cpu_count() or 1,
        "backend": jax.default_backend(),
        "devices": kinds,
    }
