"""The network for LEAF's Shakespeare on one core or an accelerator: against flax's own LSTM cell, and against PyTorch.

    python benchmarks/lstm.py [--repeats 7] [--clients 10]

Every client takes three SGD steps on batches of ten texts of 80 characters (`fljax.client.train_clients`, one compiled
program); "flax" is the same with `flax.linen.OptimizedLSTMCell` in `flax.linen.RNN`, "torch" a PyTorch loop with
`torch.nn.LSTM`, one client after another. Milliseconds a client's step, of the processor on a CPU, by the wall on an
accelerator; "../fljax" is a side's time over that of fljax, "first" the seconds to the first result.
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
from timing import alternate, count, machine, parser, ratio, seconds_of, with_threads

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


def texts_of(n_clients: int) -> ClientData:
    """The clients' texts."""
    rng, n = np.random.default_rng(0), n_clients * STEPS * BATCH
    x, y = (jnp.asarray(rng.integers(VOCABULARY, size=shape), jnp.int32) for shape in ((n, LENGTH), n))
    rows = jnp.arange(n, dtype=jnp.int32).reshape(n_clients, -1)
    return ClientData(Examples(x, y), rows, jnp.full(n_clients, rows.shape[1], jnp.int32))


def jax_side(model: Model, data: ClientData) -> Any:
    """Compiled: the clients' models after their steps."""
    keys, work = jax.random.split(jax.random.key(0), len(data.size)), Work(epochs=1, batch_size=BATCH)
    start = jax.jit(jax.vmap(model.init))(keys)

    @jax.jit
    def train(start: Any) -> Any:
        return train_clients(keys, start, data, training_loss(model), optax.sgd(LR), work).params

    return lambda: train(start)


def torch_side(data: ClientData) -> Any:
    """The same steps in PyTorch."""
    device = "cpu" if jax.default_backend() == "cpu" else "cuda"
    model, loss_of = TorchLSTM().to(device), torch.nn.CrossEntropyLoss()
    x, y = (torch.from_numpy(np.array(part)).long().to(device) for part in (data.pool.x, data.pool.y))
    first = {name: value.clone() for name, value in model.state_dict().items()}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as JAX does

    def run() -> None:
        for client_rows in torch.arange(len(y), device=device).split(STEPS * BATCH):
            model.load_state_dict(first)
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for rows in client_rows.split(BATCH):
                optimizer.zero_grad()
                loss_of(model(x[rows]), y[rows]).backward()
                optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return with_threads(1, run)


def main() -> None:
    """Prints the table."""
    arguments = parser(__doc__, ("fljax", "flax", "torch"), repeats=7, bars=False)
    arguments.add_argument("--clients", type=count, default=1)
    options = arguments.parse_args()
    if not torch.cuda.is_available():  # before JAX starts as many threads as there are cores
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    data, is_cpu = texts_of(options.clients), jax.default_backend() == "cpu"
    sides = {
        "fljax": jax_side(lstm(), data),
        "flax": jax_side(from_linen(FlaxLSTM(), (LENGTH,), input_dtype=jnp.int32), data),
        "torch": torch_side(data),
    }
    sides = {name: run for name, run in sides.items() if name in ("fljax", *options.only)}
    first = {name: seconds_of(run)[0] for name, run in sides.items()}
    seconds = alternate(sides, options.repeats, time.process_time if is_cpu else time.perf_counter)
    print(f"{machine()}, {options.clients} clients (ms {'of the processor ' * is_cpu}a client's step)")
    print(f"{'':<8}{'ms':>8}{'../fljax':>10}{'first':>10}")
    for name, side_seconds in seconds.items():
        ms = 1e3 * median(side_seconds) / STEPS / options.clients
        print(f"{name:<8}{ms:8.2f}{ratio(side_seconds, seconds['fljax']):10.2f}{first[name]:8.1f} s")


if __name__ == "__main__":
    sys.exit(main())
