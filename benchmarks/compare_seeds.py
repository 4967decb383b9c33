"""All seeds of a comparison as one program against a run of each seed, in one process: compiling and rounds apart.

    python benchmarks/compare_seeds.py [--check] [--only fedavg ditto ifca] [--repeats 5] [--seeds 5]

Each seed has its own Dirichlet partition (0.5) of scikit-learn's digits among ten clients, its own first model and its
own cohorts, as in `fljax compare`: an MLP of 64 hidden units, one epoch in batches of 32, ten rounds. Apart, each seed
is a program of its own, for its tables of rows are as wide as its largest client; together, tables are brought to one
width and one program trains all seeds. "first" is the first call of every program: tracing, compiling without a cache,
rounds, in processor seconds, which a busy machine leaves alone. "steady" are seconds of further calls, in turns; ratios
are apart to together, of "steady" the median of the pairs. Every seed must be the same to 1e-5.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from timing import alternate, count, machine, parser, ratio

import fljax
from fljax.data.padding import same_shapes
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.rounds.named_samplings import sampling_of
from fljax.rounds.sampling import Draw
from fljax.run.chunk import MOST_ROUNDS, run_chunk
from fljax.run.one_round import as_traced, split_key
from fljax.run.seeds import Inputs, Setting, advance_all, begin_all, stacked
from fljax.types import Algorithm, Federation

METHODS = ("fedavg", "ditto", "ifca")
CLIENTS, ROUNDS = 10, 10
BARS = {"first": 1.0, "steady": 0.9}
"""Least ratios: compiling once must pay, and padding may cost little."""


class Job(NamedTuple):
    """What both sides train."""

    algorithm: Algorithm
    hyper: Any
    federations: Sequence[Federation]  # as their partitions made them
    keys: Sequence[jax.Array]

    @property
    def draw(self) -> Draw:
        """All clients in every round."""
        return sampling_of(None, 1.0).of(CLIENTS)


def apart(job: Job, mesh: Any) -> Callable[[], list[dict[str, jax.Array]]]:
    """A run after the other; each seed's metrics."""
    hyper, counts = as_traced(job.hyper), (jnp.int32(1), jnp.int32(ROUNDS))
    inputs_of_seeds = [replicated((hyper, one, key), mesh) for one, key in zip(job.federations, job.keys, strict=True)]
    begin = jax.jit(job.algorithm.init)

    def run() -> list[dict[str, jax.Array]]:
        seed_metrics = []
        for hyper, federation, key in inputs_of_seeds:
            state = begin(split_key(key).init, hyper, federation.train)
            static = job.algorithm, job.draw, MOST_ROUNDS
            rest = None, *counts, state, jnp.int32(0), jnp.int32(ROUNDS)
            seed_metrics.append(run_chunk(*static, hyper, federation, key, *rest)[1])
        return seed_metrics

    return run


def together(job: Job, mesh: Any) -> Callable[[], dict[str, jax.Array]]:
    """All runs at once; metrics (rounds, seeds, ...)."""
    structure, shared, seed_parts = stacked(same_shapes(job.federations))
    counts = jnp.int32(1), jnp.int32(ROUNDS)
    inputs = Inputs(as_traced(job.hyper), shared, seed_parts, jnp.stack(list(job.keys)), None, *counts)
    inputs = replicated(jax.tree.map(jnp.asarray, inputs), mesh)
    setting = Setting(job.algorithm, job.draw, structure)

    def run() -> dict[str, jax.Array]:
        return advance_all(setting, inputs, begin_all(setting, inputs), jnp.int32(0), jnp.int32(ROUNDS))[1]

    return run


def processor_seconds_of(run: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds that the process' threads computed for the result, the result)."""
    began = time.process_time()
    result = jax.block_until_ready(run())
    return time.process_time() - began, result


def measured(job: Job, repeats: int) -> dict[str, tuple[float, float, float]]:
    """Of "first" and "steady": seconds apart, seconds together, their ratio."""
    with over_devices() as mesh:
        sides = {"apart": apart(job, mesh), "together": together(job, mesh)}
        jax.clear_caches()
        first = {name: processor_seconds_of(side) for name, side in sides.items()}
        steady = alternate(sides, repeats)
    apart_metrics, together_metrics = first["apart"][1], first["together"][1]
    for i, metrics in enumerate(apart_metrics):
        for name in ("client_accuracy", "client_loss", "loss"):
            np.testing.assert_allclose(together_metrics[name][:ROUNDS, i], metrics[name][:ROUNDS], rtol=1e-5, atol=1e-6)
    seconds = {name: seconds_and_result[0] for name, seconds_and_result in first.items()}
    medians = {name: float(np.median(values)) for name, values in steady.items()}
    return {
        "first": (seconds["apart"], seconds["together"], seconds["apart"] / seconds["together"]),
        "steady": (medians["apart"], medians["together"], ratio(steady["apart"], steady["together"])),
    }


def main() -> int:
    """Prints a row a method; 1 where a bar is missed and --check is given."""
    command_line = parser(__doc__, METHODS)
    command_line.add_argument("--seeds", type=count, default=5)
    options = command_line.parse_args()
    use_all_cores()
    jax.config.update("jax_enable_compilation_cache", False)
    print(f"{machine()}; {options.seeds} seeds, {ROUNDS} rounds each, {options.repeats} repeats")
    data, model = fljax.load("digits"), fljax.MODELS["mlp"]((8, 8, 1), (64,), 10)
    seeds = range(options.seeds)
    federations = [fljax.PARTITIONS["dirichlet"](*data, n_clients=CLIENTS, seed=seed, beta=0.5) for seed in seeds]
    print(f"{'method':<10}{'':<8}{'apart s':>9}{'together s':>12}{'ratio':>8}")
    missed = False
    for name in options.only:
        method = fljax.ALGORITHMS[name]
        algorithm = method(model, fljax.Work(1, 32))
        job = Job(algorithm, method.Hyper(lr=0.1), federations, [jax.random.key(seed) for seed in seeds])
        for phase, (apart_seconds, together_seconds, gain) in measured(job, options.repeats).items():
            missed |= gain < BARS[phase]
            print(f"{name:<10}{phase:<8}{apart_seconds:9.2f}{together_seconds:12.2f}{gain:8.2f}", flush=True)
    return int(missed and options.check)


if __name__ == "__main__":
    sys.exit(main())
