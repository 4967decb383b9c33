"""Steady rounds per second of FedAvg against a plain PyTorch loop over the same clients, alternated in one process.

    python benchmarks/rounds_per_second.py --against torch [--check] [--only mlp cnn]

100 clients, 10 a round, 100 examples each (ragged: log-normal sizes 20 to 400), 28x28x1 images in 10 classes, batch 20,
one local epoch, SGD 0.05. Compilation is timed apart; every figure is the median of `--repeats` alternations. PyTorch
runs with one and with all threads, and the faster of the two counts. Both sides get the same examples, and their
accuracies after the same number of rounds are printed: they must agree up to the order of batches. "useful" is the
share of the executed local steps that clients need, over all clients at once: the rest is waiting for longer ones.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from timing import alternate, fastest, machine, ratio, with_threads

from fljax.run.mesh import over_devices, replicated, use_all_cores
from fljax.types import Params


class Side(NamedTuple):
    """One of the two that are compared."""

    run: Callable[[int], None]  # runs so many rounds
    accuracy: Callable[[], float]  # of the model so far
    useful: float = 1.0  # local steps needed over local steps executed


class Workload(NamedTuple):
    """One row of the table."""

    model: str  # of fljax.models.MODELS
    ragged: bool
    rounds: int  # a timed sample
    bar: float  # least ratio of fljax's rate to PyTorch's


WORKLOADS = {
    "logreg": Workload("logistic_regression", False, 40, 6.0),
    "mlp": Workload("mlp", False, 20, 2.5),
    "ragged-mlp": Workload("mlp", True, 20, 2.0),
    "cnn": Workload("mnist_cnn", False, 4, 0.8),
}
N_CLIENTS, COHORT, BATCH, LR = 100, 10, 20, 0.05


def make_data(ragged: bool, n_clients: int = N_CLIENTS, samples: int = 100, seed: int = 0) -> tuple[list, tuple]:
    """([(x, y) of each client], (x, y) for test): noisy class prototypes with Dirichlet(0.5) label skew."""
    rng = np.random.default_rng(seed)
    prototype = rng.standard_normal((10, 28, 28, 1), np.float32)

    def make(n: int, probability: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice(10, size=n, p=probability).astype(np.int32)
        return 0.35 * prototype[y] + rng.standard_normal((n, 28, 28, 1), np.float32), y

    sizes = np.full(n_clients, samples)
    if ragged:
        sizes = np.clip(np.exp(0.8 * rng.standard_normal(n_clients) + np.log(0.75 * samples)), 20, 400).astype(int)
    probability = rng.dirichlet(np.full(10, 0.5), size=n_clients)
    return [make(n, p) for n, p in zip(sizes, probability, strict=True)], make(2000, np.full(10, 0.1))


def fljax_side(workload: Workload, clients: list, test: tuple) -> tuple[Side, Params]:
    """(run so many rounds, accuracy so far, the initial model)."""
    import jax.numpy as jnp

    from fljax.algorithms.fedavg import FedAvgHyper, fedavg
    from fljax.client import client_sums, predictor
    from fljax.client.local import useful_steps
    from fljax.data.federation import build
    from fljax.models import MODELS
    from fljax.run.simulate import as_traced, split_key
    from fljax.run.train import run_chunk
    from fljax.tree import everyone
    from fljax.types import ClientData, Examples, Work

    x = np.concatenate([x for x, _ in clients] + [test[0]])
    y = np.concatenate([y for _, y in clients] + [test[1]])
    ends = np.cumsum([len(y) for _, y in clients])
    owned = np.split(np.arange(ends[-1]), ends[:-1])
    federation = build(Examples(x, y), owned, (1.0, 0.0, 0.0), test_owned=[np.arange(1) for _ in clients])
    model = MODELS[workload.model](input_shape=(28, 28, 1), n_classes=10)
    work = Work(epochs=1, batch_size=BATCH)
    algorithm = fedavg(model, work)
    with over_devices() as mesh:
        federation, hyper = replicated((federation, as_traced(FedAvgHyper(lr=LR))), mesh)
        key = replicated(jax.random.key(0), mesh)
        state = replicated(algorithm.init(split_key(key).init, hyper, federation.train), mesh)
        useful = float(jax.jit(partial(useful_steps, work=work))(federation.train))
    start = jax.device_get(state.server)
    carried = {"state": state, "round": 0}

    def run(n_rounds: int) -> None:
        never = jnp.int32(2**30)
        with over_devices():
            first, count = jnp.int32(carried["round"]), jnp.int32(n_rounds)
            arguments = (hyper, federation, key, None, never, never, carried["state"], first, count)
            state, _ = jax.block_until_ready(run_chunk(algorithm, COHORT, 64, *arguments))
        carried.update(state=state, round=carried["round"] + n_rounds)

    def accuracy() -> float:
        rows = jnp.arange(ends[-1], len(y), dtype=jnp.int32)[None]
        pool = jax.device_get(federation.train.pool)
        data = ClientData(jax.tree.map(jnp.asarray, pool), rows, jnp.full(1, len(y) - ends[-1], jnp.int32))
        hit = lambda p, b: (predictor(model)(p, b.x).argmax(-1) == b.y).astype("float32")[:, None]  # noqa: E731
        theta = jax.device_get(carried["state"].server)
        return float(client_sums(hit, everyone(jax.tree.map(jnp.asarray, theta), 1), data)[0, 0]) / len(test[1])

    return Side(run, accuracy, useful), start


def torch_side(workload: Workload, clients: list, test: tuple, start: Params) -> Side:
    """The loop that a researcher writes first: clients one after another, one model reused, channels_last."""
    import torch
    from torch import nn
    from torch_models import copy_parameters, images, network

    torch.manual_seed(0)
    model = network(workload.model)
    copy_parameters(model, start, sorted(start))

    data = [(images(x), torch.from_numpy(y).long()) for x, y in clients]
    parameters, loss_of, rng = list(model.parameters()), nn.CrossEntropyLoss(), np.random.default_rng(0)
    shared = [p.detach().clone() for p in parameters]

    def train_client(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer = torch.optim.SGD(parameters, lr=LR)
        order = torch.randperm(len(y))
        for begin in range(0, len(y), BATCH):
            rows = order[begin : begin + BATCH]
            optimizer.zero_grad()
            loss_of(model(x[rows]), y[rows]).backward()
            optimizer.step()

    def load(values: list) -> None:
        with torch.no_grad():
            for p, value in zip(parameters, values, strict=True):
                p.copy_(value)

    def run(n_rounds: int) -> None:
        nonlocal shared
        for _ in range(n_rounds):
            total, n_examples = [torch.zeros_like(p) for p in shared], 0
            for client in rng.choice(len(data), COHORT, replace=False):
                load(shared)
                train_client(*data[client])
                n_examples += len(data[client][1])
                for t, p in zip(total, parameters, strict=True):
                    t.add_(p.detach(), alpha=len(data[client][1]))
            shared = [t / n_examples for t in total]

    def accuracy() -> float:
        load(shared)
        with torch.no_grad():
            return float((model(images(test[0])).argmax(1).numpy() == test[1]).mean())

    return Side(run, accuracy)


def measure(name: str, workload: Workload, repeats: int) -> dict:
    """One row: rates of both sides, their ratio, first-call time and accuracies."""
    clients, test = make_data(workload.ragged)
    ours, start = fljax_side(workload, clients, test)
    theirs = torch_side(workload, clients, test, start)
    began = time.perf_counter()
    ours.run(workload.rounds)
    first = time.perf_counter() - began
    n_cores = len(os.sched_getaffinity(0))
    sides = {"fljax": partial(ours.run, workload.rounds)}
    sides |= {f"torch {n}": with_threads(n, partial(theirs.run, workload.rounds)) for n in {1, n_cores}}
    seconds = alternate(sides, repeats)
    best = fastest(seconds, *(name for name in sides if name != "fljax"))
    ours.run(workload.rounds * (repeats - 1))  # as many rounds as the other side has done
    return {
        "workload": name,
        "fljax": workload.rounds / statistics.median(seconds["fljax"]),
        "torch": workload.rounds / statistics.median(best),
        "ratio": ratio(best, seconds["fljax"]),
        "bar": workload.bar,
        "useful": ours.useful,
        "first": first,
        "accuracy": (ours.accuracy(), theirs.accuracy()),
    }


def main() -> int:
    """Prints the table; 1 if ``--check`` and a ratio is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=["torch"], default="torch")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="exit with 1 when a ratio is below its bar")
    options = parser.parse_args()
    use_all_cores()
    print(machine())
    print(
        f"{'workload':<12}{'fljax/s':>9}{'torch/s':>9}{'ratio':>7}{'bar':>6}{'useful':>8}{'first call':>12}"
        "  accuracy fljax, torch"
    )
    below = []
    for name in options.only:
        row = measure(name, WORKLOADS[name], options.repeats)
        below += [name] if row["ratio"] < row["bar"] else []
        print(
            f"{row['workload']:<12}{row['fljax']:9.1f}{row['torch']:9.1f}{row['ratio']:7.2f}{row['bar']:6.1f}{row['useful']:8.2f}"
            f"{row['first']:11.1f}s  {row['accuracy'][0]:.3f}, {row['accuracy'][1]:.3f}",
            flush=True,
        )
    if below:
        print("below the bar:", ", ".join(below))
    return 1 if options.check and below else 0


if __name__ == "__main__":
    sys.exit(main())
