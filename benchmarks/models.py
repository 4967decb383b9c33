"""Every model trained by ten stacked clients: against one client alone, and against a PyTorch loop.

    python benchmarks/models.py [--check] [--only lenet resnet18] [--repeats 5]

Each client takes two SGD steps on batches of its own (`fljax.client.train_clients`, one compiled program). "stack" is
the time per client in the stack over that of a client alone, both on one device (bar: at most 1.1). "torch" is a plain
loop over the same ten clients in PyTorch (channels_last, the faster of one and all threads) over fljax with the clients
spread over the cores (bar: at least 0.7 for ResNet18 and VGG16).
"""

import os
import sys
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import alternate, fastest, machine, parser, ratio, seconds_of, with_threads

from fljax.client import train_clients, training_loss
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.models import MODELS
from fljax.types import ClientData, Examples, Model, Trained, Work

N_CLIENTS, STEPS, LR = 10, 2, 0.01
STACK_BAR = 1.1


class Case(NamedTuple):
    """A model, the images it sees, and whether PyTorch has a twin of it."""

    shape: tuple[int, int, int]
    batch: int
    n_classes: int = 10
    twin: bool = True
    bar: float = 0.0  # least ratio of PyTorch's time to fljax's


GREY, COLOUR = (28, 28, 1), (32, 32, 3)
CASES = {
    "logistic_regression": Case(GREY, 20),
    "mlp": Case(GREY, 20),
    "mnist_cnn": Case(GREY, 20),
    "femnist_cnn": Case(GREY, 20, 62),
    "lenet": Case(GREY, 32),
    "cnn": Case(COLOUR, 50, twin=False),
    "fedcr_cnn": Case(COLOUR, 50, twin=False),
    "variational_cnn": Case(COLOUR, 50, twin=False),
    "celeba_cnn": Case((84, 84, 3), 10, 2, twin=False),
    "fedbabu_cnn": Case(COLOUR, 50, twin=False),
    "resnet18": Case(COLOUR, 20, bar=0.7),
    "vgg16": Case(COLOUR, 20, bar=0.7),
}


def clients_of(case: Case) -> ClientData:
    """Ten clients of two batches of noise each."""
    rng = np.random.default_rng(0)
    size = STEPS * case.batch
    n = N_CLIENTS * size
    x = jnp.asarray(rng.standard_normal((n, *case.shape), np.float32))
    pool = Examples(x, jnp.asarray(rng.integers(0, case.n_classes, n), jnp.int32))
    return ClientData(pool, jnp.arange(n, dtype=jnp.int32).reshape(N_CLIENTS, size), jnp.full(N_CLIENTS, size))


def training(model: Model, case: Case):
    """Compiled: (keys, models, data) -> the models after two steps."""
    work = Work(epochs=1, batch_size=case.batch)

    @jax.jit
    def train(key: jax.Array, start: Any, data: ClientData) -> Trained:
        return train_clients(key, start, data, training_loss(model), optax.sgd(LR), work)

    return train


def torch_loop(name: str, case: Case, data: ClientData):
    """The same work as a PyTorch loop."""
    import torch
    from torch_models import images, network

    model = network(name, case.shape[-1], case.shape[0])
    start = [p.detach().clone() for p in model.parameters()]
    x, y = images(np.asarray(data.pool.x)), torch.from_numpy(np.array(data.pool.y)).long()
    loss_of = torch.nn.CrossEntropyLoss()

    def run() -> None:
        for rows in np.asarray(data.index):
            with torch.no_grad():
                for p, value in zip(model.parameters(), start, strict=True):
                    p.copy_(value)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for batch in torch.from_numpy(rows.copy()).long().split(case.batch):
                optimizer.zero_grad()
                loss_of(model(x[batch]), y[batch]).backward()
                optimizer.step()

    return run


def measure(name: str, case: Case, repeats: int) -> list[str]:
    """Prints one line; returns the bars that were missed."""
    model = MODELS[name](input_shape=case.shape, n_classes=case.n_classes)
    data, keys = clients_of(case), jax.random.split(jax.random.key(0), N_CLIENTS)
    start = jax.jit(jax.vmap(model.init))(keys)
    train, alone = training(model, case), training(model, case)
    single = (
        keys[:1],
        jax.tree.map(lambda leaf: leaf[:1], start),
        data._replace(index=data.index[:1], size=data.size[:1]),
    )
    with over_devices() as mesh:
        spread = replicated((keys, start, data), mesh)

    def over_cores() -> Any:
        with over_devices():
            return train(*spread)

    sides = {"alone": lambda: alone(*single), "stack": lambda: alone(keys, start, data), "fljax": over_cores}
    first = [seconds_of(run)[0] for run in sides.values()][-1]
    if case.twin:
        loop = torch_loop(name, case, data)
        loop()
        sides |= {f"torch {n}": with_threads(n, loop) for n in {1, len(os.sched_getaffinity(0))}}
    seconds = alternate(sides, repeats)
    stack = ratio(seconds["stack"], seconds["alone"]) / N_CLIENTS
    line = f"{name:<21}{1e3 * median(seconds['fljax']) / N_CLIENTS / STEPS:10.2f}{stack:8.2f}{STACK_BAR:6.1f}"
    missed = [f"{name}: stack {stack:.2f}"] if stack > STACK_BAR else []
    if case.twin:
        best = fastest(seconds, *(side for side in sides if side.startswith("torch")))
        torch_ratio = ratio(best, seconds["fljax"])
        missed += [f"{name}: torch {torch_ratio:.2f}"] if torch_ratio < case.bar else []
        line += f"{1e3 * median(best) / N_CLIENTS / STEPS:10.2f}{torch_ratio:8.2f}{case.bar:6.1f}"
    else:
        line += f"{'-':>10}{'-':>8}{'-':>6}"
    print(f"{line}{first:8.1f} s", flush=True)
    return missed


def main() -> int:
    """Prints the table; 1 if ``--check`` and a bar is missed."""
    arguments = parser(__doc__, CASES)
    options = arguments.parse_args()
    use_all_cores()
    print(machine(), "(ms per client and step)")
    print(f"{'model':<21}{'fljax':>10}{'stack':>8}{'bar':>6}{'torch':>10}{'ratio':>8}{'bar':>6}{'first':>10}")
    missed = [bar for name in options.only for bar in measure(name, CASES[name], options.repeats)]
    if missed:
        print("missed:", "; ".join(missed))
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
