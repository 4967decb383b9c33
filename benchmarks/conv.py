"""A convolution's SGD step per client inside a loop: fljax, XLA's own and PyTorch, alternated in one process.

    python benchmarks/conv.py [--check] [--only 3x3 resnet] [--repeats 5]

10 clients one after another, each with its own weights, two SGD steps each on ``sum(tanh(conv(x, w)))`` in one
compiled program (``lax.map`` over clients, ``lax.scan`` over steps), on one core; a first layer needs no gradient for
its input, the others pass one on. PyTorch, on that core: a loop over clients, autograd, channels_last. "sums" is fljax
with FLJAX_WINOGRAD=0. "native" is ``lax.conv_general_dilated`` with JAX's own gradients in the same program (one
client, one step: it is that slow). The bar: at least twice as fast as native where it is slow, never slower elsewhere;
the columns of PyTorch and sums are to read.
"""

import os
import sys
from functools import partial
from statistics import median
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from timing import alternate, machine, parser, ratio, seconds_of, with_threads

from fljax.models.conv import conv

N_CLIENTS, STEPS = 10, 2


class Layer(NamedTuple):
    """A convolution of some network, with the batch that it is trained on there."""

    batch: int
    side: int
    channels: int
    features: int
    kernel: int
    strides: int = 1
    first: bool = False  # nothing before it needs a gradient
    padding: str = "SAME"
    bar: float = 2.0  # least ratio of native's time to fljax's


LAYERS = {
    "3x3": Layer(50, 16, 32, 64, 3),
    "3x3-large": Layer(50, 30, 32, 64, 3, padding="VALID"),
    "5x5": Layer(32, 14, 16, 32, 5),
    "5x5-wide": Layer(20, 14, 32, 64, 5),
    "3x3-first": Layer(50, 32, 3, 32, 3, first=True),
    "5x5-first": Layer(32, 28, 1, 16, 5, first=True, bar=1.0),
    "lenet": Layer(32, 14, 6, 16, 5, padding="VALID"),
    "pfllib": Layer(10, 12, 32, 64, 5, padding="VALID"),
    "resnet": Layer(20, 16, 128, 128, 3),
    "strided": Layer(20, 32, 64, 128, 3, strides=2),
    "1x1": Layer(20, 16, 64, 128, 1, strides=2, bar=1.0),
}


def native(x: Array, w: Array, strides: int, padding: str) -> Array:
    return lax.conv_general_dilated(x, w, (strides, strides), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def train(layer: Layer, convolve, n_steps: int, x: Array, w: Array) -> tuple[Array, Array]:
    """Each client's weights, and images where they get a gradient, after some SGD steps."""

    def client(x: Array, w: Array) -> tuple[Array, Array]:
        def loss(x: Array, w: Array) -> Array:
            return jnp.tanh(convolve(x, w, layer.strides, layer.padding)).sum()

        def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
            x, w = carry
            if layer.first:
                return (x, w - 1e-3 * jax.grad(loss, 1)(x, w)), None
            dx, dw = jax.grad(loss, (0, 1))(x, w)
            return (x - 1e-3 * dx, w - 1e-3 * dw), None

        return lax.scan(step, (x, w), length=n_steps)[0]

    return lax.map(lambda operands: client(*operands), (x, w))


def torch_train(layer: Layer, x: np.ndarray, w: np.ndarray):
    """The same steps in PyTorch, as a function of nothing."""
    import torch
    from torch.nn import functional
    from torch_models import images

    clients = [(images(a), torch.from_numpy(b.transpose(3, 2, 0, 1).copy())) for a, b in zip(x, w, strict=True)]
    # "SAME" of XLA: where strides leave an odd rest, the larger half of the padding is at the end.
    total = max((-(-layer.side // layer.strides) - 1) * layer.strides + layer.kernel - layer.side, 0)
    pads = (total // 2, total - total // 2) * 2 if layer.padding == "SAME" else (0,) * 4

    def run() -> None:
        for image, kernel in clients:
            x, w = image.clone().requires_grad_(not layer.first), kernel.clone().requires_grad_()
            trained = [w] if layer.first else [x, w]
            for _ in range(STEPS):
                y = functional.conv2d(functional.pad(x, pads), w, stride=layer.strides)
                gradients = torch.autograd.grad(torch.tanh(y).sum(), trained)
                with torch.no_grad():
                    for leaf, gradient in zip(trained, gradients, strict=True):
                        leaf -= 1e-3 * gradient

    return with_threads(1, run)


def measure(name: str, layer: Layer, repeats: int) -> float:
    """Prints one line; returns native's time per step over fljax's."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((N_CLIENTS, layer.batch, layer.side, layer.side, layer.channels), np.float32)
    shape = (N_CLIENTS, layer.kernel, layer.kernel, layer.channels, layer.features)
    w = 0.1 * rng.standard_normal(shape, np.float32)
    ours = partial(jax.jit(partial(train, layer, conv, STEPS)), x, w)
    native_run = partial(jax.jit(partial(train, layer, native, 1)), x[:1], w[:1])
    sums = partial(jax.jit(partial(train, layer, partial(conv), STEPS)), x, w)
    in_torch = torch_train(layer, x, w)
    first = seconds_of(ours)[0]
    with mock.patch.dict(os.environ, FLJAX_WINOGRAD="0"):
        seconds_of(sums)
    seconds_of(native_run)
    seconds_of(in_torch)  # PyTorch's first call chooses kernels and starts threads
    seconds = alternate({"fljax": ours, "sums": sums, "torch": in_torch, "native": native_run}, repeats)
    steps = {side: 1 if side == "native" else N_CLIENTS * STEPS for side in seconds}
    step_seconds = {side: [value / steps[side] for value in values] for side, values in seconds.items()}
    sums_ratio, torch_ratio, native_ratio = (
        ratio(step_seconds[side], step_seconds["fljax"]) for side in ("sums", "torch", "native")
    )
    shape = f"{layer.batch}x{layer.side}x{layer.side}x{layer.channels}->{layer.features}"
    print(
        f"{name:<10}{shape:<19}"
        + "".join(f"{1e3 * median(step_seconds[side]):9.2f}" for side in step_seconds)
        + f"{sums_ratio:11.2f}{torch_ratio:12.2f}{native_ratio:12.2f}{layer.bar:6.1f}{first:9.1f} s",
        flush=True,
    )
    return native_ratio


def main() -> int:
    """Prints the table; 1 if ``--check`` and a ratio is below its bar."""
    arguments = parser(__doc__, LAYERS)
    options = arguments.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX starts as many threads as there are cores
    jax.config.update("jax_num_cpu_devices", 1)
    print(machine(), "(ms per client and step)")
    print(
        f"{'':<29}{'fljax':>9}{'sums':>9}{'torch':>9}{'native':>9}{'sums/..':>11}{'torch/..':>12}{'native/..':>12}{'bar':>6}{'first':>11}"
    )
    below = [name for name in options.only if measure(name, LAYERS[name], options.repeats) < LAYERS[name].bar]
    if below:
        print("below the bar:", ", ".join(below))
    return 1 if options.check and below else 0


if __name__ == "__main__":
    sys.exit(main())
