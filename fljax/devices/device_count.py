"""The number of the CPU's devices that a job should use: one if the job ends before a mesh of all would be compiled.

Programs for several devices take longer to trace and to compile, because they include the exchange between devices.
They save a share of the clients' work. Both times are estimated from shapes only (`fljax.devices.program_cost`), so
that the same job always uses the same number of devices; results depend on this number in the last bits.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fljax.client.steps import passes_of
from fljax.data.federation import minibatch
from fljax.devices.mesh import Device, may_use_fewer
from fljax.devices.program_cost import Cost, cost_of
from fljax.devices.programs import seconds_of
from fljax.types import Federation, Model, Work

_SECONDS_OF_A_MESH = 0.35
"""Seconds that a run must save to justify a mesh: in the first run it takes 0.1 to 0.8 s longer to trace and compile,
in later ones, whose programs are cached, hardly any longer. `benchmarks/enough_devices.py` shows the choices."""


_EXAMPLES = 32  # in the batch that is analysed


def enough_devices(
    model: Model,
    federation: Federation,
    works: Iterable[Work | None],
    n_rounds: int,
    *,
    participation: float = 1.0,
    evaluate_every: int = 1,
    begun: Iterable[int] = (),
    several_models: float = 1.0,
) -> Sequence[Device] | None:
    """The devices for a job's methods: only the first if more are not worthwhile, see `may_use_fewer`; None: all.

    Args:
        model: the clients' model.
        federation: the clients and their data.
        works: the methods' local work; None: not known, counted as one epoch.
        n_rounds: number of rounds of each method.
        participation: share of the clients in a round.
        evaluate_every: rounds from one test to the next.
        begun: numbers of devices with which parts of the job began; the first is used again if there are as many.
        several_models: share of the methods that do not deploy one model for all. Tests of a single model on examples
            that all clients share are one device's work, however many there are.
    """
    if not may_use_fewer():
        return None
    devices = jax.devices()
    n_devices_before = next(iter(begun), None)
    if n_devices_before is not None and n_devices_before <= len(devices):
        return devices[:n_devices_before]
    n_passes = [1.0 if work is None else passes_of(work, np.asarray(federation.train.size)) for work in works]
    trained, tested = participation * float(np.mean(n_passes)), 1 / evaluate_every
    tested *= several_models if federation.test.is_common else 1
    seconds = n_rounds * seconds_of_work(model, federation, trained, tested)
    return None if seconds * (1 - 1 / len(devices)) > _SECONDS_OF_A_MESH else devices[:1]


def seconds_of_work(model: Model, federation: Federation, trained: float, tested: float) -> float:
    """Estimated seconds of one device to train on all examples ``trained`` times and to test ``tested`` times.

    For a program of compile mode "fast". Training on an example costs three times a forward pass.
    """
    rows_and_weights = (jax.ShapeDtypeStruct((_EXAMPLES,), dtype) for dtype in (jnp.int32, jnp.float32))
    examples = jax.eval_shape(minibatch, federation.train.pool, *rows_and_weights).x  # a network sees pixels as floats
    trace_forward = jax.make_jaxpr(lambda params, x: model.apply(params, x, None)[0])
    cost = cost_of(trace_forward(jax.eval_shape(model.init, jax.random.key(0)), examples), trips=1)
    per_example = seconds_of("fast", Cost(cost.equations, 0, cost.elements, cost.flops))[1] / _EXAMPLES
    sizes = (np.asarray(split.size) for split in (federation.train, federation.test))
    n_train, n_test = (float(size.sum()) for size in sizes)
    return per_example * (3 * trained * n_train + tested * n_test)
