"""Versions, devices and cores, on which the last bits of a run depend besides its settings, and their changes."""

import importlib.metadata
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import jax

from fljax.devices import hosts
from fljax.devices.mesh import n_cores
from fljax.models import winograd
from fljax.models.conv import usual_form

PACKAGES = ("fljax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "scikit-learn")
TRACED = PACKAGES[:5]
"""Packages that make the compiled programs: other versions of them may round differently."""

_OF_JAX = {"jax_default_matmul_precision": None, "jax_threefry_partitionable": True}
"""Settings of JAX that change rounding or random numbers -> their defaults."""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages on which results depend."""
    return {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}


def machine() -> dict[str, Any]:
    """The machine of the run."""
    return {
        "system": platform.platform(),
        "cores": n_cores(),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
    }


def surroundings(n_devices: int) -> dict[str, Any]:
    """Everything on which the last bits of results depend, as plain values by name; all hosts must call it.

    The cores of a CPU are included because XLA splits sums between them.
    """
    device = jax.devices()[0]
    entries: dict[str, Any] = {name: _version(name) for name in TRACED}
    entries |= {"devices": n_devices, "device": device.device_kind, "hosts": jax.process_count()}
    if device.platform == "cpu":
        (entries["cores"],) = hosts.agreed(n_cores())
    return entries | settings()


def settings() -> dict[str, Any]:
    """The settings of the environment and of ``jax.config`` that affect rounding or random numbers and differ from
    their defaults.

    Defaults are left out; folders of older versions do not have them either.
    """
    defaults = {"FLJAX_CONV": usual_form(), "FLJAX_WINOGRAD": winograd.USUAL, **_OF_JAX}
    current = {name: os.environ.get(name) or defaults[name] for name in ("FLJAX_CONV", "FLJAX_WINOGRAD")}
    current |= {name: getattr(jax.config, name, defaults[name]) for name in _OF_JAX}
    return {name: value for name, value in current.items() if value != defaults[name]}


def continued(
    folder: Path, history: list[dict[str, Any]], now: dict[str, Any], since: dict[str, int], force: bool
) -> list[dict[str, Any]]:
    """The history of a resumed run, with ``now`` appended if it differs from the last entry.

    Args:
        folder: the results folder, for the message.
        history: the surroundings of the work so far, the last ones at the end.
        now: the present `surroundings`.
        since: the progress so far, such as ``{"round": 3}``; it is added to an entry.
        force: a difference is recorded instead of raising an error.

    Raises:
        ValueError: the surroundings differ, and ``force`` is False.
    """
    previous = {name: value for name, value in history[-1].items() if name not in since} if history else {}
    changed = [name for name in {**previous, **now} if previous.get(name) != now.get(name)]
    if not changed:
        return history
    if not force:
        text = ", ".join(f"{name} {previous.get(name)!r} (now {now.get(name)!r})" for name in changed)
        raise ValueError(
            f"{folder} holds a run made with {text}, so the last bits of results may differ; restore the former, use "
            "another folder, or set force_resume (--force-resume)"
        )
    return [*history, {**since, **now}]


@cache
def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
