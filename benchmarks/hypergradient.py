"""Derivatives of a run by its hyperparameters: `fljax.hypergradient` against a run, and against differences of runs.

    python benchmarks/hypergradient.py [--only mlp cnn] [--repeats 5]

20 clients of the digits, 10 rounds of FedProx. Processor seconds without compilation, in turns: the loss and its
derivatives by lr and mu, and the five runs that central differences of both need.
"""

import statistics
import time

import jax
from timing import alternate, machine, parser, ratio

import fljax

CLIENTS, ROUNDS, WIDTH = 20, 10, 0.01
MODELS = {"mlp": {"hidden": (64,)}, "cnn": {"channels": (8, 16), "hidden": (32,)}}


def main() -> None:
    options = parser(__doc__, tuple(MODELS), repeats=5, bars=False).parse_args()
    print(machine())
    for name in options.only:
        print(f"{name}: {line(name, options.repeats)}", flush=True)


def line(name: str, repeats: int) -> str:
    """A run, the hypergradient, and central differences, in turns."""
    federation = fljax.PARTITIONS["dirichlet"](*fljax.load("digits"), n_clients=CLIENTS, beta=0.3, seed=1)
    model = fljax.MODELS[name](input_shape=(8, 8, 1), n_classes=10, **MODELS[name])
    algorithm, hyper = fljax.fedprox(model, fljax.Work(2, 16)), fljax.fedprox.Hyper(lr=0.05, mu=0.1)
    key = jax.random.key(0)

    def run(**numbers: float) -> jax.Array:
        metrics = fljax.simulate(algorithm, hyper.replace(**numbers), federation, key, ROUNDS, evaluate_every=ROUNDS)[1]
        return metrics["test_loss"][-1]

    def differences() -> list[jax.Array]:
        steps = [{field: (1 + side) * getattr(hyper, field)} for field in ("lr", "mu") for side in (-WIDTH, WIDTH)]
        return [run(), *(run(**numbers) for numbers in steps)]

    def derivatives() -> tuple[jax.Array, dict[str, jax.Array]]:
        return fljax.hypergradient(algorithm, hyper, federation, key, ROUNDS, of=("lr", "mu"))

    sides = {"run": run, "derivatives": derivatives, "runs": differences}
    alternate(sides, 1)  # compiles
    seconds = alternate(sides, repeats, time.process_time)
    parts = ratio(seconds["derivatives"], seconds["run"]), ratio(seconds["derivatives"], seconds["runs"])
    return (
        f"a run {statistics.median(seconds['run']):.2f} s; derivatives {parts[0]:.1f} runs, {parts[1]:.2f} of the five"
    )


if __name__ == "__main__":
    main()
