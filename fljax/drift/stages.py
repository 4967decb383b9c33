"""A federation that changes, in one round: the round selects the tables, so shapes never change."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.types import ClientData, Federation, Rows


@checked_kinds
def at(federation: Federation, round: Array | int) -> Federation:
    """``federation`` in a round, () int32 counted from 0; a federation that does not change is returned unchanged."""
    stages = federation.stages
    if stages is None:
        return federation
    stage: Any = _stage(stages, round)
    splits = {name: _split(getattr(federation, name), getattr(stage, name)) for name in ("train", "val", "test")}
    return federation._replace(**splits, group=stage.group, there=stage.there, stages=None)  # pyrefly: ignore[bad-argument-type]


@partial(jax.jit, inline=True)
def _stage(stages: Any, round: Array | int) -> Any:
    stage = (stages.begins <= round).sum(dtype=jnp.int32) - 1
    return jax.tree.map(lambda rows: rows[stage], stages._replace(begins=None))


def _split(data: ClientData | None, rows: Rows | None) -> ClientData | None:
    return None if data is None or rows is None else ClientData(data.pool, rows.index, rows.size)


@checked_kinds
def changes(federation: Federation) -> tuple[int, ...]:
    """The first rounds after each change, counted from 0."""
    return () if federation.stages is None else tuple(np.asarray(federation.stages.begins)[1:].tolist())
