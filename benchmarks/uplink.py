"""What a chain of clip, top-k and quantise, and what asynchrony, cost a round of FedAvg on a convolutional network.

    python benchmarks/uplink.py [--check] [--only chain] [--repeats 3]

``chain``: the work of ``cnn`` in `rounds_per_second.py`: 10 of 100 clients a round, 100 images of 28 x 28 each, batches
of 20, one epoch, a CNN of 455,000 parameters; the same rounds with ``clip_update+error_feedback+top_k+quantize`` in
turn with them, in one process; the bar is 15 % more. ``wide``: the same for FedCR's CNN, 1.26 million parameters of
which nearly all are one dense layer, so few operations a parameter, and 10 clients of 600 images in batches of 50; no
bar. ``asynchronous``: FedBuff, ten updates a version, beside synchronous rounds of the same clients; the bar is 20 %.
Seconds are the processor's, so that what else the machine does counts little.
"""

import sys
import time
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import Run, alternate, machine, parser, ratio

import fljax
from fljax import tree
from fljax.models import MODELS
from fljax.rounds import table, uniform
from fljax.rounds.clock import asynchronous, buffered
from fljax.types import Examples, Federation, Model, Work

CHAIN = "+clip_update+error_feedback+top_k+quantize"
ROUNDS, N_TEST = 16, 500
"""So many rounds that their start, which fills a row of memory for each client, weighs little."""


class Case(NamedTuple):
    """One comparison."""

    network: str
    n_clients: int
    size: int  # images a client
    batch: int
    share: float  # of the clients in a round
    bar: float  # most times the plain rounds; inf: none


CASES = {
    "chain": Case("mnist_cnn", 100, 100, 20, 0.1, 1.15),
    "wide": Case("fedcr_cnn", 10, 600, 50, 1.0, float("inf")),
    "asynchronous": Case("mnist_cnn", 100, 100, 20, 0.1, 1.2),
}


def federation_of(case: Case) -> Federation:
    """Random images: what they show takes no time."""
    n = case.n_clients * case.size
    x = np.random.default_rng(0).integers(0, 256, (n, 28, 28, 1), np.uint8)
    data = Examples(jnp.asarray(x), jnp.arange(n, dtype=jnp.int32) % 10)
    test = Examples(data.x[:N_TEST], data.y[:N_TEST])
    return fljax.PARTITIONS["iid"](data, test, case.n_clients, seed=0)


def sides(name: str, case: Case, model: Model) -> dict[str, Run]:
    """The rounds without and with the chain or the asynchrony."""
    work = Work(1, case.batch)
    plain, chain = fljax.fedavg(model, work), fljax.compose(f"fedavg{CHAIN}")
    participation = uniform(case.share)
    settings = {
        "without": (plain, fljax.fedavg.Hyper(), participation),
        "with": (chain(model, work), chain.Hyper(), participation),
    }
    if name == "asynchronous":
        speeds = tuple(np.random.default_rng(0).lognormal(size=case.n_clients).tolist())
        schedule = asynchronous(speeds, concurrency=20, buffer=10, n_rounds=ROUNDS)
        table_settings = plain, fljax.fedavg.Hyper(), table(schedule.ids)
        settings = {"without": table_settings, "with": (buffered(plain, schedule), *table_settings[1:])}
    federation, key = federation_of(case), jax.random.key(0)
    return {
        side: partial(
            fljax.simulate, algorithm, hyper, federation, key, ROUNDS, sampling=sampling, evaluate_every=ROUNDS
        )
        for side, (algorithm, hyper, sampling) in settings.items()
    }


def main() -> int:
    """Prints a line a case; 1 if ``--check`` and a ratio is above its bar."""
    options = parser(__doc__, CASES, repeats=3).parse_args()
    print(machine())
    missed = False
    for name in options.only:
        case = CASES[name]
        model = MODELS[case.network]((28, 28, 1), 10)
        runs = sides(name, case, model)
        for run in runs.values():
            jax.block_until_ready(run())  # compiles
        seconds = alternate(runs, options.repeats, time.process_time)
        times = ratio(seconds["with"], seconds["without"])
        missed |= times > case.bar
        d, plain = tree.size(jax.eval_shape(model.init, jax.random.key(0))), np.median(seconds["without"])
        bar = f"bar {case.bar}" if np.isfinite(case.bar) else "no bar"
        print(f"{name}: d {d:,}, {ROUNDS} rounds and a test {plain:.2f} s, {times:.3f} times ({bar})", flush=True)
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
