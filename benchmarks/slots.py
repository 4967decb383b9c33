"""A round of methods with a place for a cluster of each client, as a multiple of FedAvg's: 100 of 1,000 and of 5,000.

    python benchmarks/slots.py [--check] [--only cfl adacfl stocfl] [--repeats 5]

Such a method keeps as many models as there are clients, and a round looks at the few whose clients take part. Logistic
regression on 8 x 8 images, 20 examples a client; processor seconds of a few rounds without tests, all in turns in one
process (median). The bar: of 5,000 clients a round of CFL or AdaCFL takes at most 6 times FedAvg's, one of StoCFL,
which trains two models, at most 8 times.
"""

import sys
import time
from statistics import median

from growth import ROUNDS, Row, rounds
from timing import alternate, machine, parser

import fljax

BARS = {"cfl": 6.0, "adacfl": 6.0, "stocfl": 8.0}
SIZES = (1_000, 5_000)


def main() -> int:
    options = parser(__doc__, BARS).parse_args()
    print(machine())
    model, work, missed = fljax.MODELS["logistic_regression"]((8, 8, 1), 10), fljax.Work(1, 20), False
    print(f"{'clients':>8} {'method':<10}{'ms a round':>12}{'of FedAvg':>12}")
    for size in SIZES:
        sides = {}
        for name in ("fedavg", *options.only):
            method = fljax.ALGORITHMS[name]
            sides[name] = rounds(
                Row("clients", size, method(model, work), method.Hyper(), size, 100, (8, 8, 1), examples=20)
            )
        alternate(sides, 1)  # compiles
        seconds = alternate(sides, options.repeats, time.process_time)
        for name, side_seconds in seconds.items():
            ratio = median(a / b for a, b in zip(side_seconds, seconds["fedavg"], strict=True))
            missed |= size == SIZES[-1] and ratio > BARS.get(name, 1.0)
            print(f"{size:>8,} {name:<10}{1e3 * median(side_seconds) / ROUNDS:>12.1f}{ratio:>12.2f}", flush=True)
    return int(options.check and missed)


if __name__ == "__main__":
    sys.exit(main())
