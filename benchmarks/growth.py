"""How the cost of a round grows: with the cohort, the federation, the model and the number of clusters.

    python benchmarks/growth.py [--check] [--only federation state] [--repeats 5] [--save]

Every row is one compiled program, timed over a few rounds without tests (median; compilation apart), with what they add
to the process's memory; what the bar is about is timed again, in alternation. FedAvg on 784-200-10 with 100 examples a
client, batch 20, unless the row says otherwise; clients share a pool of 10,000 images, so that 100,000 fit. The bar: a
round of 100 of 100,000 clients takes at most 1.2 times that of 100 of 1,000. The `state` rows hold 100,000 clients of
12 floats each (Ditto, a model of 12 parameters) and 3,500 with a head of 127,038 each (FedPer, LEAF's FEMNIST CNN,
cohort 10). ``--save`` writes results/growth.csv and growth.png.
"""

import datetime
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from timing import alternate, machine, parser, peak_mib, ratio, seconds_of

import fljax
from fljax.algorithms.ditto import ditto
from fljax.algorithms.fedavg import fedavg
from fljax.algorithms.fedper import fedper
from fljax.algorithms.ifca import ifca
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.models import femnist_cnn, mlp
from fljax.report.summary import save_table
from fljax.run.one_round import as_traced, split_key
from fljax.run.train import run_chunk
from fljax.types import Algorithm, ClientData, Examples, Federation, Work

BAR, ROUNDS, WORK = 1.2, 4, Work(1, 20)
RESULTS = Path(__file__).parent / "results"


class Row(NamedTuple):
    """One size of one thing that grows."""

    grows: str
    size: int
    algorithm: Algorithm
    hyper: Any
    n_clients: int = 1000
    cohort: int = 100
    shape: tuple[int, ...] = (28, 28, 1)
    n_classes: int = 10
    examples: int = 100


def cohort() -> Iterator[Row]:
    for size in (1, 10, 100, 1000):
        yield Row("cohort", size, fedavg(mlp(), WORK), fljax.fedavg.Hyper(), cohort=size)


def federation() -> Iterator[Row]:
    for size in (100, 1_000, 10_000, 100_000):
        yield Row("federation", size, fedavg(mlp(), WORK), fljax.fedavg.Hyper(), n_clients=size)


def model() -> Iterator[Row]:
    for width in (25, 100, 400, 1600):
        yield Row("model width", width, fedavg(mlp(hidden=(width,)), WORK), fljax.fedavg.Hyper(), cohort=20)


def clusters() -> Iterator[Row]:
    for k in (1, 2, 4, 8, 16):
        yield Row("clusters", k, ifca(mlp(), WORK, k), fljax.ifca.Hyper(min_share=0.0), cohort=20, n_clients=100)


def state() -> Iterator[Row]:
    small, large = mlp((3,), (), 3), femnist_cnn()
    yield Row("kept floats", 12, ditto(small, WORK), fljax.ditto.Hyper(), 100_000, shape=(3,), n_classes=3)
    head = fedper(large, WORK, n_personal=1)
    yield Row("kept floats", 127_038, head, fljax.fedper.Hyper(), 3_500, 10, n_classes=62)


def clients_of(row: Row) -> Federation:
    """Clients of random rows of one pool, with one test example each."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 256, (10_000, *row.shape)), jnp.uint8)
    pool = Examples(x, jnp.asarray(rng.integers(0, row.n_classes, 10_000), jnp.int32))
    index = jnp.asarray(rng.integers(0, 10_000, (row.n_clients, row.examples)), jnp.int32)
    train = ClientData(pool, index, jnp.full(row.n_clients, row.examples, jnp.int32))
    test = ClientData(pool, index[:, :1], jnp.ones(row.n_clients, jnp.int32))
    return Federation(train, None, test, None, None)


def rounds(row: Row) -> Callable[[], Any]:
    """A function that runs `ROUNDS` more rounds each time it is called."""
    with over_devices() as mesh:
        data, hyper = replicated((clients_of(row), as_traced(row.hyper)), mesh)
        key = replicated(jax.random.key(0), mesh)
        start = jax.jit(row.algorithm.init)(split_key(key).init, hyper, data.train)
        carried = {"state": replicated(start, mesh), "round": 0}

    def run() -> Any:
        never, first = jnp.int32(2**30), jnp.int32(carried["round"])
        with over_devices():
            arguments = (hyper, data, key, None, never, never, carried["state"], first, jnp.int32(ROUNDS))
            carried["state"], metrics = run_chunk(row.algorithm, row.cohort, ROUNDS, *arguments)
        carried["round"] += ROUNDS
        return metrics

    return run


def measure(row: Row, repeats: int) -> dict[str, Any]:
    """Prints one line and returns it."""
    results = {}
    jax.clear_caches()  # a row of the same shapes, which another part has measured, compiles its program too

    def build() -> None:
        results["run"] = rounds(row)
        results["first"] = seconds_of(results["run"])[0]

    began = time.perf_counter()
    memory = peak_mib(build)
    build_seconds = time.perf_counter() - began
    seconds = median(seconds_of(results["run"])[0] for _ in range(repeats)) / ROUNDS
    print(
        f"{row.grows:<12}{row.size:>9,}{row.n_clients:>9,}{row.cohort:>7,}{1e3 * seconds:>12.2f}"
        f"{1e6 * seconds / row.cohort:>16.1f}{memory:>9.0f}{build_seconds:>9.1f} s",
        flush=True,
    )
    return {
        **{"grows": row.grows, "size": row.size, "clients": row.n_clients, "cohort": row.cohort},
        **{
            "ms_per_round": round(1e3 * seconds, 3),
            "added_mib": round(memory),
            "first_call_s": round(build_seconds, 1),
        },
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Round time and memory over size, a line for each thing that grows."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, field, label in zip(axes, ("ms_per_round", "added_mib"), ("ms a round", "MiB added"), strict=True):
        for name in dict.fromkeys(row["grows"] for row in rows):
            series = [row for row in rows if row["grows"] == name]
            axis.plot([row["size"] for row in series], [max(row[field], 0.1) for row in series], "o-", label=name)
        axis.set(xscale="log", yscale="log", xlabel="size", ylabel=label)
    axes[0].legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Prints the table; 1 if ``--check`` and the federation's size costs more than the bar allows."""
    parts = {f.__name__: f for f in (cohort, federation, model, clusters, state)}
    arguments = parser(__doc__, parts)
    arguments.add_argument("--save", action="store_true", help="write results/growth.csv and growth.png")
    options = arguments.parse_args()
    use_all_cores()
    print(machine())
    print(f"{'':<12}{'size':>9}{'clients':>9}{'cohort':>7}{'ms a round':>12}{'us a client':>16}{'MiB':>9}{'first':>11}")
    rows = [measure(row, options.repeats) for name in options.only for row in parts[name]()]
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        origin = {"machine": machine(), "date": datetime.date.today().isoformat()}
        save_table(RESULTS / "growth.csv", [row | origin for row in rows])
        draw(rows, RESULTS / "growth.png")
    if "federation" not in options.only:
        return 0
    cost_ratio = large_over_small(options.repeats)
    print(f"100,000 clients over 1,000: {cost_ratio:.2f} (bar {BAR})")
    return 1 if options.check and cost_ratio > BAR else 0


def large_over_small(repeats: int) -> float:
    """What a round of 100 of 100,000 clients takes over one of 100 of 1,000, the two in turn."""
    sides = {str(row.size): rounds(row) for row in federation() if row.size in (1_000, 100_000)}
    alternate(sides, 1)
    seconds = alternate(sides, 3 * repeats)
    return ratio(seconds["100000"], seconds["1000"])


if __name__ == "__main__":
    sys.exit(main())
