"""Everything that is asked of an accelerator, in one run; `gpu.sh` runs it and stores the tables.

    python benchmarks/gpu.py [--only limits conv workloads public] [--save] [--tiny]

- limits: the matrix rate of each precision (float32, TF32, bfloat16) and the copy rate.
- conv: gradient steps of convolutions whose kernels carry a client axis: XLA's grouped convolution against the patches
  and matrix products of `fljax.models.conv`, which are the default on accelerators.
- workloads: rounds per second of those of `benchmarks/peers`, in each precision, with the share of its matrix rate, and
  the ratio to a plain PyTorch loop on the same device where PyTorch has it (bar: 10 times at cohort 50 to 100).
- public: pfl-cifar10 and flute-femnist, 1,500 rounds from start to finish, compilation included (bar: 30 s each).

Compilation is timed apart from steady rounds; every figure is the median of five. ``--tiny`` runs every line of this on
a CPU within two minutes, to see that it works; its figures mean nothing.
"""

import argparse
import csv
import datetime
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from peers.fljax_peer import Rounds, model_of
from peers.work import WORKLOADS, kernel_shapes
from timing import alternate, machine, ratio, seconds_of

from fljax.models.conv import conv
from fljax.run.mesh import use_all_cores

PRECISIONS = ("float32", "tensorfloat32", "bfloat16")
RESULTS = Path(__file__).parent / "results"
WHOLE, WHOLE_BAR, LOOP_BAR = 1500, 30.0, 10.0


class Size(NamedTuple):
    """How much work the run does."""

    side: int  # of the square matrices
    clients: int  # in the convolutions
    rounds: int  # of a whole public benchmark
    timed: int  # rounds of a timed sample
    names: tuple[str, ...]


FULL = Size(8192, 64, WHOLE, 50, ("mlp-10", "mlp-100", "cnn-10", "cnn-100", "ragged-cnn", "ifca-cnn", "pfl-cifar10"))
TINY = Size(256, 2, 2, 1, ("mlp-10", "cnn-10"))


def limits(size: Size, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Rates of the device; those of the matrices are kept in ``rates`` for the shares."""
    x = jax.random.normal(jax.random.key(0), (size.side, size.side))
    for precision in PRECISIONS:
        with jax.default_matmul_precision(precision):
            product = jax.jit(lambda x: x @ x)
            seconds_of(lambda: product(x))  # noqa: B023
            seconds = median(alternate({"product": lambda: product(x)}, 5)["product"])  # noqa: B023
        rates[precision] = 2 * size.side**3 / seconds
        yield {"what": f"matrix rate, {precision}", "value": round(rates[precision] / 1e12, 3), "unit": "TFLOP/s"}
    big = jnp.zeros(size.side**2 * 4)
    copy = jax.jit(lambda x: x + 1)
    seconds_of(lambda: copy(big))
    seconds = median(alternate({"copy": lambda: copy(big)}, 5)["copy"])
    yield {"what": "copy rate", "value": round(2 * big.nbytes / seconds / 1e9, 1), "unit": "GB/s"}


def grouped(x: jax.Array, w: jax.Array) -> jax.Array:
    """XLA's convolution: under vmap over the kernels a grouped one."""
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def gradients(convolve: Callable) -> Callable:
    """Compiled: the gradients of every client's images and kernels."""
    return jax.jit(jax.vmap(jax.grad(lambda x, w: jnp.tanh(convolve(x, w)).sum(), (0, 1))))


def convolutions(size: Size, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Both ways to convolve under a client axis, value and gradients; their ratio says which should be the default."""
    shapes = {"28x28x1->32, 5x5": (28, 1, 32, 5), "14x14x32->64, 5x5": (14, 32, 64, 5)}
    shapes |= {"32x32x3->32, 3x3": (32, 3, 32, 3), "16x16x128->128, 3x3": (16, 128, 128, 3)}
    for name, (side, channels, features, kernel) in shapes.items():
        keys = jax.random.split(jax.random.key(0))
        x = jax.random.normal(keys[0], (size.clients, 20, side, side, channels))
        w = jax.random.normal(keys[1], (size.clients, kernel, kernel, channels, features))

        ways = {"grouped": gradients(grouped), "patches": gradients(conv)}
        sides = {way: (lambda f=f: f(x, w)) for way, f in ways.items()}  # noqa: B023
        alternate(sides, 1)
        seconds = alternate(sides, 5)
        faster = ratio(seconds["grouped"], seconds["patches"])
        yield {"what": f"conv {name}, grouped / patches", "value": round(faster, 2), "unit": "ratio"}
        yield {"what": f"conv {name}, patches", "value": round(1e3 * median(seconds["patches"]), 3), "unit": "ms"}


def flops_per_round(name: str) -> float:
    """Needed FLOPs of a round's training: 2 a multiply-add, three products a layer, two in the first."""
    workload = WORKLOADS[name]
    side, total = workload.shape[0], 0.0
    for place, shape in enumerate(kernel_shapes(workload)):
        valid = workload.model == "dropout_cnn"  # its 3x3 convolutions are not padded
        side = side - 2 if valid and len(shape) == 4 else side
        total += 2 * np.prod(shape) * (side * side if len(shape) == 4 else 1) * (2 if place == 0 else 3)
        side = side // 2 if len(shape) == 4 and not valid else side
    return float(total) * workload.cohort * workload.samples


def workloads(size: Size, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Steady rounds per second in each precision, and against PyTorch on the same device."""
    n_loop = max(size.timed // 25, 1)  # the loop's rounds in a turn
    for name in size.names:
        for precision in PRECISIONS:
            with jax.default_matmul_precision(precision):
                rounds = Rounds(WORKLOADS[name])
                first = seconds_of(lambda: rounds.run(size.timed))[0]  # noqa: B023
                sides = {"fljax": lambda: rounds.run(size.timed)}  # noqa: B023
                if precision == "float32" and (loop := torch_loop(name, n_loop)):
                    sides["torch"] = loop
                seconds = alternate(sides, 5)
            rate = size.timed / median(seconds["fljax"])
            note = f"first call {first:.1f} s"
            if precision in rates:
                note += f", {flops_per_round(name) * rate / rates[precision]:.1%} of the matrix rate"
            yield {"what": f"{name}, {precision}", "value": round(rate, 2), "unit": "rounds/s", "note": note}
            if "torch" in seconds:
                value = ratio(seconds["torch"], seconds["fljax"]) * size.timed / n_loop
                bar = LOOP_BAR if WORKLOADS[name].cohort >= 50 and "cnn" in name else None
                yield {"what": f"{name}, PyTorch loop / fljax", "value": round(value, 2), "unit": "ratio", "bar": bar}


def torch_loop(name: str, n_rounds: int) -> Callable[[], None] | None:
    """The same rounds as a PyTorch loop on the same device; None without a PyTorch that has it."""
    try:
        import torch
    except ImportError:
        return None
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        return None
    from peers.torch_loop import Loop
    from peers.work import data

    torch.set_float32_matmul_precision("highest")
    loop = Loop(WORKLOADS[name], *data(WORKLOADS[name]))
    loop.model.to(device)  # moves the parameters where they are, so the loop's list of them stays right
    loop.clients = [(x.to(device), y.to(device)) for x, y in loop.clients]
    loop.shared = [[value.to(device) for value in values] for values in loop.shared]
    loop.personal = dict.fromkeys(loop.personal, loop.shared[0])

    def run() -> None:
        loop.run(n_rounds)
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def public(size: Size, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Whole public benchmarks, from the making of the data's tables to the last model."""
    for name in ("pfl-cifar10", "flute-femnist"):
        model_of(WORKLOADS[name])
        began = time.perf_counter()
        rounds = Rounds(WORKLOADS[name])
        made = time.perf_counter() - began
        seconds = seconds_of(lambda: rounds.run(size.rounds))[0]  # noqa: B023
        note = f"and {made:.1f} s to make the data"
        yield {
            **{"what": f"{name}, {size.rounds} rounds", "value": round(seconds, 1), "unit": "s", "note": note},
            "bar": -WHOLE_BAR,
        }
        yield {"what": f"{name}, accuracy on its noisy images", "value": round(rounds.accuracy(), 4), "unit": ""}


def missed(row: dict[str, Any]) -> bool:
    """Whether a row is on the wrong side of its bar; a negative bar is a most."""
    bar = row.get("bar")
    return bar is not None and (row["value"] < bar if bar > 0 else row["value"] > -bar)


def main() -> int:
    """Prints the rows as they come; 1 if ``--check`` and a bar is missed."""
    parts = {"limits": limits, "conv": convolutions, "workloads": workloads, "public": public}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--tiny", action="store_true", help="a check that all of it runs, on a CPU too")
    parser.add_argument("--save", action="store_true", help="write results/gpu.csv")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    options = parser.parse_args()
    use_all_cores()
    stamp = f"{jax.devices()[0].device_kind}, {machine()}, {datetime.date.today()}"
    print(stamp)
    rows, rates = [], {}
    for part in options.only:
        for row in parts[part](TINY if options.tiny else FULL, rates):
            rows.append(row)
            bar = "" if row.get("bar") is None else f"(bar {abs(row['bar'])}{', missed' if missed(row) else ''})"
            print(f"{row['what']:<46}{row['value']:>10} {row['unit']:<9}{row.get('note', '')} {bar}", flush=True)
    if options.save:
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / "gpu.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ("what", "value", "unit", "bar", "note", "machine"), lineterminator="\n")
            writer.writeheader()
            writer.writerows(row | {"machine": stamp} for row in rows)
    return 1 if options.check and any(map(missed, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
