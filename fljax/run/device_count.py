"""How many of the CPU's devices a job is worth: one where it is over before a mesh of all has been compiled.

Programs for several devices take longer to trace and to compile, since each has the exchange between them besides. What
they gain is a share of the clients' work. Both are forecast from shapes alone (`fljax.run.program_cost`), so that the
same job runs on as many devices every time; results depend on their number in the last bits.
"""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fljax.data.federation import minibatch
from fljax.run.mesh import Device, may_use_fewer
from fljax.run.program_cost import Cost, cost_of
from fljax.run.programs import seconds_of
from fljax.types import Federation, Model, Work

_SECONDS_OF_A_MESH = 0.35
"""What a run must save to pay for the exchange between devices: in the first run it takes 0.1 to 0.8 s longer to trace
and compile, in later ones, whose programs are kept, hardly. `benchmarks/enough_devices.py` shows what is chosen."""


_EXAMPLES = 32  # in the batch that is looked at


def enough_devices(
    model: Model,
    federation: Federation,
    works: Iterable[Work | None],
    n_rounds: int,
    *,
    participation: float = 1.0,
    evaluate_every: int = 1,
    begun: Iterable[int] = (),
) -> Sequence[Device] | None:
    """The devices to run a job's methods on: the first alone where more would not pay, see `may_use_fewer`; None: all.

    Args:
        model: of the clients.
        federation: the clients and their data.
        works: the methods' local work; None: not known, taken as one epoch.
        n_rounds: of each method.
        participation: share of the clients in a round.
        evaluate_every: rounds from one test to the next.
        begun: numbers of devices that parts of the job have begun with; the first is gone on with where there are as
            many.
    """
    if not may_use_fewer():
        return None
    devices = jax.devices()
    before = next(iter(begun), None)
    if before is not None and before <= len(devices):
        return devices[:before]
    epochs = [1 if work is None else work.epochs for work in works]
    trained, tested = participation * float(np.mean(epochs)), 1 / evaluate_every
    seconds = n_rounds * seconds_of_work(model, federation, trained, tested)
    return None if seconds * (1 - 1 / len(devices)) > _SECONDS_OF_A_MESH else devices[:1]


def seconds_of_work(model: Model, federation: Federation, trained: float, tested: float) -> float:
    """About what one device takes to train on all examples ``trained`` times and to test ``tested`` times.

    In a program that is compiled soonest. To train on an example costs three times what the network's answer does.
    """
    places = (jax.ShapeDtypeStruct((_EXAMPLES,), dtype) for dtype in (jnp.int32, jnp.float32))
    examples = jax.eval_shape(minibatch, federation.train.pool, *places).x  # a network sees pixels as floats
    answer = jax.make_jaxpr(lambda params, x: model.apply(params, x, None)[0])
    cost = cost_of(answer(jax.eval_shape(model.init, jax.random.key(0)), examples), trips=1)
    per_example = seconds_of("fast", Cost(cost.equations, 0, cost.elements, cost.flops))[1] / _EXAMPLES
    sizes = (np.asarray(split.size) for split in (federation.train, federation.test))
    n_train, n_test = (float(size.sum()) for size in sizes)
    return per_example * (3 * trained * n_train + tested * n_test)
