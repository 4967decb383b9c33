"""Share of the machine's own matrix rate that training reaches, measured in the same run, and where the rest goes.

    python benchmarks/limits.py [--check] [--only mlp cnn] [--repeats 5]

The limit is the float32 product of two 2048 x 2048 matrices on all cores, NumPy's, XLA's, or XLA's on each device,
whichever is the fastest in the turn. FLOPs are those that are needed and no others: 2 a multiply-add, forward, weight
gradient and, but for the first layer, input gradient. "rate" is the reached share (median of the turns), with a bar of
40 % for the MLP in batches of 20 and 60 % in batches of 128. Where the rest of the time goes is measured by running a
part alone, over the same clients and steps: "update" is ``p - lr * g`` of all parameters, "batches" is training a model
of ten parameters (shuffling, gathering, the overhead of a step); "rest" is what neither explains: products of matrices
this small are slower than the limit's. Parts that overlap in the caches can add up to more than the whole.
"""

import sys
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import alternate, fastest, machine, parser, ratio, seconds_of

from fljax import tree
from fljax.client import cross_entropy, train_clients
from fljax.models import MODELS, mlp
from fljax.run.mesh import over_devices, replicated, use_all_cores
from fljax.types import ClientData, Examples, Model, Trained, Work

N_CLIENTS, SIZE, SIDE = 20, 256, 2048


class Workload(NamedTuple):
    """A model, its batch size and the least share of the matrix rate."""

    model: str
    batch: int
    bar: float = 0.0


WORKLOADS = {
    "logreg": Workload("logistic_regression", 20),
    "mlp": Workload("mlp", 20, 0.4),
    "mlp-128": Workload("mlp", 128, 0.6),
    "lenet": Workload("lenet", 32),
    "cnn": Workload("mnist_cnn", 20),
    "cnn-128": Workload("mnist_cnn", 128),
}


def flops_per_example(model: Model) -> float:
    """Needed FLOPs of an example's gradient in a net of 5x5 convolutions, each with a 2x2 pool, and dense layers."""
    shapes, side, total = jax.eval_shape(model.init, jax.random.key(0)), 28, 0.0
    for place, name in enumerate(model.layers):
        kernel = shapes[name]["kernel"].shape
        positions = side * side if len(kernel) == 4 else 1
        side = side // 2 if len(kernel) == 4 else side
        total += 2 * positions * np.prod(kernel) * (2 if place == 0 else 3)
    return total


def updating(model: Model, n_steps: int) -> Any:
    """``n_steps`` updates of all parameters, spread over the cores as the training's."""
    n, n_devices = tree.size(jax.eval_shape(model.init, jax.random.key(0))), len(jax.devices())

    def steps(p: jax.Array, g: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, n_steps // n_devices, lambda _, p: p - 1e-3 * g, p)

    update = jax.jit(steps)
    each = [jax.device_put((jnp.ones(n), jnp.ones(n)), device) for device in jax.devices()]
    return lambda: [update(*operands) for operands in each]


def training(model: Model, batch: int) -> tuple[Any, int]:
    """(one epoch of every client, compiled and spread over the cores; steps in it)."""
    rng, n = np.random.default_rng(0), N_CLIENTS * SIZE
    pool = Examples(
        jnp.asarray(rng.standard_normal((n, 28, 28, 1), np.float32)), jnp.asarray(rng.integers(0, 10, n), jnp.int32)
    )
    data = ClientData(pool, jnp.arange(n, dtype=jnp.int32).reshape(N_CLIENTS, SIZE), jnp.full(N_CLIENTS, SIZE))

    @jax.jit
    def train(keys: jax.Array, start: Any, data: ClientData) -> Trained:
        everyone = tree.everyone(start, N_CLIENTS)
        return train_clients(keys, everyone, data, cross_entropy(model), optax.sgd(0.05), Work(1, batch))

    with over_devices() as mesh:
        keys = jax.random.split(jax.random.key(0), N_CLIENTS)
        arguments = replicated((keys, model.init(jax.random.key(1)), data), mesh)

    def run() -> Trained:
        with over_devices():
            return train(*arguments)

    return run, N_CLIENTS * -(-SIZE // batch)


def measure(name: str, workload: Workload, repeats: int) -> bool:
    """Prints one line; whether the bar was missed."""
    model = MODELS[workload.model](input_shape=(28, 28, 1), n_classes=10)
    run, n_steps = training(model, workload.batch)
    # The smallest model that reads whole images: what shuffling, gathering and a step cost without its own matrices.
    bare, _ = training(_first_pixel(), workload.batch)
    square = np.random.default_rng(0).standard_normal((SIDE, SIDE), np.float32)
    product, operands = jax.jit(jnp.dot), [jax.device_put(square, device) for device in jax.devices()]
    first = seconds_of(run)[0]
    sides = {
        **{"run": run, "bare": bare, "update": updating(model, n_steps)},
        **{"numpy": lambda: square @ square, "xla": lambda: product(operands[0], operands[0])},
        "devices": lambda: [product(operand, operand) for operand in operands],
    }
    alternate(sides, 1)
    turns = alternate(sides, repeats)
    turns["devices"] = [value / len(operands) for value in turns["devices"]]
    limit = fastest(turns, "numpy", "xla", "devices")
    seconds = {side: median(values) for side, values in turns.items()}
    matrix_rate = 2 * SIDE**3 / median(limit)
    flops = flops_per_example(model) * N_CLIENTS * SIZE
    rate = flops / (2 * SIDE**3) * ratio(limit, turns["run"])
    parts = {"matrix": rate * seconds["run"], "update": seconds["update"], "batches": seconds["bare"]}
    parts["rest"] = max(seconds["run"] - sum(parts.values()), 0.0)
    share = {part: value / seconds["run"] for part, value in parts.items()}
    largest = max((part for part in share if part != "matrix"), key=lambda part: share[part])
    print(
        f"{name:<9}{flops / seconds['run'] / 1e9:8.1f}{matrix_rate / 1e9:8.1f}{share['matrix']:8.0%}"
        f"{f'{workload.bar:.0%}' if workload.bar else '-':>6}{share['update']:9.0%}{share['batches']:9.0%}"
        f"{share['rest']:7.0%}{first:9.1f} s  {largest}",
        flush=True,
    )
    return share["matrix"] < workload.bar


def _first_pixel() -> Model:
    """Ten parameters: the first pixel of an image times ten weights."""
    tiny = mlp((1, 1, 1), (), 10)
    return tiny._replace(apply=lambda params, x, key: tiny.apply(params, x[:, :1, :1], key))


def main() -> int:
    """Prints the table; 1 if ``--check`` and a share is below its bar."""
    arguments = parser(__doc__, WORKLOADS)
    options = arguments.parse_args()
    use_all_cores()
    print(machine(), "(GFLOP/s)")
    print(f"{'':<9}{'reached':>8}{'limit':>8}{'rate':>8}{'bar':>6}{'update':>9}{'batches':>9}{'rest':>7}{'first':>11}")
    missed = [name for name in options.only if measure(name, WORKLOADS[name], options.repeats)]
    if missed:
        print("below the bar:", ", ".join(missed))
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
