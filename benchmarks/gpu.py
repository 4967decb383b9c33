"""Everything that is asked of an accelerator, in one run; `gpu.sh` runs it and stores the table.

    python benchmarks/gpu.py [--only public float32] [--output results] [--seconds 420] [--check] [--tiny]

In this order, what has a bar first:

- limits (always): the rate of a large matrix product in each precision, and the rate of copying.
- public: pfl-cifar10 and flute-femnist, 1,500 rounds at JAX's own precision, from the clients' images in memory to the
  last model, with the making of tables, the transfer and compilation (bar: 30 s each). Drawing the images, which stand
  for a data set, is not in it.
- compilation: a round of pfl-cifar10, with the forms of its products tried out on the device and without.
- graphs: rounds of small models compiled so that the device runs the loops over steps itself (XLA's command buffers of
  loops and conditionals), against XLA's default, by which the host launches each iteration; in float32.
- float32: rounds a second of every workload of `peers.work`, with the shares of the matrix rate and of the copy rate
  that its needs (see `needs`) come to; and the ratio to a plain PyTorch loop on the same device, in float32 too (bar:
  10 times for CNNs, all of them below 2M parameters, at cohort 50 to 100).
- sweep: points a second side by side (bar: 20 times one point's rate at the knee; see `sweep`).
- conv: convolutions whose kernels carry a client axis, with their gradients: XLA's grouped convolution and products of
  columns against "matrices", the default (see `fljax.models.conv_forms`), by shape and precision.
  ``FLJAX_CONV=grouped`` runs whole workloads with the first.
- tensorfloat32, bfloat16: the workloads again. TF32 is a matrix precision, bfloat16 the type of the model's computation
  (its parameters stay float32) and of the matrices whose rate it is held against.

Programs are compiled before anything is timed, several at a time; rates are medians of five samples, ratios medians of
pairs, but the knee of a sweep, which divides one count's median rate by another's. Rows are stored as they come in a
table for each kind of device; those of ``--only`` in the place of older ones of the same name, where they could be
measured. What there is no time left for within ``--seconds``, or nothing to compare with, is "not measured", which
counts as missed. ``--tiny`` runs every line of this on a CPU, with a few small clients, to see that it works; its
figures mean nothing.
"""

import argparse
import datetime
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from accelerator.bench import FULL, PRECISIONS, REPEATS, TINY, Bench, dtype_of, precisely
from accelerator.convolutions import convolutions
from accelerator.table import LATE, Row, is_missed, not_measured, row, show, store, stored
from accelerator.workloads import compilation, graphs, public, workloads
from sweep import CURVE_BAR, curve, knee
from timing import alternate, machine

from fljax.devices.mesh import use_all_cores


def limits(bench: Bench) -> Iterator[Row]:
    """Rates of the device, kept for the shares."""
    side = bench.size.side
    x = jax.random.normal(jax.random.key(0), (side, side))
    for precision in PRECISIONS:
        with precisely(precision):
            rate = 2 * side**3 / _seconds(jax.jit(lambda x: x @ x), x.astype(dtype_of(precision)))
        bench.matrix_rate[precision] = rate
        yield row(f"matrix rate, {precision}", rate / 1e12, "TFLOP/s")
    big = jnp.zeros(side**2 * 4)
    bench.copy_rate = 2 * big.nbytes / _seconds(jax.jit(lambda x: x + 1), big)
    yield row("copy rate", bench.copy_rate / 1e9, "GB/s", "bytes read and bytes written")


def _seconds(fn: Callable, *operands: Any) -> float:
    """Median of a compiled function's time."""
    alternate({"fn": lambda: fn(*operands)}, 2)
    return median(alternate({"fn": lambda: fn(*operands)}, REPEATS)["fn"])


def sweeps(bench: Bench) -> Iterator[Row]:
    """Points a second."""
    rates: dict[int, float] = {}
    for n, rate in curve(bench.size.counts, bench.size.sweep_rounds):
        rates[n] = rate
        yield row(f"sweep, {n} points side by side", rate, "points/s")
        if bench.is_late():
            break
    what, (n, reached) = "sweep, the knee / one point", knee(rates)
    if len(rates) < len(bench.size.counts):
        yield not_measured(what, "ratio", LATE, CURVE_BAR)
    else:
        yield row(what, reached, "ratio", f"at {n} points", CURVE_BAR)


PARTS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    **{"limits": limits, "public": public, "compilation": compilation, "graphs": graphs},
    **{"float32": partial(workloads, "float32"), "sweep": sweeps, "conv": convolutions},
    **{precision: partial(workloads, precision) for precision in PRECISIONS[1:]},
}


def lines(name: str, bench: Bench) -> Iterator[Row]:
    """Those of a part, and where it fails one that says so: the next part goes on."""
    try:
        yield from PARTS[name](bench)
    except Exception as error:
        traceback.print_exc()
        yield not_measured(f"part {name}", "", str(error).partition("\n")[0])


def main() -> int:
    """Prints the rows as they come; 1 if ``--check`` and a bar is missed or a row was not measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="some parts; the other rows of the table stay")
    parser.add_argument("--tiny", action="store_true", help="a check that all of it runs, on a CPU too")
    parser.add_argument("--seconds", type=float, default=math.inf, help="nothing is begun after so many")
    parser.add_argument("--output", type=Path, help="a folder; gpu-DEVICE.csv in it is written row by row")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bar is missed")
    options = parser.parse_args()
    use_all_cores()
    device = jax.devices()[0].device_kind
    origin = {"machine": f"{device}, {machine()}", "date": datetime.date.today().isoformat()}
    print(origin["machine"])
    table = options.output / f"gpu-{re.sub('[^a-z0-9]+', '-', device.lower())}.csv" if options.output else None
    bench, missed = Bench(TINY if options.tiny else FULL, options.seconds), []
    rows = stored(table) if options.only else {}
    for name in [name for name in PARTS if name in ("limits", *(options.only or PARTS))]:
        for line in lines(name, bench):
            show(line)
            missed += [line["what"]] if is_missed(line) else []
            numbers = {name: float(f"{value:.4g}") for name, value in line.items() if isinstance(value, float)}
            if line["what"] not in rows or not math.isnan(line["value"]):  # else what was measured before stays
                rows[line["what"]] = line | numbers | origin
            if table:
                store(rows, table)
    if missed:
        print("missed:", *missed, sep="\n  ")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
