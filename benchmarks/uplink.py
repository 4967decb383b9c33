"""What a chain of clip, top-k and quantise, and what asynchrony, cost a round of FedAvg on a convolutional network.

    python benchmarks/uplink.py [--check] [--repeats 3]

Ten clients of 600 images of 28 x 28 train FedCR's CNN of 1.26 million parameters for one epoch in batches of 50: of the
settings of the paper of FedAvg (McMahan et al., 2017, table 2) the one with the fewest local steps that are not one.
The same rounds with the chain ``clip_update+error_feedback+top_k+quantize`` in turn with them, in one process; the bar
is 15 % more. Then the rounds of FedBuff, five updates a version, beside synchronous rounds of the same clients; the bar
is 20 %. Seconds are the processor's, so that what else the machine does counts little.
"""

import sys
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from timing import alternate, machine, parser, ratio

import fljax
from fljax.models import fedcr_cnn
from fljax.rounds import table, uniform
from fljax.rounds.clock import asynchronous, buffered
from fljax.types import Examples, Federation, Work

BARS = {"chain": 1.15, "asynchronous": 1.2}
CHAIN = "+clip_update+error_feedback+top_k+quantize"
N_CLIENTS, SIZE, N_TEST, ROUNDS = 10, 600, 500, 4


def main() -> int:
    given = parser(__doc__, BARS, repeats=3).parse_args()
    print(machine())
    rng = np.random.default_rng(0)
    n = N_CLIENTS * SIZE
    data = Examples(jnp.asarray(rng.integers(0, 256, (n, 28, 28, 1), np.uint8)), jnp.arange(n, dtype=jnp.int32) % 10)
    test = Examples(data.x[:N_TEST], data.y[:N_TEST])
    federation: Federation = fljax.PARTITIONS["iid"](data, test, N_CLIENTS, seed=0)
    method, chain, model = fljax.fedavg, fljax.compose(f"fedavg{CHAIN}"), fedcr_cnn((28, 28, 1))
    speeds = tuple(np.random.default_rng(0).lognormal(size=N_CLIENTS).tolist())
    schedule = asynchronous(speeds, concurrency=8, buffer=5, n_rounds=ROUNDS)
    plain, same = method(model, Work(1, 50)), table(schedule.ids)
    sides = {
        "chain": ((plain, uniform()), (chain(model, Work(1, 50)), uniform())),
        "asynchronous": ((plain, same), (buffered(plain, schedule), same)),
    }
    missed = False
    for name in given.only:
        runs = {}
        for side, (algorithm, sampling) in zip(("without", "with"), sides[name], strict=True):
            hyper = (chain if algorithm is sides["chain"][1][0] else method).Hyper()
            simulated = algorithm, hyper, federation, jax.random.key(0), ROUNDS
            runs[side] = partial(fljax.simulate, *simulated, sampling=sampling, evaluate_every=ROUNDS)
            jax.block_until_ready(runs[side]())  # compiles
        seconds = alternate(runs, given.repeats, time.process_time)
        found = ratio(seconds["with"], seconds["without"])
        missed |= found > BARS[name]
        plain_seconds = np.median(seconds["without"])
        done = f"{ROUNDS} rounds and a test {plain_seconds:.2f} s without"
        print(f"{name}: {done}, {found:.3f} times with (bar {BARS[name]})", flush=True)
    return int(given.check and missed)


if __name__ == "__main__":
    sys.exit(main())
