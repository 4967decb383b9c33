"""What a run will take before it is started: memory, arithmetic, and rounds per second by a short measured probe."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fljax import tree
from fljax.client.local import n_steps
from fljax.client.map import AT_ONCE, MANY
from fljax.client.objectives import training_loss
from fljax.data.federation import minibatch
from fljax.models.conv import as_defined
from fljax.numbers import check_numbers
from fljax.rounds.sampling import Sampling, sampling_of
from fljax.run.check import fields_of, whole
from fljax.run.chunk import most_rounds, round_cost, run_chunk
from fljax.run.memory import n_bytes, peak
from fljax.run.mesh import Device, over_devices, replicated, shapes
from fljax.run.one_round import as_traced, first_state, shapes_of_state
from fljax.run.privacy import with_target
from fljax.run.program_cost import cost_of
from fljax.run.programs import Compile, Compiler, Program, compiler_for, seconds_of
from fljax.run.sweep.memory import RESERVE, device_memory
from fljax.types import Algorithm, Federation, Key, Model, Work

PROBE_ROUNDS = 3
"""Rounds that a probe times at most, after one that warms up."""

PROBE_SECONDS = 10.0
"""How long the rounds of a probe may take: those that are forecast to take longer are not run."""

CORRECTIONS = 2
"""Compiled rounds that may correct how many participants fit."""


class Plan(NamedTuple):
    """What one method takes on this machine."""

    parameters: int  # scalars of the model
    data: int  # bytes of the federation, of which every device holds a copy: the pools and the index tables
    state: int  # bytes that are kept between rounds: the server's, and what each client keeps for itself
    fixed: int | None  # bytes of a compiled round on each device besides its participants: data, state, temporaries
    per_client: int | None  # bytes that each further participant takes on the device that trains it
    limit: int  # bytes that a run may use on each device: its own, of a CPU's its share of the machine's, less a tenth
    largest_cohort: (
        int | None
    )  # participants that fit, at most all clients; None, as the two above: nothing was compiled
    flops: float  # of a round's local training, expected: steps times a plain gradient step's
    at_once: int  # clients trained side by side on a device; the fastest that was tried, 0 where none was
    rounds_per_second: float  # with it, without tests
    measured: bool  # False: a forecast by the arithmetic, as a round takes too long to be run, or nothing was compiled
    compile_seconds: float  # of the run's program, measured where it was compiled
    n_devices: int  # that the participants are spread over

    def needs(self, cohort: int) -> int:
        """Bytes that a round of so many participants takes on each device.

        Raises:
            ValueError: nothing was compiled.
        """
        if self.fixed is None or self.per_client is None:
            raise ValueError("a quick plan does not know what a round takes; make one that compiles it")
        return self.fixed + -(-cohort // self.n_devices) * self.per_client


def plan(
    make: Callable[[Work], Algorithm],
    work: Work,
    model: Model,
    hyper: Any,
    federation: Federation,
    key: Key,
    *,
    n_rounds: int = 100,
    participation: float = 1.0,
    sampling: Sampling | None = None,
    memory: int | None = None,
    candidates: Sequence[int] | None = None,
    devices: Sequence[Device] | None = None,
    compile: Compile = "auto",
    quick: bool = False,
) -> Plan:
    """Compiles a method's round and runs a few, to say what the whole run will take.

    ``hyper`` and the rest are those of `fljax.run.train.train`. Where more participants are asked for than fit, nothing
    is run and ``rounds_per_second`` is NaN.

    Args:
        make: the method for given local work, as ``partial(fedavg, model)``.
        work: local work; its ``at_once`` is overridden by the candidates unless it is given.
        model: the network, for counting parameters and FLOPs.
        hyper: the method's numbers.
        federation: the clients and their data.
        key: everything random comes from it.
        n_rounds: rounds of the run, which say how well it is worth compiling, and how much noise a target asks for.
        participation: share of the clients in each round, in (0, 1].
        sampling: who takes part, whose places in a round count; None: a share ``participation``, uniformly.
        memory: bytes of each device; None: asks it.
        candidates: values of ``Work.at_once`` to try; None: a few up to the cohort, on a CPU only for many participants
            and a network without convolutions, which are slow there with weights of several clients.
        devices: to spread the participants over; None: all.
        compile: see `fljax.run.train.train`.
        quick: nothing is compiled or run: what a round takes is not told, and its seconds, on a CPU, and those of
            compiling it are forecast by the arithmetic, to a factor of two or three.

    Raises:
        ValueError: a number is out of its range, or ``hyper`` is not the method's.
    """
    n_clients = federation.train.n_clients
    draw = sampling_of(sampling, participation).of(n_clients)
    cohort = draw.size
    expected = draw.sampling.expected(n_clients)
    share = (cohort if expected is None else expected) / n_clients
    if memory is not None and memory < 1:
        raise ValueError(f"memory={memory} bytes is not positive; give the bytes of the device")
    check_numbers(hyper)
    candidates = _candidates(work, model, cohort, candidates)
    algorithm = make(work)
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    n_devices, model_bytes = (
        len(jax.devices() if devices is None else devices),
        n_bytes(jax.eval_shape(model.init, key)),
    )
    run = cohort, n_rounds, compile
    with over_devices(devices) as mesh, fields_of(hyper, algorithm):
        limit = int((1 - RESERVE) * (device_memory() if memory is None else memory))
        probe = partial(Probe, hyper=hyper, federation=federation, key=key, mesh=mesh)
        alone = len(candidates) == 1  # then its programs are compiled once; else one copy of the data at a time
        first = probe(make(work._replace(at_once=candidates[0])) if alone else algorithm)
        if quick:
            fixed = per_client = fits = None
            tried = {0: first.forecast(*run)[1]}
        else:
            fixed, per_client, fits = _fit(lambda n: peak(first.compiled(n)), n_clients, n_devices, model_bytes, limit)
            tried = {
                at_once: (first if alone else probe(make(work._replace(at_once=at_once)))).speed(*run)
                for at_once in (candidates if cohort <= fits else ())
            }
    splits = jax.tree.leaves((federation.train, federation.test, federation.val))
    best = max(tried, key=lambda at_once: tried[at_once].rounds_per_second, default=0)
    return Plan(
        tree.size(jax.eval_shape(model.init, key)),
        n_bytes({id(leaf): leaf for leaf in splits}),  # which may share a pool
        n_bytes(first.state),
        fixed,
        per_client,
        limit,
        fits,
        share * float(n_steps(federation.train.size, work).sum()) * step_flops(model, federation, work),
        best,
        *tried.get(best, Speed(float("nan"), False, float("nan"))),
        n_devices,
    )


def _fit(
    peak_of: Callable[[int], int], n_clients: int, n_devices: int, model_bytes: int, limit: int
) -> tuple[int, int, int]:
    """(bytes besides the participants, bytes each, participants that fit in ``limit``), all on each device.

    The line goes through the compiled rounds of half the clients and of all: with few participants it is not their
    training that takes the most, but the tests of everyone. Where not all fit, what the line says is compiled and put
    right. ``peak_of`` is a round's bytes by its participants; a device's share of them is what counts.
    """
    share = -(-n_clients // n_devices)
    half = max(share // 2, 1)
    most = peak_of(n_clients)
    rise = (most - peak_of(half * n_devices)) // (share - half) if share > half else 0
    per_client = max(rise, model_bytes)  # a participant's trained model at least
    fixed = max(most - share * per_client, 0)
    if most <= limit:
        return fixed, per_client, n_clients
    fit = min(max((limit - fixed) // per_client, 0), share - 1)
    if fit and peak_of(n_devices) > limit:
        fit = 0
    for _ in range(CORRECTIONS):
        if fit <= 1 or (needed := peak_of(fit * n_devices)) <= limit:
            break
        fit = max(min(fit - 1, fit * (limit - fixed) // (needed - fixed)), 1)
    return fixed, per_client, fit * n_devices


def step_flops(model: Model, federation: Federation, work: Work) -> float:
    """FLOPs of one plain gradient step on a batch: 2 a multiply-add of its matrix products and convolutions.

    Forward and both gradients, but for the first layer's input; padding counts. They are those of the definition,
    whatever form of a convolution is fast on this device. In gradients of XLA's own convolutions with strides, which
    fljax's are not, the zeros between count as well.
    """
    places = work.batch_size or federation.train.index.shape[1]
    rows, weight = (jax.ShapeDtypeStruct((places,), dtype) for dtype in (jnp.int32, jnp.float32))
    batch = jax.eval_shape(minibatch, federation.train.pool, rows, weight)  # inputs and labels as training sees them
    params = jax.eval_shape(model.init, jax.random.key(0))
    gradient = jax.grad(training_loss(model), has_aux=True, allow_int=True)
    with as_defined():
        return cost_of(jax.make_jaxpr(gradient)(params, batch, jax.random.key(0)), trips=1).flops


class Probe:
    """A method on a federation, ready to be compiled for any cohort and run for a few rounds."""

    def __init__(self, algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, mesh: Mesh | None) -> None:
        self.algorithm, self.mesh, self.most = algorithm, mesh, most_rounds(federation.train.n_clients)
        self.programs: dict[tuple[int, str], Program] = {}  # by participants and level
        self.hyper, self.federation, self.key = replicated((as_traced(hyper), federation, key), mesh)
        state = shapes_of_state(algorithm.init, key, self.hyper, self.federation.train)
        # On all devices, as a run begins: else the compiler places it as it likes.
        where = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self.state = shapes(state, where)

    def arguments(self, state: Any) -> tuple:
        """Of `run_chunk`, but the static ones."""
        never = jnp.int32(2**30)
        return self.hyper, self.federation, self.key, None, never, never, state, jnp.int32(0), jnp.int32(PROBE_ROUNDS)

    def compiled(self, cohort: int) -> Any:
        """The program of one round for so many participants, compiled to be looked at and not to be run."""
        return self._program(cohort, Compiler("fast", None)).call

    def _program(self, cohort: int, compiler: Compiler) -> Program:
        if (key := (cohort, compiler.level)) not in self.programs:
            static = self.algorithm, cohort, self.most
            self.programs[key] = compiler.program("round", run_chunk, static, *self.arguments(self.state))
        return self.programs[key]

    def speed(self, cohort: int, n_rounds: int, compile: Compile) -> "Speed":
        """Of rounds of so many participants, compiled as a run of ``n_rounds`` is."""
        began = time.perf_counter()
        compiler, foretold = self.forecast(cohort, n_rounds, compile)
        tracing, program = time.perf_counter() - began, self._program(cohort, compiler)
        compiling = tracing + program.seconds
        if foretold.rounds_per_second < 1 / PROBE_SECONDS:
            return foretold._replace(compile_seconds=compiling)
        return Speed(self._rounds_per_second(program.call), True, compiling)

    def forecast(self, cohort: int, n_rounds: int, compile: Compile) -> "tuple[Compiler, Speed]":
        """How a run of ``n_rounds`` is compiled, and how fast it is by the arithmetic of one core."""
        traced = run_chunk.trace(self.algorithm, cohort, self.most, *self.arguments(self.state))
        cost = round_cost(traced.jaxpr, self.algorithm, self.federation.train.size)
        compiler = compiler_for(compile, n_rounds, lambda: cost, None)
        compiling, running = seconds_of(compiler.level, cost)
        return compiler, Speed(1 / running, False, compiling)

    def _rounds_per_second(self, call: Callable[..., Any]) -> float:
        """Of a second call, which makes as many rounds as the first, of one round, leaves time for."""
        seconds, count = 0.0, 1
        for _ in range(2):
            state = first_state(self.algorithm.init, self.key, self.hyper, self.federation.train)
            state = jax.block_until_ready(replicated(state, self.mesh))  # its work is no round's
            count = max(1, min(PROBE_ROUNDS, int(PROBE_SECONDS / seconds))) if seconds else 1
            arguments = *self.arguments(state)[:-1], jnp.int32(count)
            began = time.perf_counter()
            jax.block_until_ready(call(*arguments))
            seconds = time.perf_counter() - began
        return count / seconds


class Speed(NamedTuple):
    """How fast a method's rounds are."""

    rounds_per_second: float
    measured: bool  # False: forecast
    compile_seconds: float


def _candidates(work: Work, model: Model, cohort: int, candidates: Sequence[int] | None) -> Sequence[int]:
    """The values of ``at_once`` to try."""
    if work.at_once is not None:
        return [work.at_once]
    if candidates is None:
        if jax.default_backend() != "cpu":
            return sorted({min(n, cohort) for n in (16, AT_ONCE, 256)})
        convolves = any(leaf.ndim > 2 for leaf in jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))))
        return [1] if cohort < MANY or convolves else [1, 16, AT_ONCE]
    if not len(candidates) or min(whole("candidates", n) for n in candidates) < 1:
        raise ValueError(f"candidates={candidates}: give values of at_once, each at least 1")
    return candidates
