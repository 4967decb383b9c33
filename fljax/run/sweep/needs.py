"""What a sweep needs, from traces of its program: the shapes of its metrics, memory, and time to compile."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fljax.devices.memory import check_traced, n_bytes
from fljax.devices.mesh import n_sweep_devices
from fljax.devices.program_cost import Cost
from fljax.devices.programs import Compile, Level, compiler_for
from fljax.run.chunk import round_cost
from fljax.run.one_round import shapes_of_state
from fljax.run.sweep import memory as memory_of
from fljax.run.sweep.cells import Cell, Setting
from fljax.run.sweep.program import mapped
from fljax.types import Federation


def plan(
    setting: Setting,
    cells: Cell,
    federation: Federation,
    dropout: Array | None,
    at_once: int | None,
    memory: int | None,
) -> memory_of.MemoryPlan:
    """`fljax.run.sweep.memory.plan` of a sweep that keeps the metrics of all runs on the devices."""

    def compile(n: int) -> Any:
        return compiled(setting._replace(at_once=n), cells, federation, dropout)

    n_cells = -(-cells.diverged.shape[0] // n_sweep_devices())
    shapes = shapes_of_metrics(setting, cells, federation, dropout)
    return memory_of.plan(compile, n_bytes(shapes), n_cells, at_once, memory)


def compiled(setting: Setting, cells: Cell, federation: Federation, dropout: Array | None) -> Any:
    """The compiled program of ``setting.at_once`` cells on one device."""
    return mapped.lower(*_arguments_of(setting.at_once, setting, cells, federation, dropout)).compile()


def shapes_of_metrics(setting: Setting, cells: Cell, federation: Federation, dropout: Array | None) -> dict[str, Any]:
    """The shapes of a run's metrics, (1, rounds, ...), from its trace.

    Raises:
        MemoryError: a run needs more memory than there is.
    """
    arguments = _arguments_of(1, setting, cells, federation, dropout)
    return check_traced("a run needs at least", mapped, *arguments, copies=n_sweep_devices())[1]


def _arguments_of(n: int, setting: Setting, cells: Cell, federation: Federation, dropout: Array | None) -> tuple:
    """The arguments for tracing `mapped` with ``n`` of the cells."""
    first_cell = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), cells)
    state = shapes_of_state(setting.algorithm.init, first_cell.key, first_cell.hyper, federation.train)
    cell = first_cell._replace(state=state)
    some_cells = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((n, *leaf.shape), leaf.dtype), cell)
    n_rounds = setting.n_rounds
    rest = federation, dropout, jnp.ones(n_rounds, bool), jnp.int32(0), jnp.int32(n_rounds)
    return setting, some_cells, *rest


def level_of(setting: Setting, cells: Cell, federation: Federation, dropout: Array | None, compile: Compile) -> Level:
    """The level at which a sweep is compiled; "auto" weighs compile time against all rounds of all runs on a device."""
    n_cells = cells.diverged.shape[0]
    rounds = setting.n_rounds * -(-n_cells // n_sweep_devices())

    def cost() -> Cost:
        traced = mapped.trace(*_arguments_of(1, setting, cells, federation, dropout))
        return round_cost(traced.jaxpr, setting.algorithm, federation.train.size)

    return compiler_for(compile, rounds, cost, None).level
