"""Checks of what a sampling draws: a user's own may not draw a valid cohort."""

import inspect
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
        description = f"{ids.shape} of {ids.dtype} and {active.shape} of {active.dtype}"
    except (TypeError, ValueError):
        description = f"a {type(drawn).__name__}" if not isinstance(drawn, tuple) else f"{len(drawn)} things"
    expected = f"ids ({size},), whole numbers, and which of them participate ({size},), bool"
    raise ValueError(f"the sampling drew {description}; give {expected}")


def as_asked(ids: Any, n_clients: int) -> Array:
    """The clients of which a sampling wants the losses, (m,) int32; -1: nobody.

    Raises:
        ValueError: they are not a row of whole numbers, or one that is known before the run is no client.
    """
    try:
        array = jnp.asarray(ids)
        description = f"{array.shape} of {array.dtype}"
    except (TypeError, ValueError):
        array, description = None, f"a {type(ids).__name__}"
    if array is None or array.ndim != 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise ValueError(f"the sampling asks for the losses of {description}; give ids (m,), whole numbers")
    if not isinstance(array, jax.core.Tracer):
        known = np.asarray(array)
        if (is_unknown := (known < -1) | (known >= n_clients)).any():
            allowed = f"give ids from 0 to {n_clients - 1}, or -1 for nobody"
            raise ValueError(f"the sampling asks for the loss of client {known[is_unknown][0]}; {allowed}")
    return array.astype(jnp.int32)


def check_ids(ids: np.ndarray, n_clients: int) -> None:
    """Checks that the ``ids`` of a cohort (places,), or of many (rounds, places), are distinct clients.

    Raises:
        ValueError: they are not; the message names a client.
    """
    if (is_unknown := (ids < 0) | (ids >= n_clients)).any():
        allowed = f"give ids from 0 to {n_clients - 1}"
        raise ValueError(f"the sampling drew client {ids[is_unknown][0]} of {n_clients}; {allowed}")
    sorted_ids = np.sort(ids, axis=-1)
    if (is_repeated := np.diff(sorted_ids, axis=-1) == 0).any():
        raise ValueError(f"the sampling drew client {sorted_ids[..., 1:][is_repeated][0]} twice; give distinct ids")


def check_draw(draw: Any, n_clients: int, n_places: int, by_loss: bool, first_memory: Any = None) -> None:
    """Checks what a sampling's ``draw`` draws in round 0 from ``n_clients`` clients of equal size and equal loss.

    ``first_memory(n_clients)`` is its first memory; None: it has none.

    Raises:
        ValueError: it is not a cohort of ``n_places``, or its ids are not distinct clients; or ``draw`` takes other
            arguments, or asks for the losses of what are no clients.
    """
    names = ", ".join(["key, round, size, n", *["loss"] * by_loss, *["memory"] * (first_memory is not None)])
    try:
        inspect.signature(draw).bind(*names.split(", "))
    except TypeError:
        remedy = "" if by_loss or first_memory else ", or say by_loss=True if it takes losses"
        raise ValueError(
            f"the sampling's draw cannot be called with ({names}); give it these arguments{remedy}"
        ) from None

    def loss(ids: Any, examples: int | None = None) -> Array:
        return jnp.ones(as_asked(ids, n_clients).shape, jnp.float32)

    with jax.ensure_compile_time_eval():
        given = jax.random.key(0), jnp.int32(0), jnp.ones(n_clients, jnp.int32), n_places
        memory = () if first_memory is None else (first_memory(n_clients),)
        ids, _ = as_drawn(draw(*given, *[loss] * by_loss, *memory), n_places)
    check_ids(np.asarray(ids), n_clients)
