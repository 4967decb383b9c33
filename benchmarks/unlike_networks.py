"""Clients with networks of different architectures in one program, against the same clients in a program for each.

    python benchmarks/unlike_networks.py [--only standalone fedproto] [--networks lenet mlp] [--at-once 20]

Twenty clients of 100 images of noise, all in every round, batches of 10; half of them with LeNet, half with a dense
network. The programs beside it: all twenty with LeNet, and all twenty with the dense network; the mean of their times
is what different networks would take if they cost nothing. Processor seconds of ten compiled rounds, in turns. With
--at-once clients train side by side, as on a GPU.
"""

import statistics
import time
from functools import partial

import jax
import numpy as np
from timing import alternate, count, machine, parser

import fljax

SHAPE, CLIENTS, ROUNDS = (28, 28, 1), 20, 10
METHODS = ("standalone", "fedproto", "fedmd")


def main() -> None:
    command_line = parser(__doc__, METHODS, bars=False)
    command_line.add_argument("--networks", nargs=2, default=["lenet", "mlp"])
    command_line.add_argument("--at-once", type=count)
    options = command_line.parse_args()
    print(machine())
    for name in options.only:
        print(f"{name}: {line(name, options.networks, options.at_once, options.repeats)}", flush=True)


def line(name: str, pair: list[str], at_once: int | None, repeats: int) -> str:
    """The three programs of a method in turns."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(125 * CLIENTS, *SHAPE), dtype=np.uint8)
    examples = fljax.Examples(images, rng.integers(10, size=len(images), dtype=np.int32))
    federation = fljax.PARTITIONS["iid"](examples, examples, n_clients=CLIENTS)
    method = fljax.compose(name)

    def rounds(*networks: str):
        model = fljax.MODELS["heterogeneous"](SHAPE, networks)
        algorithm, hyper = method(model, fljax.Work(1, 10, at_once)), method.Hyper(lr=0.01)
        run = jax.jit(partial(fljax.simulate, algorithm, n_rounds=ROUNDS, evaluate_every=ROUNDS))
        return lambda: run(hyper, federation, jax.random.key(0))

    sides = {"both": rounds(*pair)} | {network: rounds(network) for network in pair}
    for run in sides.values():
        jax.block_until_ready(run())
    seconds = alternate(sides, repeats, time.process_time)
    text = ", ".join(f"{side} {statistics.median(spent):.2f} s" for side, spent in seconds.items())
    means = [(a + b) / 2 for a, b in zip(*(seconds[network] for network in pair), strict=True)]
    ratio = statistics.median(both / mean for both, mean in zip(seconds["both"], means, strict=True))
    return f"{text}, ratio to the mean {ratio:.2f}"


if __name__ == "__main__":
    main()
