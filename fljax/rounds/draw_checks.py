"""Checks of what a sampling draws: a user's own may not draw a valid cohort."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def as_drawn(drawn: Any, size: int) -> tuple[Array, Array]:
    """The ids that a sampling drew, and whether they participate.

    Raises:
        ValueError: they are not two arrays with one entry per place.
    """
    try:
        ids, active = (jnp.asarray(part) for part in drawn)
        fits = ids.shape == active.shape == (size,)
        if fits and jnp.issubdtype(ids.dtype, jnp.integer) and active.dtype == bool:
            return ids.astype(jnp.int32), active
        given = f"{ids.shape} of {ids.dtype} and {active.shape} of {active.dtype}"
    except (TypeError, ValueError):
        given = f"a {type(drawn).__name__}" if not isinstance(drawn, tuple) else f"{len(drawn)} things"
    wanted = f"ids ({size},), whole numbers, and which of them participate ({size},), bool"
    raise ValueError(f"the sampling drew {given}; give {wanted}")


def check_ids(ids: np.ndarray, n_clients: int) -> None:
    """Checks that the ``ids`` of a cohort (places,), or of many (rounds, places), are distinct clients.

    Raises:
        ValueError: they are not; the message names a client.
    """
    if (beyond := (ids < 0) | (ids >= n_clients)).any():
        known = f"give ids from 0 to {n_clients - 1}"
        raise ValueError(f"the sampling drew client {ids[beyond][0]} of {n_clients}; {known}")
    ordered = np.sort(ids, axis=-1)
    if (twice := np.diff(ordered, axis=-1) == 0).any():
        raise ValueError(f"the sampling drew client {ordered[..., 1:][twice][0]} twice; give distinct ids")


def check_draw(draw: Any, n_clients: int, n_places: int) -> None:
    """Checks what a sampling's ``draw`` draws in round 0 from ``n_clients`` clients of equal size.

    Raises:
        ValueError: it is not a cohort of ``n_places``, or its ids are not distinct clients.
    """
    with jax.ensure_compile_time_eval():
        ids, _ = as_drawn(draw(jax.random.key(0), jnp.int32(0), jnp.ones(n_clients, jnp.int32), n_places), n_places)
    check_ids(np.asarray(ids), n_clients)
