"""Estimates a run before it is started: memory, arithmetic, and rounds per second from a short measured probe."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fljax import tree
from fljax.checks.arguments import fields_of, whole
from fljax.client.map import AT_ONCE, MANY
from fljax.client.objectives import training_loss
from fljax.client.steps import n_steps
from fljax.data.federation import minibatch
from fljax.devices.memory import n_bytes, peak
from fljax.devices.mesh import Device, over_devices, replicated, shapes
from fljax.devices.program_cost import cost_of
from fljax.devices.programs import Compile, Compiler, Program, compiler_for, seconds_of
from fljax.models.conv import as_defined
from fljax.numbers import check_numbers
from fljax.rounds.memory import remembering
from fljax.rounds.named_samplings import sampling_of, uniform
from fljax.rounds.sampling import Draw, Sampling
from fljax.run.chunk import most_rounds, round_cost, run_chunk
from fljax.run.one_round import as_traced, first_state, shapes_of_state
from fljax.run.privacy import with_target
from fljax.run.sweep.memory import RESERVE, device_memory
from fljax.types import Algorithm, Federation, Key, Model, Work

PROBE_ROUNDS = 3
"""The largest number of rounds that a probe times, after one that warms up."""

PROBE_SECONDS = 10.0
"""Time limit of the rounds of a probe: rounds that are estimated to take longer are not run."""

CORRECTIONS = 2
"""Number of compiled rounds that may correct the number of participants that fit."""


class Plan(NamedTuple):
    """The needs of one method on this machine."""

    parameters: int  # scalars of the model
    data: int  # bytes of the federation, of which every device has a copy: the pools and the index tables
    state: int  # bytes that are kept between rounds: the server's state, and what each client keeps for itself
    fixed: int | None  # bytes of a compiled round on each device without its participants: data, state, temporaries
    per_client: int | None  # bytes of each further participant on the device that trains it
    limit: int  # bytes that a run may use on each device: its memory (a CPU device: its share), less a tenth
    largest_cohort: int | None  # participants that fit, at most all clients; None, as the two above: nothing compiled
    flops: float  # expected FLOPs of a round's local training: steps times those of a plain gradient step
    at_once: int  # clients trained side by side on a device: the fastest number that was tried, 0 if none was
    rounds_per_second: float  # with this number, without tests
    measured: bool  # False: estimated from the arithmetic, because a round takes too long or nothing was compiled
    compile_seconds: float  # of the run's program, measured if it was compiled
    n_devices: int  # over which the participants are spread

    def needs(self, cohort: int) -> int:
        """Bytes of a round with ``cohort`` participants on each device.

        Raises:
            ValueError: nothing was compiled.
        """
        if self.fixed is None or self.per_client is None:
            raise ValueError("a quick plan does not know the memory of a round; make one with quick=False")
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
    """Compiles a method's round and runs a few rounds, to estimate the needs of the whole run.

    ``hyper`` and the rest are those of `fljax.run.train.train`. If the participants do not fit into memory, nothing is
    run and ``rounds_per_second`` is NaN.

    Args:
        make: local work -> the method, such as ``partial(fedavg, model)``.
        work: local work; unless its ``at_once`` is given, the candidates replace it.
        model: the network, for counting parameters and FLOPs.
        hyper: the method's hyperparameters.
        federation: the clients and their data.
        key: all randomness comes from it.
        n_rounds: rounds of the run, which decide the compile mode and the noise of a target epsilon.
        participation: share of the clients in each round, in (0, 1].
        sampling: the sampling of clients, see `fljax.rounds.sampling`; None: a share ``participation``, uniformly.
        memory: bytes of each device; None: the device's own.
        candidates: values of ``Work.at_once`` to try; None: a few up to the cohort, on a CPU only for many participants
            and a network without convolutions, which are slow there with weights of several clients.
        devices: devices over which the participants are spread; None: all.
        compile: see `fljax.run.train.train`.
        quick: compiles and runs nothing: the memory of a round is not known, and the seconds of a round on a CPU and of
            compiling are estimated from the arithmetic, correct to a factor of two or three.

    Raises:
        ValueError: a number is out of its range, or ``hyper`` is not the method's.
    """
    n_clients = federation.train.n_clients
    draw = sampling_of(sampling, participation).of(n_clients)
    cohort = draw.size
    expected = draw.sampling.expected(n_clients)
    share = (cohort if expected is None else expected) / n_clients
    if memory is not None and memory < 1:
        raise ValueError(f"memory={memory} bytes is not positive; give the memory of the device in bytes")
    check_numbers(hyper)
    candidates = _candidates(work, model, cohort, candidates)
    algorithm = make(work)
    hyper = with_target(hyper, draw.sampling, algorithm.about.work, n_rounds)
    n_devices = len(jax.devices() if devices is None else devices)
    model_bytes = n_bytes(jax.eval_shape(model.init, key))
    run = cohort, n_rounds, compile
    with over_devices(devices) as mesh, fields_of(hyper, algorithm):
        limit = int((1 - RESERVE) * (device_memory() if memory is None else memory))
        probe = partial(Probe, hyper=hyper, federation=federation, key=key, mesh=mesh, sampling=draw.sampling)
        # A single candidate's programs are compiled only once; of several, there is one copy of the data at a time.
        is_alone = len(candidates) == 1
        first = probe(make(work._replace(at_once=candidates[0])) if is_alone else algorithm)
        if quick:
            fixed = per_client = fits = None
            speeds = {0: first.forecast(*run)[1]}
        else:
            fixed, per_client, fits = _fit(lambda n: peak(first.compiled(n)), n_clients, n_devices, model_bytes, limit)
            speeds = {
                at_once: (first if is_alone else probe(make(work._replace(at_once=at_once)))).speed(*run)
                for at_once in (candidates if cohort <= fits else ())
            }
    splits = jax.tree.leaves((federation.train, federation.test, federation.val))
    best = max(speeds, key=lambda at_once: speeds[at_once].rounds_per_second, default=0)
    return Plan(
        tree.size(jax.eval_shape(model.init, key)),
        n_bytes({id(leaf): leaf for leaf in splits}),  # splits may share a pool
        n_bytes(first.state),
        fixed,
        per_client,
        limit,
        fits,
        share * float(n_steps(federation.train.size, work).sum()) * step_flops(model, federation, work),
        best,
        *speeds.get(best, Speed(float("nan"), False, float("nan"))),
        n_devices,
    )


def _fit(
    peak_of: Callable[[int], int], n_clients: int, n_devices: int, model_bytes: int, limit: int
) -> tuple[int, int, int]:
    """(bytes without participants, bytes of each participant, participants that fit in ``limit``), per device.

    A line is fitted through the compiled rounds of half the clients and of all; with fewer participants not their
    training but the tests of all clients need the most. If not all fit, the number from the line is compiled and
    corrected. ``peak_of`` maps participants to a round's bytes; each device has its share of the participants.
    """
    share = -(-n_clients // n_devices)
    half = max(share // 2, 1)
    all_bytes = peak_of(n_clients)
    slope = (all_bytes - peak_of(half * n_devices)) // (share - half) if share > half else 0
    per_client = max(slope, model_bytes)  # a participant's trained model at least
    fixed = max(all_bytes - share * per_client, 0)
    if all_bytes <= limit:
        return fixed, per_client, n_clients
    n_fitting = min(max((limit - fixed) // per_client, 0), share - 1)
    if n_fitting and peak_of(n_devices) > limit:
        n_fitting = 0
    for _ in range(CORRECTIONS):
        if n_fitting <= 1 or (needed := peak_of(n_fitting * n_devices)) <= limit:
            break
        n_fitting = max(min(n_fitting - 1, n_fitting * (limit - fixed) // (needed - fixed)), 1)
    return fixed, per_client, n_fitting * n_devices


def step_flops(model: Model, federation: Federation, work: Work) -> float:
    """FLOPs of one plain gradient step on a batch: 2 per multiply-add of its matrix products and convolutions.

    Forward pass and both gradients, without that of the first layer's input; padding counts. They follow the definition
    of a convolution, whatever form is fast on this device. In gradients of XLA's own convolutions with strides, which
    fljax does not use, the inserted zeros count as well.
    """
    n_rows = work.batch_size or federation.train.index.shape[1]
    rows, weight = (jax.ShapeDtypeStruct((n_rows,), dtype) for dtype in (jnp.int32, jnp.float32))
    batch = jax.eval_shape(minibatch, federation.train.pool, rows, weight)  # inputs and labels as training sees them
    params = jax.eval_shape(model.init, jax.random.key(0))
    gradient = jax.grad(training_loss(model), has_aux=True, allow_int=True)
    with as_defined():
        return cost_of(jax.make_jaxpr(gradient)(params, batch, jax.random.key(0)), trips=1).flops


class Probe:
    """A method on a federation that can be compiled for any cohort and run for a few rounds."""

    def __init__(
        self,
        algorithm: Algorithm,
        hyper: Any,
        federation: Federation,
        key: Key,
        mesh: Mesh | None,
        sampling: Sampling = uniform(),  # noqa: B008 - cached
    ) -> None:
        algorithm = remembering(algorithm, sampling.memory)
        self.sampling = sampling
        self.algorithm, self.mesh, self.most = algorithm, mesh, most_rounds(federation.train.n_clients)
        self.programs: dict[tuple[int, str], Program] = {}  # by participants and level
        self.hyper, self.federation, self.key = replicated((as_traced(hyper), federation, key), mesh)
        state = shapes_of_state(algorithm.init, key, self.hyper, self.federation.train)
        # On all devices, as in a run; otherwise the compiler chooses the placement.
        sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self.state = shapes(state, sharding)

    def arguments(self, state: Any) -> tuple:
        """The arguments of `run_chunk` without the static ones."""
        never = jnp.int32(2**30)
        return self.hyper, self.federation, self.key, None, never, never, state, jnp.int32(0), jnp.int32(PROBE_ROUNDS)

    def compiled(self, cohort: int) -> Any:
        """The program of one round with ``cohort`` participants, compiled for inspection, not to be run."""
        return self._program(cohort, Compiler("fast", None)).call

    def _program(self, cohort: int, compiler: Compiler) -> Program:
        if (key := (cohort, compiler.level)) not in self.programs:
            static = self.algorithm, self._draw(cohort), self.most
            self.programs[key] = compiler.program("round", run_chunk, static, *self.arguments(self.state))
        return self.programs[key]

    def _draw(self, cohort: int) -> Draw | int:
        """A draw of ``cohort`` participants, in the run's way if that takes time or memory, else uniformly."""
        is_costly = self.sampling.by_loss or self.sampling.memory is not None
        return Draw(self.sampling, cohort) if is_costly else cohort

    def speed(self, cohort: int, n_rounds: int, compile: Compile) -> "Speed":
        """The speed of rounds with ``cohort`` participants, compiled as in a run of ``n_rounds``."""
        began = time.perf_counter()
        compiler, estimate = self.forecast(cohort, n_rounds, compile)
        tracing, program = time.perf_counter() - began, self._program(cohort, compiler)
        compiling = tracing + program.seconds
        if estimate.rounds_per_second < 1 / PROBE_SECONDS:
            return estimate._replace(compile_seconds=compiling)
        return Speed(self._rounds_per_second(program.call), True, compiling)

    def forecast(self, cohort: int, n_rounds: int, compile: Compile) -> "tuple[Compiler, Speed]":
        """The compiler of a run of ``n_rounds``, and its speed estimated from the arithmetic of one core."""
        traced = run_chunk.trace(self.algorithm, self._draw(cohort), self.most, *self.arguments(self.state))
        cost = round_cost(traced.jaxpr, self.algorithm, self.federation.train.size)
        compiler = compiler_for(compile, n_rounds, lambda: cost, None)
        compiling, running = seconds_of(compiler.level, cost)
        return compiler, Speed(1 / running, False, compiling)

    def _rounds_per_second(self, call: Callable[..., Any]) -> float:
        """The speed in a second call; the first call, of one round, decides the number of rounds that it makes."""
        seconds, count = 0.0, 1
        for _ in range(2):
            state = first_state(self.algorithm.init, self.key, self.hyper, self.federation.train)
            state = jax.block_until_ready(replicated(state, self.mesh))  # this work does not belong to a round
            count = max(1, min(PROBE_ROUNDS, int(PROBE_SECONDS / seconds))) if seconds else 1
            arguments = *self.arguments(state)[:-1], jnp.int32(count)
            began = time.perf_counter()
            jax.block_until_ready(call(*arguments))
            seconds = time.perf_counter() - began
        return count / seconds


class Speed(NamedTuple):
    """The speed of a method's rounds."""

    rounds_per_second: float
    measured: bool  # False: estimated
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
