"""Seconds of an iteration of PFLlib's Fashion-MNIST table: fljax's methods beside a PyTorch loop of FedAvg, in turns.

    python benchmarks/pfllib_iteration.py [--only FedAvg FedPer] [--part 16] [--repeats 5]

An iteration is that of `experiments/pfllib.py`: 20 clients of two labels train in batches of 10, as many epochs as the
method does there (FedAvg one), and are tested on their own quarter. Of one image in ``--part``, so that a sample takes
seconds. Both sides start from PyTorch's initial weights; the loop is what one writes first, a client after another with
one model. It runs with one thread and with all, and the faster counts. Compilation is the first call's and stands
apart. FLJAX_DATA names the data's folder.
"""

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from timing import alternate, count, fastest, machine, parser, ratio, with_threads
from torch import nn
from torch_models import images

import fljax
from fljax.devices.mesh import over_devices, replicated, use_all_cores
from fljax.types import ClientData, Federation

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import pfllib

LEAST = 2 * pfllib.N_CLIENTS // pfllib.N_CLASSES * (4 * pfllib.BATCH_SIZE // pfllib.N_CLASSES + 1)
"""Images of a class without which `pfllib.two_labels` cannot cut it into pieces of random sizes."""


class Loop:
    """FedAvg, client after client."""

    def __init__(self, federation: Federation) -> None:
        torch.manual_seed(0)
        self.train, self.test = ([*self.examples_of(data)] for data in (federation.train, federation.test))
        self.model = nn.Sequential(
            *(nn.Conv2d(1, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, pfllib.N_CLASSES)),
        ).to(memory_format=torch.channels_last)
        self.accuracy = 0.0

    @staticmethod
    def examples_of(data: ClientData):
        """Each client's images in [-1, 1] and labels."""
        for index, size in zip(np.asarray(data.index), np.asarray(data.size), strict=True):
            rows = index[:size]
            x, y = np.asarray(data.pool.x)[rows], np.asarray(data.pool.y)[rows]
            yield images((x / 127.5 - 1).astype(np.float32)), torch.from_numpy(y).long()

    def run(self) -> None:
        """An iteration: everyone trains, the mean by sizes, everyone is tested."""
        start = [p.detach().clone() for p in self.model.parameters()]
        mean = [torch.zeros_like(p) for p in start]
        total = sum(len(y) for _, y in self.train)
        for x, y in self.train:
            self.load(start)
            optimizer = torch.optim.SGD(self.model.parameters(), lr=pfllib.LR)
            for rows in torch.randperm(len(y)).split(pfllib.BATCH_SIZE):
                optimizer.zero_grad()
                nn.functional.cross_entropy(self.model(x[rows]), y[rows]).backward()
                optimizer.step()
            for sum_, p in zip(mean, self.model.parameters(), strict=True):
                sum_.add_(p.detach(), alpha=len(y) / total)
        self.load(mean)
        with torch.no_grad():
            right = sum(int((self.model(x).argmax(1) == y).sum()) for x, y in self.test)
        self.accuracy = right / sum(len(y) for _, y in self.test)

    def load(self, values: list[torch.Tensor]) -> None:
        """Puts values into the one model."""
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), values, strict=True):
                p.copy_(value)


def main() -> int:
    command_line = parser(__doc__, pfllib.METHODS, bars=False)
    command_line.add_argument("--part", type=count, default=16, help="one image in so many")
    command_line.set_defaults(only=["FedAvg"])
    options = command_line.parse_args()
    if (fewest := np.bincount(pfllib.everything(options.part).y, minlength=pfllib.N_CLASSES).min()) < LEAST:
        command_line.error(
            f"--part {options.part}: a class has {fewest} images and needs {LEAST}; choose a smaller one"
        )
    use_all_cores()
    print(f"{machine()}, torch {torch.__version__}, one image in {options.part}")
    federation = pfllib.federation(pfllib.SETTINGS[0], options.part)
    loop, cores = Loop(federation), len(os.sched_getaffinity(0))
    loops = {f"torch {n}": with_threads(n, loop.run) for n in {1, cores}}
    alternate(loops, 1)  # PyTorch's first call imports and starts threads
    for method in options.only:
        algorithm, hyper = pfllib.chosen(method)
        with over_devices() as mesh:
            placed = replicated((hyper, federation, jax.random.key(0)), mesh)

        def ours(algorithm: fljax.Algorithm = algorithm, placed: Any = placed) -> None:
            with over_devices():
                jax.block_until_ready(fljax.simulate(algorithm, *placed, n_rounds=1))

        began = time.perf_counter()
        ours()
        first = time.perf_counter() - began
        seconds = alternate({"fljax": ours} | loops, options.repeats)
        best = fastest(seconds, *loops)
        our_seconds, torch_seconds = statistics.median(seconds["fljax"]), statistics.median(best)
        print(
            f"{method}: {our_seconds:.2f} s an iteration, PyTorch's FedAvg {torch_seconds:.2f} s,"
            f" {ratio(best, seconds['fljax']):.2f} times as fast; first call {first:.1f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
