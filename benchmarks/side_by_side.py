"""Many small clients on a CPU: rounds a second with several trained at once over those one by one.

    python benchmarks/side_by_side.py [--only sizes methods] [--clients 2000] [--methods NAME ...]

``sizes`` is FedAvg on clients of 4 or 40 examples and networks of growing width, with what ``Work.at_once=None`` takes
and with 16, 64 and 128; ``methods`` is every method on 400 clients of 4 or 5 images of digits, with None, and the
seconds that its first run takes more, which are compilation. The programs of one workload are compiled once, outside
the timing, and run in turn. One by one a client's steps are short and what comes between them counts; with many
parameters several clients' models leave the cache.

2 cores, shared with other work, jax 0.10.2, 2,000 clients: with None 3.0 and 3.1 times as many rounds for 210
parameters, 1.5 and 2.0 for 4,554, 1.3 and 1.7 for 7,850. With 14,210 and 50,890 None is one by one: its 0.9 to 1.3 is
noise, and 64 at once were 0.8 to 1.1.
"""

from collections.abc import Iterable
from functools import partial

import jax
import numpy as np
from timing import Run, alternate, count, machine, parser, ratio, seconds_of

import fljax
from fljax.jobs.assemble import make_methods
from fljax.jobs.job import read_job
from fljax.jobs.parts import make_parts, plain_model

N_CLASSES, ROUNDS, REPEATS = 10, 4, 5
AT_ONCE = (1, None, 16, 64, 128)
SHAPES = ((20, ()), (20, (64,)), (60, ()), (60, (64,)), (200, (32,)), (784, ()), (60, (200,)), (784, (64,)))
JOB = ("--n-clients", "400", "--partition", "iid", "--hidden", "32", "--batch-size", "2", "--dataset", "digits")


def main() -> None:
    command_line = parser(__doc__, SECTIONS, REPEATS, bars=False)
    command_line.add_argument("--clients", type=count, default=2000)
    command_line.add_argument("--methods", nargs="+", default=sorted(fljax.ALGORITHMS))
    options = command_line.parse_args()
    print(machine(), flush=True)
    for name in options.only:
        SECTIONS[name](options.clients, options.methods, options.repeats)


def sizes(n_clients: int, _: Iterable[str], repeats: int) -> None:
    """By examples of a client and parameters of the network."""
    for examples in (4, 40):
        for n_features, hidden in SHAPES:
            seconds = alternate({str(n): run_of(n_clients, examples, n_features, hidden, n) for n in AT_ONCE}, repeats)
            gains = ", ".join(f"{ratio(seconds['1'], seconds[str(n)]):.2f} with {n}" for n in AT_ONCE[1:])
            n_parameters = sum(a * b + b for a, b in zip((n_features, *hidden), (*hidden, N_CLASSES), strict=True))
            print(f"{examples:2} examples, {n_parameters:6,} parameters: {gains}", flush=True)
            jax.clear_caches()


def run_of(n_clients: int, examples: int, n_features: int, hidden: tuple[int, ...], at_once: int | None) -> Run:
    """A compiled run of `ROUNDS` rounds of FedAvg."""
    rng, n = np.random.default_rng(0), n_clients * examples
    x, y = rng.normal(size=(n, n_features)).astype(np.float32), rng.integers(N_CLASSES, size=n)
    federation = fljax.federation_from_arrays(x, y, np.repeat(np.arange(n_clients), examples))
    model = fljax.MODELS["mlp"]((n_features,), hidden, N_CLASSES)
    algorithm = fljax.fedavg(model, fljax.Work(1, 8, at_once=at_once))
    run = partial(
        fljax.simulate, algorithm, fljax.fedavg.Hyper(), federation, jax.random.key(0), ROUNDS, evaluate_every=ROUNDS
    )
    jax.block_until_ready(run())
    return run


def methods(_: int, names: Iterable[str], repeats: int) -> None:
    """Every method, tested after each round."""
    for name in names:
        try:
            runs = {at_once: run_of_method(name, at_once) for at_once in ("1", "None")}
        except ValueError as error:  # it needs another network
            print(f"{name:<14} not run: {error}", flush=True)
            continue
        first = {at_once: seconds_of(run)[0] for at_once, run in runs.items()}
        seconds = alternate(runs, repeats)
        extra_seconds = first["None"] - first["1"]
        print(f"{name:<14} {ratio(seconds['1'], seconds['None']):5.2f}, first run {extra_seconds:+.1f} s", flush=True)
        jax.clear_caches()


def run_of_method(name: str, at_once: str) -> Run:
    """A run of `ROUNDS` rounds of a method, with its settings of the command line."""
    job = read_job(["--algorithm", name, "--at-once", at_once, *JOB])
    federation, _ = make_parts(job)
    methods_by_name, federation = make_methods(job, plain_model(job, federation), federation)
    return partial(fljax.simulate, *methods_by_name[name][:2], federation, jax.random.key(0), ROUNDS)


SECTIONS = {"sizes": sizes, "methods": methods}


if __name__ == "__main__":
    main()
