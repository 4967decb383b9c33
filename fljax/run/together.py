"""`fljax.run.train.train` for several runs in one program (`fljax.run.seeds`), each run with its own folder."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from fljax import tree
from fljax.checks.arguments import check_run, fields_of
from fljax.checks.network import check_outputs, check_subjects
from fljax.devices.memory import check_compiled
from fljax.devices.mesh import Device, over_devices, replicated
from fljax.devices.program_cost import Cost
from fljax.devices.programs import Compile, Compiler, Program, compiler_for
from fljax.devices.shelf import shelf_for
from fljax.folder.checkpoint import rounds_done, standing_of
from fljax.folder.resume import begin
from fljax.folder.surroundings import surroundings
from fljax.folder.writer import only_run
from fljax.metrics.agreement import truth_of
from fljax.numbers import check_numbers
from fljax.rounds.memory import remembering
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.sampling import Sampling
from fljax.run.chunk import most_rounds, no_rounds, round_cost, run_chunk
from fljax.run.identity import run_identity
from fljax.run.loop import Loop
from fljax.run.one_round import as_traced, shapes_of_state
from fljax.run.privacy import epsilons, with_target
from fljax.run.progress import Progress, SilentProgress, checked_progress
from fljax.run.record import Record, Records, Run
from fljax.run.seeds import Inputs, Setting, Varied, advance_all, begin_all, joined, stacked
from fljax.run.sweep import memory
from fljax.run.termination import put_off
from fljax.types import Algorithm, Federation, Key, Metrics, State


class Runs(NamedTuple):
    """Runs that differ in federation, key and folder, and in the method's numbers in ``varied``."""

    algorithm: Algorithm  # the first run's
    hyper: Any
    federations: Sequence[Federation]  # of one shape
    keys: Sequence[Key]
    n_rounds: int
    folders: Sequence[Path]
    sampling: Sampling | None = None  # this and the following as in `fljax.run.train.train`
    evaluate_every: int = 1
    dropout: float | None = None
    devices: Sequence[Device] | None = None
    compile: Compile = "auto"
    program: str | None = None
    varied: Varied | None = None

    def method(self, i: int) -> Algorithm:
        """The method of run ``i``."""
        return self.algorithm if self.varied is None else self.varied.of(i)


class Ready(NamedTuple):
    """The compiled programs and their inputs."""

    setting: Setting
    inputs: Inputs  # of all runs
    hyper: Any  # as in a run's identity
    compiler: Compiler
    init: Program
    mesh: Mesh | None

    def chunk(self, rows: Sequence[int]) -> Program:
        """The rounds of the runs ``rows``, called with their `Inputs`, states, and first and number of rounds."""
        begin: Any = self.init.call  # it knows the shapes of its results
        shapes = jax.tree.map(lambda leaf: self._shape((len(rows), *leaf.shape[1:]), leaf), begin.out_info)
        arguments = self.inputs_of(rows), shapes, *no_rounds()
        return self.compiler.program(f"chunk_of_{len(rows)}", advance_all, (self.setting,), *arguments)

    def inputs_of(self, rows: Sequence[int]) -> Inputs:
        """The inputs of the runs ``rows``."""
        return self.inputs if len(rows) == len(self.inputs.key) else replicated(self.inputs.of(rows), self.mesh)

    def _shape(self, shape: tuple[int, ...], leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=self.inputs.key.sharding)


def train_together(runs: Runs, progress: Progress | None = None, force_resume: bool = False) -> list[Run]:
    """Trains all runs, each into its folder, and resumes those that have begun.

    Each equals `fljax.run.train.train` with its federation, key and folder, up to rounding, and each can resume the
    other's folder. Runs at the same round continue together.

    Returns:
        A `Run` for each, in order; its ``seconds`` are its share of the total.

    Raises:
        ValueError: as `fljax.run.train.train`.
        OSError: writing failed; the runs can be resumed.
        MemoryError: they need more memory than there is.
    """
    check_run(runs.n_rounds, runs.evaluate_every, runs.dropout)
    check_numbers(runs.hyper)
    check_subjects(runs.algorithm, runs.federations[0], runs.keys[0])
    progress = checked_progress(progress)
    with (
        put_off(True) as termination,
        ExitStack() as locks,
        over_devices(runs.devices) as mesh,
        fields_of(runs.hyper, runs.algorithm),
    ):
        writable = [locks.enter_context(only_run(folder)) for folder in runs.folders]
        check_outputs(runs.algorithm, runs.hyper, runs.federations[0], runs.keys[0])
        progress.prepare()
        ready = prepared(runs, mesh)
        records, states = _begin_runs(runs, ready, writable, force_resume)
        results: dict[int, Run] = {}
        first_rounds = [record.round for record in records]  # before the first of them advance
        for round in sorted(set(first_rounds)):
            rows = [i for i, first_round in enumerate(first_rounds) if first_round == round]
            state = replicated(tree.stack([states[i] for i in rows]), mesh)
            call, seconds = _rounds(ready, rows) if round < runs.n_rounds else (None, 0.0)
            for i in rows:
                records[i].compiling = (ready.init.seconds + seconds) / len(rows)
            is_idle = call is None and len(rows) < len(records)  # the bar is that of the runs with rounds to make
            shown = SilentProgress() if is_idle else progress
            loop = Loop(Records([records[i] for i in rows]), 1.0, 10.0, shown, termination)
            finished = loop.run(call, state, runs.n_rounds)
            results |= {i: run._replace(compiler=ready.compiler) for i, run in zip(rows, finished, strict=True)}
    return [results[i] for i in range(len(records))]


def compile_together(runs: Runs) -> None:
    """Compiles what `train_together` will need, in another thread while something else runs."""
    with over_devices(runs.devices) as mesh, fields_of(runs.hyper, runs.algorithm):
        ready, rounds_so_far = prepared(runs, mesh), [rounds_done(folder) for folder in runs.folders]
        for round in {round for round in rounds_so_far if round < runs.n_rounds}:
            ready.chunk([i for i, n_rounds in enumerate(rounds_so_far) if n_rounds == round])


def prepared(runs: Runs, mesh: Mesh | None) -> Ready:
    """The runs' data on the devices, and the program of their first states; inside the mesh.

    Raises:
        ValueError: ``compile`` is unknown, or not even one run fits on an accelerator.
    """
    setting, inputs, hyper = as_program(runs, mesh)
    setting = setting._replace(at_once=_at_once(setting, inputs))
    description = f"{runs.program} {setting.draw.size} together {setting.at_once}"
    shelf = None if runs.program is None else shelf_for(description, inputs)
    previous_level = next((level for folder in runs.folders if (level := standing_of(folder).level)), None)
    compiler = compiler_for(runs.compile, runs.n_rounds, lambda: _cost(setting, inputs), shelf, previous_level)
    return Ready(setting, inputs, hyper, compiler, compiler.program("init", begin_all, (setting,), inputs), mesh)


def as_program(runs: Runs, mesh: Mesh | None) -> tuple[Setting, Inputs, Any]:
    """The static arguments and the inputs of the program of all runs, and the hyper as in a run's identity."""
    draw = sampling_of(runs.sampling, 1.0).of(runs.federations[0].train.n_clients)
    hyper = with_target(runs.hyper, draw.sampling, runs.algorithm.about.work, runs.n_rounds)
    structure, shared, own = stacked(runs.federations)
    counts = jnp.int32(runs.evaluate_every), jnp.int32(runs.n_rounds)
    numbers = None if runs.varied is None else tree.stack([as_arrays(values) for values in runs.varied.numbers])
    inputs = Inputs(
        as_traced(hyper), shared, own, jnp.stack(list(runs.keys)), as_traced(runs.dropout), *counts, numbers
    )
    inputs = replicated(jax.tree.map(jnp.asarray, inputs), mesh)
    make = None if runs.varied is None else runs.varied.make
    algorithm = remembering(runs.algorithm, draw.sampling.memory)
    return Setting(algorithm, draw, structure, make=make), inputs, hyper


def as_arrays(numbers: Any) -> Any:
    """A run's own numbers as inputs of its program: each tuple of floats as one array."""
    return jax.tree.map(jnp.float32, numbers, is_leaf=lambda part: isinstance(part, tuple))


def _at_once(setting: Setting, inputs: Inputs) -> int:
    """The number of runs side by side: as many as fit on an accelerator; one on a CPU, without compiling anything."""

    def compile(n: int) -> Any:
        repeated, counts = inputs.of([0] * n), (jnp.int32(0), jnp.int32(1))
        states = jax.eval_shape(begin_all, setting, repeated)
        return advance_all.lower(setting._replace(at_once=n), repeated, states, *counts).compile()

    return memory.plan(compile, 0, len(inputs.key)).at_once


def _cost(setting: Setting, inputs: Inputs) -> Cost:
    """The cost of a round of one run."""
    federation, key = joined(setting.structure, inputs.shared, tree.take(inputs.own, 0)), inputs.key[0]
    state = shapes_of_state(setting.algorithm.init, key, inputs.hyper, federation.train)
    rest = inputs.dropout, inputs.evaluate_every, inputs.n_rounds, state, *no_rounds()
    static = setting.algorithm, setting.draw, most_rounds(federation.train.n_clients)
    traced = run_chunk.trace(*static, inputs.hyper, federation, key, *rest)
    return round_cost(traced.jaxpr, setting.algorithm, federation.train.size)


def _begin_runs(runs: Runs, ready: Ready, writable: Sequence[bool], force: bool) -> tuple[list[Record], list[State]]:
    """Each run's record and state, from its folder."""
    check_compiled("the first state needs", ready.init.call)
    first, draw = ready.init.call(ready.inputs), ready.setting.draw
    current = surroundings(1 if ready.mesh is None else ready.mesh.size) | {"compile": ready.compiler.level}
    epsilon = epsilons(ready.hyper, draw.sampling, runs.algorithm.about.work, runs.n_rounds)
    records, states = [], []
    for i, (folder, is_writable) in enumerate(zip(runs.folders, writable, strict=True)):
        state, federation = tree.take(first, i), runs.federations[i]
        arguments = ready.hyper, federation, runs.keys[i], draw, runs.evaluate_every, runs.dropout
        identity, n_clients = run_identity(runs.method(i), state, *arguments), federation.train.n_clients
        begun = begin(folder, state, identity, n_clients, runs.n_rounds, is_writable, current, force)
        records.append(Record(folder, identity, begun, epsilon, draw.sampling.timing, truth=truth_of(federation)))
        states.append(begun.state)
    return records, states


def _rounds(ready: Ready, rows: Sequence[int]) -> tuple[Callable[..., tuple[State, Metrics]], float]:
    """The compiled rounds of the runs ``rows``, and the seconds that compiling took."""
    program, inputs = ready.chunk(rows), ready.inputs_of(rows)
    check_compiled("a round needs", program.call)
    return lambda *rest: program.call(inputs, *rest), program.seconds
