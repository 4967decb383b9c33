"""What a run will take before it is started: memory, arithmetic, and rounds per second by a short measured probe."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fljax import tree
from fljax.client.local import n_steps
from fljax.client.map import ACCELERATOR_AT_ONCE
from fljax.client.objectives import cross_entropy
from fljax.run.mesh import over_devices, replicated
from fljax.run.participation import cohort_size
from fljax.run.simulate import as_traced, split_key
from fljax.run.sweep.memory import RESERVE, device_memory, n_bytes, peak
from fljax.run.train import MOST_ROUNDS, run_chunk
from fljax.types import Algorithm, Batch, Federation, Key, Model, Work

PROBE_ROUNDS = 3
"""Rounds that a probe times, after one that compiles."""


class Plan(NamedTuple):
    """What one method takes on this machine."""

    parameters: int  # scalars of the model
    data: int  # bytes of the federation: the pool, held once, and the index tables
    state: int  # bytes that are kept between rounds: the server's, and what each client keeps for itself
    fixed: int  # bytes of a compiled round besides its participants: data, state, temporaries
    per_client: int  # bytes that each further participant takes
    limit: int  # bytes that a run may use: the device's, less a tenth
    largest_cohort: int  # participants that fit, at most all clients
    flops: float  # of a round's local training, expected: steps times a plain gradient step's
    at_once: int  # clients trained side by side on a device; the fastest that was tried
    rounds_per_second: float  # measured with it, without tests


def plan(
    make: Callable[[Work], Algorithm],
    work: Work,
    model: Model,
    hyper: NamedTuple,
    federation: Federation,
    key: Key,
    *,
    participation: float = 1.0,
    memory: int | None = None,
    candidates: Sequence[int] | None = None,
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
        participation: share of the clients in each round, in (0, 1].
        memory: bytes of the device; None: asks it.
        candidates: values of ``Work.at_once`` to try; None: 1 on a CPU, else a few up to the cohort.

    Raises:
        ValueError: a number is out of its range.
    """
    n_clients = federation.train.size.shape[0]
    cohort = cohort_size(participation, n_clients)
    if memory is not None and memory < 1:
        raise ValueError(f"memory={memory} bytes is not positive; give the bytes of the device")
    limit = int((1 - RESERVE) * (device_memory() if memory is None else memory))
    first = _Probe(make(work), hyper, federation, key)
    fixed, per_client = _line(first.compiled, cohort)
    fits = min(max((limit - fixed) // per_client, 0), n_clients)
    tried = {} if cohort > fits else _speeds(make, work, hyper, federation, key, cohort, candidates)
    best = max(tried, key=lambda at_once: tried[at_once], default=0)
    return Plan(
        tree.size(jax.eval_shape(model.init, key)),
        n_bytes((federation.train, federation.test, federation.val)),
        n_bytes(first.state),
        fixed,
        per_client,
        limit,
        fits,
        participation * float(n_steps(federation.train.size, work).sum()) * step_flops(model, federation, work),
        best,
        tried.get(best, float("nan")),
    )


def _line(compiled: Callable[[int], Any], cohort: int) -> tuple[int, int]:
    """(bytes besides the participants, bytes each): the line through the compiled rounds of half a cohort and a whole.

    For one participant, through those of one and two.
    """
    few, many = (cohort // 2, cohort) if cohort > 1 else (1, 2)
    least, most = peak(compiled(few)), peak(compiled(many))
    per_client = max((most - least) // (many - few), 1)
    return max(most - many * per_client, 0), per_client


def step_flops(model: Model, federation: Federation, work: Work) -> float:
    """FLOPs of one plain gradient step on a batch, as XLA counts them in the compiled step."""
    pool = federation.train.pool
    rows = jax.ShapeDtypeStruct((work.batch_size, *pool.x.shape[1:]), jnp.float32)
    batch = jax.eval_shape(lambda x: Batch(x, jnp.zeros(len(x), jnp.int32), jnp.ones(len(x))), rows)
    params = jax.eval_shape(model.init, jax.random.key(0))
    gradient = jax.jit(jax.grad(cross_entropy(model), has_aux=True, allow_int=True))
    cost = gradient.lower(params, batch, jax.random.key(0)).compile().cost_analysis()
    return float(cost["flops"]) if cost and "flops" in cost else float("nan")


class _Probe:
    """A method on a federation, ready to be compiled for any cohort and run for a few rounds."""

    def __init__(self, algorithm: Algorithm, hyper: NamedTuple, federation: Federation, key: Key) -> None:
        self.algorithm = algorithm
        with over_devices() as mesh:
            self.hyper, self.federation, self.key = replicated((as_traced(hyper), federation, key), mesh)
        self.state = jax.eval_shape(algorithm.init, split_key(key).init, self.hyper, federation.train)

    def arguments(self, state: Any) -> tuple:
        never = jnp.int32(2**30)
        return self.hyper, self.federation, self.key, None, never, never, state, jnp.int32(0), jnp.int32(PROBE_ROUNDS)

    def compiled(self, cohort: int) -> Any:
        """The program of one round for so many participants."""
        with over_devices():
            return run_chunk.lower(self.algorithm, cohort, MOST_ROUNDS, *self.arguments(self.state)).compile()

    def rounds_per_second(self, cohort: int) -> float:
        """Of a second call: the first compiles."""
        seconds = [0.0, 0.0]
        with over_devices() as mesh:
            init = jax.jit(self.algorithm.init)
            for call in range(2):
                state = replicated(init(split_key(self.key).init, self.hyper, self.federation.train), mesh)
                began = time.perf_counter()
                jax.block_until_ready(run_chunk(self.algorithm, cohort, MOST_ROUNDS, *self.arguments(state)))
                seconds[call] = time.perf_counter() - began
        return PROBE_ROUNDS / seconds[1]


def _speeds(make, work, hyper, federation, key, cohort, candidates) -> dict[int, float]:
    """Rounds per second by ``at_once``."""
    if work.at_once is not None:
        candidates = [work.at_once]
    elif candidates is None:
        on_cpu = jax.default_backend() == "cpu"
        candidates = [1] if on_cpu else sorted({min(n, cohort) for n in (16, ACCELERATOR_AT_ONCE, 256)})
    if not candidates or min(candidates) < 1:
        raise ValueError(f"candidates={candidates}: give values of at_once, each at least 1")
    return {
        at_once: _Probe(make(work._replace(at_once=at_once)), hyper, federation, key).rounds_per_second(cohort)
        for at_once in candidates
    }
