"""How many clients of few examples to train side by side: rounds a second with ``Work.at_once`` over those one by one.

    python benchmarks/side_by_side.py [--clients 4000]

Clients of 4 or 40 examples of 20 features, batches of 8, all in each round; the programs of one workload are compiled
once, outside the timing, and run in turn. One by one a client's steps are short and what comes between them counts.

2 cores, shared with other work, jax 0.10.2, 2,000 clients: 5.7 times as many rounds with 128 at once for clients of 4
examples and no hidden units, 2.5 with 64 hidden units, 1.2 with 200; 3.0 for 40 examples and no hidden units.
"""

import argparse
from functools import partial

import jax
import numpy as np
from timing import alternate, machine, ratio

import fljax

N_FEATURES, N_CLASSES, ROUNDS, REPEATS = 20, 3, 4, 3
AT_ONCE = (1, 16, 128)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=4000)
    n_clients = options.parse_args().clients
    print(machine())
    for examples in (4, 40):
        for hidden in ((), (64,), (200,)):
            seconds = timed(n_clients, examples, hidden)
            gains = ", ".join(f"{ratio(seconds['1'], seconds[str(n)]):.1f} with {n}" for n in AT_ONCE[1:])
            print(f"{examples:2} examples, {hidden or 'no'} hidden units: {gains}", flush=True)


def timed(n_clients: int, examples: int, hidden: tuple[int, ...]) -> dict[str, list[float]]:
    """Seconds of runs of `ROUNDS` rounds by the clients at once."""
    rng, n = np.random.default_rng(0), n_clients * examples
    x, y = rng.normal(size=(n, N_FEATURES)).astype(np.float32), rng.integers(N_CLASSES, size=n)
    federation = fljax.federation_from_arrays(x, y, np.repeat(np.arange(n_clients), examples))
    model = fljax.MODELS["mlp"]((N_FEATURES,), hidden, N_CLASSES)
    if not hidden:
        model = fljax.MODELS["logistic_regression"]((N_FEATURES,), N_CLASSES)

    def run(at_once: int) -> object:
        algorithm = fljax.fedavg(model, fljax.Work(1, 8, at_once=at_once))
        return fljax.simulate(algorithm, fljax.fedavg.Hyper(), federation, jax.random.key(0), ROUNDS, evaluate_every=99)

    for at_once in AT_ONCE:
        jax.block_until_ready(run(at_once))  # compiles
    return alternate({str(at_once): partial(run, at_once) for at_once in AT_ONCE}, REPEATS)


if __name__ == "__main__":
    main()
