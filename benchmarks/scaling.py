"""What a round sends between devices, counted from the compiled program, and what that means for 8 and 64 GPUs.

    python benchmarks/scaling.py [--devices 2 8 64] [--only fedavg ifca fesem] [--examples-at-home]

128 clients a round of 600 Fashion-MNIST-like images, DC-PFL's CNN, 5 epochs in batches of 32. The round is compiled for
so many forced CPU devices (XLA's partitioner does the same for GPUs, which may fuse or split exchanges but not need
less); nothing is run. "sent" is what a device sends in a round by ring algorithms. The projection is no measurement:

* a device does its share of the clients' arithmetic, counted for one step by the compiler, at --efficiency of
  --tflops; shares are equal; the server's part and the tests are left out. What a CPU alone does with convolutions is
  turned off: Winograd's filtering needs fewer products, and of a loop over parts of a batch one part alone is counted;
* exchanges do not overlap with computing; a GPU sends --nvlink GB/s within 8, --network GB/s beyond;
* each exchange waits --latency microseconds within 8, three times that beyond.

results/scaling.txt has the counted table.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import timing

COHORT, EXAMPLES, EPOCHS, BATCH = 128, 600, 5, 32


class Volume(NamedTuple):
    """One line of the table."""

    method: str
    devices: int
    parameters: int
    sent: float  # bytes a device a round
    exchanges: int
    flops: float  # of all clients' training in a round


@contextlib.contextmanager
def as_on_gpus() -> Iterator[None]:
    """Convolutions as they are counted for GPUs, in a process that has CPU devices alone."""
    from fljax.models import conv_forms

    with mock.patch.dict(os.environ, FLJAX_WINOGRAD="0"), mock.patch.object(conv_forms, "_LARGE_KERNEL", math.inf):
        yield


def count(method: str, n_devices: int, is_at_home: bool) -> Volume:
    """Compiles a round of ``method`` over ``n_devices`` devices of this process."""
    from jax.sharding import NamedSharding, PartitionSpec

    from fljax import tree
    from fljax.algorithms import ALGORITHMS
    from fljax.client.map import CLIENTS, AtHome
    from fljax.devices.collectives import collectives
    from fljax.devices.mesh import device_mesh
    from fljax.models import lenet
    from fljax.run.one_round import as_traced, run_round
    from fljax.run.plan import step_flops
    from fljax.types import ClientData, Examples, Federation, Work

    mesh, model = device_mesh(), lenet()
    replicated, spread = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(CLIENTS))

    def like(value: Any, sharding: Any = replicated) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), value)

    def shape(*dimensions: int, dtype: Any = jnp.int32, sharding: Any = replicated) -> Any:
        return jax.ShapeDtypeStruct(dimensions, dtype, sharding=sharding)

    n_rows = COHORT * EXAMPLES
    x = shape(n_rows, 28, 28, 1, dtype=jnp.uint8, sharding=spread if is_at_home else replicated)
    pool: Any = (AtHome if is_at_home else Examples)(x, shape(n_rows))
    data = ClientData(pool, shape(COHORT, EXAMPLES), shape(COHORT))
    federation = Federation(data, None, data, None, None)
    options = {"n_clusters": 4} if method in ("ifca", "fesem") else {}
    algorithm = ALGORITHMS[method](model, Work(EPOCHS, BATCH, at_once=1), **options)
    hyper, key = as_traced(ALGORITHMS[method].Hyper()), jax.random.key(0)
    with jax.set_mesh(mesh):
        state = like(jax.eval_shape(algorithm.init, key, hyper, data))

        def one_round(key: Any, hyper: Any, federation: Any, state: Any, round: Any) -> Any:
            return run_round(algorithm, COHORT, hyper, federation, key, None, state, round)

        program = jax.jit(one_round, out_shardings=replicated).lower(like(key), like(hyper), federation, state, shape())
        exchanged = collectives(program.compile(), n_devices)
    params = jax.eval_shape(model.init, key)
    flops = step_flops(model, federation, Work(EPOCHS, BATCH)) * COHORT * EPOCHS * math.ceil(EXAMPLES / BATCH)
    exchanges = sum(collective.times for collective in exchanged)
    return Volume(method, n_devices, tree.size(params), sum(c.sent for c in exchanged), exchanges, flops)


def projected(volume: Volume, options: argparse.Namespace) -> tuple[float, float]:
    """(seconds of a round on the GPUs, share of them that is communication), under the assumptions above."""
    near = volume.devices <= 8
    rate, wait = (options.nvlink, 1) if near else (options.network, 3)
    sending = volume.sent / (rate * 1e9) + volume.exchanges * wait * options.latency * 1e-6
    computing = volume.flops / volume.devices / (options.efficiency * options.tflops * 1e12)
    return computing + sending, sending / (computing + sending)


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=timing.count, nargs="+", default=[2, 8, 64])
    parser.add_argument("--only", nargs="+", default=["fedavg", "ifca", "fesem"])
    parser.add_argument("--examples-at-home", action="store_true", help="the pool is spread over the devices too")
    parser.add_argument("--tflops", type=float, default=60.0, help="of a GPU in float32")
    parser.add_argument("--efficiency", type=float, default=0.1, help="share of them that small networks reach")
    parser.add_argument("--nvlink", type=float, default=300.0, help="GB/s that a GPU sends to its neighbours")
    parser.add_argument("--network", type=float, default=40.0, help="GB/s that a GPU sends to other machines")
    parser.add_argument("--latency", type=float, default=15.0, help="microseconds of an exchange among neighbours")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        jax.config.update("jax_num_cpu_devices", int(options.one[1]))
        with as_on_gpus():
            print(json.dumps(count(options.one[0], int(options.one[1]), options.examples_at_home)))
        return 0
    header = ("method", "devices", "model MB", "sent MB", "exchanges", "projected s/round", "sending")
    print("{:<10}{:>8}{:>10}{:>9}{:>11}{:>19}{:>9}".format(*header))
    for method in options.only:
        for n_devices in options.devices:
            command = [sys.executable, str(Path(__file__)), "--one", method, str(n_devices)]
            command += ["--examples-at-home"] if options.examples_at_home else []
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            volume = Volume(*json.loads(output.splitlines()[-1]))
            seconds, share = projected(volume, options)
            print(
                f"{method:<10}{n_devices:>8}{4e-6 * volume.parameters:>10.2f}{1e-6 * volume.sent:>9.2f}"
                f"{volume.exchanges:>11}{seconds:>19.4f}{share:>9.1%}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
