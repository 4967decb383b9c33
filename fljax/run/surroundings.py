"""What the bits of a run depend on besides its settings: versions, devices and cores, and how they changed."""

import importlib.metadata
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import jax

from fljax.models import winograd
from fljax.models.conv import usual_form
from fljax.run import hosts
from fljax.run.mesh import n_cores

PACKAGES = ("fljax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "scikit-learn")
TRACED = PACKAGES[:5]
"""Packages that compiled programs are made by: other versions of them may round otherwise."""

_OF_JAX = {"jax_default_matmul_precision": None, "jax_threefry_partitionable": True}
"""Settings of JAX that change rounding or random numbers, and what they are by themselves."""


def versions() -> dict[str, str]:
    """Versions of Python and of what the numbers depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """What the run was computed on."""
    return {
        "system": platform.platform(),
        "cores": n_cores(),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
    }


def surroundings(n_devices: int) -> dict[str, Any]:
    """What the last bits of results depend on, as plain values by name; all hosts must call it.

    The cores of a CPU count because XLA splits sums between them.
    """
    device = jax.devices()[0]
    found: dict[str, Any] = {name: _version(name) for name in TRACED}
    found |= {"devices": n_devices, "device": device.device_kind, "hosts": jax.process_count()}
    if device.platform == "cpu":
        (found["cores"],) = hosts.agreed(n_cores())
    return found | settings()


def settings() -> dict[str, Any]:
    """What the environment or ``jax.config`` sets otherwise than it is by itself, of what rounding or draws depend on.

    What is as usual is not said, and is not in folders of before.
    """
    usual = {"FLJAX_CONV": usual_form(), "FLJAX_WINOGRAD": winograd.USUAL, **_OF_JAX}
    now = {name: os.environ.get(name) or usual[name] for name in ("FLJAX_CONV", "FLJAX_WINOGRAD")}
    now |= {name: getattr(jax.config, name, usual[name]) for name in _OF_JAX}
    return {name: value for name, value in now.items() if value != usual[name]}


def continued(
    folder: Path, history: list[dict[str, Any]], now: dict[str, Any], since: dict[str, int], force: bool
) -> list[dict[str, Any]]:
    """The history of work that goes on, with ``now`` at its end where that differs.

    Args:
        folder: of the results, for the message.
        history: what it was made in, the last of it at the end.
        now: `surroundings`.
        since: how far the work has come, as ``{"round": 3}``; entries have it beside the surroundings.
        force: a difference is kept in the history, not refused.

    Raises:
        ValueError: it is another, and not forced.
    """
    before = {name: value for name, value in history[-1].items() if name not in since} if history else {}
    different = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    if not different:
        return history
    if not force:
        text = ", ".join(f"{name} {before.get(name)!r} (now {now.get(name)!r})" for name in different)
        raise ValueError(
            f"{folder} holds a run made with {text}, so that its last bits may differ; go on with the former, use "
            "another folder, or set force_resume (--force-resume)"
        )
    return [*history, {**since, **now}]


@cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
