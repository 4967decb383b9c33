"""What the rounds of a workload need at least, counted from its definition: FLOPs, and bytes read and written.

FLOPs are those of the products alone: 2 a multiply-add, forward, weight gradient and, but for the first layer, input
gradient; a kernel's entries that fall on the padding do not count. IFCA's K losses are K passes forward, Ditto trains
twice.

Bytes are float32's and leave out activations, gradients and what is read again. Parameters: a step reads and writes
each once, and reads those that Ditto pulls towards; K losses read K models a participant; the mean adds a participant's
model to a sum, which is read and written. Examples: a training, and all K losses together, read every image and label
once.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np
from peers.work import Workload, kernel_shapes


class Layer(NamedTuple):
    """One layer of a network."""

    name: str
    kernel: tuple[int, ...]  # HWIO of a convolution, (in, out) of a dense layer
    side: int = 1  # of its input
    padding: str = "VALID"
    pool: bool = False  # a 2x2 maximum after it
    dropout: float = 0.0  # rate of what is dropped after that
    first: bool = False  # nothing before it needs a gradient

    @property
    def forward(self) -> float:
        """FLOPs of an example."""
        if len(self.kernel) == 2:
            return 2.0 * prod(self.kernel)
        k = self.kernel[0]
        # Pairs of an output's place and a kernel's entry on one axis, without those outside the image.
        pairs = (self.side - k + 1) * k if self.padding == "VALID" else self.side * k - (k // 2) * (k // 2 + 1)
        return 2.0 * pairs**2 * prod(self.kernel[2:])

    @property
    def training(self) -> float:
        """FLOPs of an example, both gradients included."""
        return self.forward * (2 if self.first else 3)


def layers_of(workload: Workload) -> Iterator[Layer]:
    """In forward order."""
    side, is_valid = workload.shape[0], workload.model == "dropout_cnn"
    for place, kernel in enumerate(kernel_shapes(workload), start=1):
        first, dropout = place == 1, {2: 0.25, 3: 0.5}.get(place, 0.0) if is_valid else 0.0
        if len(kernel) == 2:
            yield Layer(f"dense {kernel[0]}-{kernel[1]}", kernel, dropout=dropout, first=first)
            continue
        name = f"convolution {kernel[0]}x{kernel[1]} {kernel[2]}-{kernel[3]}"
        pool = place == 2 or not is_valid
        yield Layer(name, kernel, side, "VALID" if is_valid else "SAME", pool, dropout, first)
        side = (side - kernel[0] + 1 if is_valid else side) // (2 if pool else 1)


def n_parameters(workload: Workload) -> int:
    """Scalars of the network."""
    return sum(prod(kernel) + kernel[-1] for kernel in kernel_shapes(workload))


def n_trainings(workload: Workload) -> int:
    """Models that a participant trains."""
    return 2 if workload.method == "ditto" else 1


def n_losses(workload: Workload) -> int:
    """Models whose loss a participant takes before it trains."""
    return workload.n_models if workload.method == "ifca" else 0


def n_steps(workload: Workload, sizes: np.ndarray) -> int:
    """Steps of all participations of one model's training."""
    return int((-(-sizes // workload.batch)).sum())


class Needs(NamedTuple):
    """What some rounds need."""

    flops: float
    parameter_bytes: float
    example_bytes: float


def needs(workload: Workload, sizes: np.ndarray) -> Needs:
    """What participations of clients with ``sizes`` examples need; ``sizes`` may have any shape."""
    w, layers = workload, list(layers_of(workload))
    trainings, losses, pulled = n_trainings(w), n_losses(w), w.method == "ditto"
    training, forward = sum(layer.training for layer in layers), sum(layer.forward for layer in layers)
    touched = (2 * trainings + pulled) * n_steps(w, sizes) + (losses + 2) * sizes.size
    read = (trainings + (losses > 0)) * sizes.sum()
    return Needs(
        float(sizes.sum()) * (trainings * training + losses * forward),
        4.0 * n_parameters(w) * touched,
        4.0 * (prod(w.shape) + 1) * float(read),
    )
