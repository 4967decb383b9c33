"""The network for LEAF's Shakespeare on one core: against flax's own LSTM cell, and against PyTorch.

    python benchmarks/lstm.py [--repeats 7]

A client takes three SGD steps on batches of ten texts of 80 characters (`fljax.client.train_clients`, one compiled
program); "flax" is the same with `flax.linen.OptimizedLSTMCell` in `flax.linen.RNN`, "torch" a PyTorch loop with
`torch.nn.LSTM`. Milliseconds of the processor a step; "../fljax" is a side's time over that of fljax, "first" the
seconds to the first result.
"""

import os
import sys
import time
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import linen as nn
from timing import alternate, machine, parser, ratio, seconds_of, with_threads

from fljax import from_linen
from fljax.client import train_clients, training_loss
from fljax.models import lstm
from fljax.types import ClientData, Examples, Model, Work

LENGTH, VOCABULARY, EMBEDDING, WIDTH = 80, 80, 8, 256
BATCH, STEPS, LR = 10, 3, 0.1


class FlaxLSTM(nn.Module):
    """`fljax.models.lstm` by flax's cell."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits of the next character."""
        x = nn.Embed(VOCABULARY, EMBEDDING)(x)
        for _ in range(2):
            x = nn.RNN(nn.OptimizedLSTMCell(WIDTH))(x)
        return nn.Dense(VOCABULARY)(x[:, -1])


class TorchLSTM(torch.nn.Module):
    """The same in PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, EMBEDDING)
        self.lstm = torch.nn.LSTM(EMBEDDING, WIDTH, 2, batch_first=True)
        self.fc = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of the next character."""
        return self.fc(self.lstm(self.embed(x))[0][:, -1])


def client_of() -> ClientData:
    """One client's texts."""
    rng, n = np.random.default_rng(0), STEPS * BATCH
    x, y = (jnp.asarray(rng.integers(VOCABULARY, size=shape), jnp.int32) for shape in ((n, LENGTH), n))
    return ClientData(Examples(x, y), jnp.arange(n, dtype=jnp.int32)[None], jnp.full(1, n, jnp.int32))


def jax_side(model: Model, data: ClientData) -> Any:
    """Compiled: the client's model after its steps."""
    keys, work = jax.random.split(jax.random.key(0), 1), Work(epochs=1, batch_size=BATCH)
    start = jax.jit(jax.vmap(model.init))(keys)

    @jax.jit
    def train(start: Any) -> Any:
        return train_clients(keys, start, data, training_loss(model), optax.sgd(LR), work).params

    return lambda: train(start)


def torch_side(data: ClientData) -> Any:
    """The same steps in PyTorch."""
    model, loss_of = TorchLSTM(), torch.nn.CrossEntropyLoss()
    x, y = (torch.from_numpy(np.array(part)).long() for part in (data.pool.x, data.pool.y))

    def run() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for rows in torch.arange(STEPS * BATCH).split(BATCH):
            optimizer.zero_grad()
            loss_of(model(x[rows]), y[rows]).backward()
            optimizer.step()

    return with_threads(1, run)


def main() -> None:
    """Prints the table."""
    options = parser(__doc__, ("fljax", "flax", "torch"), repeats=7, bars=False).parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX starts as many threads as there are cores
    data = client_of()
    sides = {
        "fljax": jax_side(lstm(), data),
        "flax": jax_side(from_linen(FlaxLSTM(), (LENGTH,), input_dtype=jnp.int32), data),
        "torch": torch_side(data),
    }
    sides = {name: run for name, run in sides.items() if name in ("fljax", *options.only)}
    first = {name: seconds_of(run)[0] for name, run in sides.items()}
    seconds = alternate(sides, options.repeats, time.process_time)
    print(machine(), "(ms of the processor a step)")
    print(f"{'':<8}{'ms':>8}{'../fljax':>10}{'first':>10}")
    for name, own in seconds.items():
        print(f"{name:<8}{1e3 * median(own) / STEPS:8.1f}{ratio(own, seconds['fljax']):10.2f}{first[name]:8.1f} s")


if __name__ == "__main__":
    sys.exit(main())
