"""The compiled part of `fljax.run.train`: a chunk of rounds, and the programs that must exist before the first."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import Mesh

from fljax.client.steps import batches_per_epoch, n_steps
from fljax.devices.memory import check_fits, check_traced, n_bytes, n_host_devices
from fljax.devices.mesh import replicated, shapes, to_copy
from fljax.devices.program_cost import Cost, cost_of
from fljax.devices.programs import COST, Compile, Compiler, compiler_for
from fljax.devices.shelf import shelf_for
from fljax.folder.checkpoint import standing_of
from fljax.placement import on_device, whole
from fljax.rounds.sampling import Draw
from fljax.run.one_round import as_traced, first_state, is_due, run_round, shapes_of_state
from fljax.types import Algorithm, ClientData, Federation, Key, Metrics, State, Work

MOST_ROUNDS = 64
"""Rounds in the largest chunk."""
MOST_ENTRIES = 1 << 22
"""Limit of clients times rounds in a chunk, because tests are an array (rounds, clients)."""

Numbers = tuple[Any, Federation, Key, Array | None, Array, Array]
"""Arguments of a run's programs: hyper, federation, key, dropout, evaluate_every, n_rounds; all on the devices."""


def most_rounds(n_clients: int) -> int:
    """Rounds in the largest chunk of a run with this number of clients; the program has room for their metrics."""
    return max(1, min(MOST_ROUNDS, MOST_ENTRIES // n_clients))


@partial(jax.jit, static_argnums=(0, 1, 2), donate_argnames="state")
def run_chunk(
    algorithm: Algorithm,
    draw: Draw | int,
    most: int,
    hyper: Any,
    federation: Federation,
    key: Key,
    dropout: Array | None,
    evaluate_every: Array,
    n_rounds: Array,
    state: State,
    first: Array,
    count: Array,
) -> tuple[State, Metrics]:
    """Rounds ``first`` to ``first + count``, both traced: one program for chunks of any length up to ``most``."""

    @partial(jax.jit, inline=True)  # so that it is traced once for its shapes and for the loop
    def one_round(state: State, round: Array) -> tuple[State, Metrics]:
        due = is_due(round, evaluate_every, n_rounds)
        return run_round(algorithm, draw, hyper, federation, key, dropout, state, round, due)

    def step(i: Array, carry: tuple[State, Metrics]) -> tuple[State, Metrics]:
        state, metrics = one_round(carry[0], first + i)
        return state, jax.tree.map(lambda rows, row: put_row(rows, row, i), carry[1], metrics)

    # As the loop calls it: on several devices a sum is of another type than its operands, and would be traced anew.
    shapes = jax.eval_shape(lambda state, i: one_round(state, first + i), state, count)[1]
    empty = jax.tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), shapes)
    state, metrics = lax.fori_loop(0, count, step, (state, empty))
    return whole(state), metrics  # with the same sharding as before, or the next chunk would recompile


def put_row(rows: Array, row: Array, i: Array) -> Array:
    """``rows`` with row ``i``, which must exist, replaced; a scatter would compile to five kernels instead of one."""
    return lax.dynamic_update_index_in_dim(rows, row, i, 0)


def on_devices(
    mesh: Mesh | None,
    hyper: Any,
    federation: Federation,
    key: Key,
    dropout: float | None,
    evaluate_every: int,
    n_rounds: int,
) -> Numbers:
    """The arguments of a run's programs, whole on every device of the mesh."""
    copies = replicated((as_traced(hyper), spread(federation, mesh), key, as_traced(dropout)), mesh)
    return *copies, *jax.device_put((np.int32(evaluate_every), np.int32(n_rounds)))


def check_traceable(algorithm: Algorithm, draw: Draw, numbers: Numbers, program: str | None) -> None:
    """Traces a run ahead of time, so that its errors and lack of memory show before anything is compiled.

    A program in the cache was traced before and is not traced again. Call it inside the run's mesh; arguments as in
    `prepared`.

    Raises:
        ValueError: a static choice does not fit the federation.
        MemoryError: the state, a round or the metrics need more memory than there is.
    """
    _, federation, *_, n_rounds = numbers
    shelf = None if program is None else shelf_for(f"{program} {draw.size}", numbers)
    if shelf is not None and shelf.numbers(COST) is not None:
        return
    state = _first_shapes(algorithm, numbers)
    check_fits("the state between rounds needs", n_host_devices() * n_bytes(state))
    arguments = *numbers, state, *no_rounds()
    most = most_rounds(federation.train.n_clients)
    metrics = check_traced("a round needs at least", run_chunk, algorithm, draw, most, *arguments)[1]
    check_fits(f"the metrics of {int(n_rounds)} rounds need", n_bytes(metrics) * int(n_rounds) // most)


def shapes_of_metrics(algorithm: Algorithm, draw: Draw, numbers: Numbers) -> dict[str, Any]:
    """The shapes of a chunk's metrics, (`most_rounds`, ...); inside the run's mesh, arguments as in `prepared`."""
    most = most_rounds(numbers[1].train.n_clients)
    traced: Any = run_chunk.eval_shape(algorithm, draw, most, *numbers, _first_shapes(algorithm, numbers), *no_rounds())
    return traced[1]


def spread(federation: Federation, mesh: Mesh | None) -> Federation:
    """The federation whole on every device of the mesh.

    Raises:
        MemoryError: the copies do not fit into memory.
    """
    copies = 0 if mesh is None else n_host_devices() * n_bytes(to_copy(federation))
    check_fits("copies of the data for every device need", copies)
    return replicated(federation, mesh)


class Prepared(NamedTuple):
    """The programs that a run needs before its first round."""

    init: Callable[..., State]  # of (key, hyper, training data)
    chunk: Callable[..., tuple[State, Metrics]]  # `run_chunk` without its static arguments
    compiler: Compiler
    seconds: float  # of tracing and compiling, or of reading the cache


def prepared(
    algorithm: Algorithm, draw: Draw, numbers: Numbers, compile: Compile, program: str | None, folder: Path | None
) -> Prepared:
    """Compiles a run's programs, or reads them from the cache; inside the run's mesh.

    Args:
        algorithm: the method.
        draw: the sampling of participants.
        numbers: the run's arguments; a program depends only on their shapes.
        compile: see `fljax.run.train.train`.
        program: see `fljax.run.train.train`.
        folder: the results folder; a resumed run keeps its compile mode.

    Raises:
        ValueError: ``compile`` is unknown.
    """
    size, n_rounds = numbers[1].train.size, numbers[-1]
    shelf = None if program is None else shelf_for(f"{program} {draw.size}", numbers)
    most = most_rounds(size.shape[0])

    def chunk_of(state: State) -> tuple:
        return run_chunk, (algorithm, draw, most), *numbers, state, *no_rounds()

    def cost() -> Cost:
        function, static, *arguments = chunk_of(_first_shapes(algorithm, numbers))
        return round_cost(function.trace(*static, *arguments).jaxpr, algorithm, size)

    previous_level = None if folder is None else standing_of(folder).level
    compiler = compiler_for(compile, int(n_rounds), cost, shelf, previous_level)
    init = compiler.program("init", first_state, (algorithm.init,), *begins_with(numbers))
    begin: Any = init.call  # it knows the shapes of its results
    state = shapes(begin.out_info, size.sharding)
    chunk = compiler.program("chunk", *chunk_of(state))
    return Prepared(init.call, chunk.call, compiler, init.seconds + chunk.seconds)


def no_rounds() -> tuple[Array, Array]:
    """A chunk's first round and number of rounds, for when only their shapes matter."""
    return on_device(0, jnp.int32), on_device(0, jnp.int32)


def begins_with(numbers: Numbers) -> tuple[Key, Any, ClientData]:
    """The arguments of a run's first state: its key, its hyper and the training data."""
    hyper, federation, key, *_ = numbers
    return key, hyper, federation.train


def _first_shapes(algorithm: Algorithm, numbers: Numbers) -> Any:
    """The shapes of a run's first state, with its sharding."""
    return shapes(shapes_of_state(algorithm.init, *begins_with(numbers)), numbers[1].train.size.sharding)


def round_cost(jaxpr: Any, algorithm: Algorithm, size: Array) -> Cost:
    """The cost of one round of a traced `run_chunk` on one device, for clients of ``size`` (clients,) examples."""
    work = algorithm.about.work or Work(1, 32)
    of_a_loop = n_steps if work.epochs is None else batches_per_epoch
    trips = float(of_a_loop(np.asarray(size), work).mean())
    cost = cost_of(jaxpr, max(trips, 1.0))
    # The loop over rounds is not one over batches.
    return Cost(cost.equations, *(part / max(trips, 1.0) for part in cost[1:]))
