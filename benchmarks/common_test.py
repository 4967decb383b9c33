"""Tests of all clients on one set of examples: one row of the set for all, against a row for each client.

    python benchmarks/common_test.py [--only "one model" "a model each"] [--repeats 7]

100 clients, tested on 1,000 digits with an MLP 64-64-10. Processor seconds of `fljax.evaluate`, in turns; both give the
same accuracies.
"""

import statistics
import time
from functools import partial

import jax
import numpy as np
from timing import alternate, machine, parser, ratio

import fljax
from fljax import tree
from fljax.types import ModelTable

CLIENTS, TESTS = 100, 1000
MODELS = ("one model", "a model each")


def main() -> None:
    options = parser(__doc__, MODELS, repeats=7, bars=False).parse_args()
    print(machine())
    for name in options.only:
        print(f"{name}: {line(name, options.repeats)}", flush=True)


def line(name: str, repeats: int) -> str:
    """Both tables in turns."""
    train, _ = fljax.load("digits")
    federation = fljax.PARTITIONS["iid"](train, fljax.Examples(train.x[:0], train.y[:0]), n_clients=CLIENTS)
    common = fljax.with_common_test(federation, fljax.Examples(train.x[:TESTS], train.y[:TESTS])).test
    model = fljax.MODELS["mlp"]((8, 8, 1), hidden=(64,), n_classes=10)
    algorithm = fljax.fedavg(model, fljax.Work(1, 10))
    keys = jax.random.split(jax.random.key(0), CLIENTS)
    models = tree.everyone(model.init(keys[0]), CLIENTS)
    if name == "a model each":
        models = ModelTable(jax.vmap(model.init)(keys), np.arange(CLIENTS, dtype=np.int32))

    def accuracies(data: fljax.types.ClientData) -> jax.Array:
        return fljax.evaluate(algorithm.predict, models, data, algorithm.loss)["client_accuracy"]

    tables = {"a row each": common.with_own_rows(), "one row": common}
    sides = {table: partial(accuracies, data) for table, data in tables.items()}
    own, common_row = (np.asarray(test()) for test in sides.values())
    np.testing.assert_allclose(own, common_row, atol=1e-6)
    seconds = alternate(sides, repeats, time.process_time)
    text = ", ".join(f"{table} {1e3 * statistics.median(spent):.1f} ms" for table, spent in seconds.items())
    return f"{text}, ratio {ratio(seconds['a row each'], seconds['one row']):.2g}"


if __name__ == "__main__":
    main()
