"""Tests of methods that tune the last layer first: features taken once against features taken in every step.

    python benchmarks/head_tuning.py [--only cnn mlp] [--repeats 7]

Twelve clients of 40 digits, drawn twice as large, batches of 10, ten epochs on the last layer. Processor seconds of the
tuning, both compiled at "full", in turns; and the largest difference between the models that come out.
"""

import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from timing import alternate, machine, parser, ratio

import fljax
from fljax import tree
from fljax.client import training_loss
from fljax.rounds import TunedHyper, head_tuned, tuned
from fljax.run.one_round import as_traced
from fljax.types import Examples, Model

SHAPE, CLASSES, CLIENTS = (16, 16, 1), 10, 12
MODELS = {
    "mlp": partial(fljax.MODELS["mlp"], SHAPE, n_classes=CLASSES, hidden=(64,)),
    "cnn": partial(
        fljax.MODELS["cnn"], SHAPE, CLASSES, (8, 16), 5, padding="SAME", pool="each", hidden=(64,), dropout=(0.0, 0.0)
    ),
}


def main() -> None:
    options = parser(__doc__, MODELS, repeats=7, bars=False).parse_args()
    print(machine())
    for name in options.only:
        print(f"{name}: {line(MODELS[name](), options.repeats)}", flush=True)


def line(model: Model, repeats: int) -> str:
    """Both ways in turns."""
    train, test = (enlarged(split, n) for split, n in zip(fljax.load("digits"), (480, 120), strict=True))
    data = fljax.PARTITIONS["iid"](train, test, n_clients=CLIENTS).train
    work, epochs, key, numbers = fljax.Work(1, 10), 10, jax.random.key(0), as_traced(TunedHyper(lr=0.05))
    params = model.init(key)

    def deploy(*_):
        return tree.everyone(params, CLIENTS)

    ways = {
        "in every step": tuned(deploy, training_loss(model), work, epochs, model.layers[:-1]),
        "once": head_tuned(deploy, model, work, epochs),
    }
    sides = {way: partial(jax.jit(deploy_way), key, numbers, None, data) for way, deploy_way in ways.items()}
    results = [jax.block_until_ready(run().params) for run in sides.values()]
    difference = max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, results), strict=True))
    seconds = alternate(sides, repeats, time.process_time)
    text = ", ".join(f"{way} {1e3 * statistics.median(spent):.1f} ms" for way, spent in seconds.items())
    return f"{text}, ratio {ratio(seconds['in every step'], seconds['once']):.1f}, difference {difference:.1g}"


def enlarged(split: Examples, n: int) -> Examples:
    """The first ``n`` images, each pixel four times."""
    return Examples(np.kron(np.asarray(split.x[:n]), np.ones((1, 2, 2, 1), np.uint8)), split.y[:n])


if __name__ == "__main__":
    main()
