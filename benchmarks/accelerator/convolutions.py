"""Convolutions whose kernels carry a client axis: XLA's grouped one against patches and matrix products."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from accelerator.bench import PRECISIONS, REPEATS, Bench, dtype_of, precisely
from accelerator.table import Row, row
from jax import lax
from timing import alternate, ratio

from fljax.models.conv import conv


def grouped(x: jax.Array, w: jax.Array) -> jax.Array:
    """XLA's convolution: under vmap over the kernels a grouped one."""
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


FORMS = {"grouped": grouped, "patches": conv}
SHAPES = {  # side, channels, features, kernel
    "28x28x1-32, 5x5": (28, 1, 32, 5),
    "14x14x32-64, 5x5": (14, 32, 64, 5),
    "32x32x3-32, 3x3": (32, 3, 32, 3),
    "16x16x128-128, 3x3": (16, 128, 128, 3),
}


def convolutions(bench: Bench) -> Iterator[Row]:
    """Both ways to convolve under a client axis, value and gradients, and which wins."""

    def ready(name: str, precision: str, form: str) -> Any:
        with precisely(precision):
            return gradients(FORMS[form]).lower(*operands(bench.size.clients, name, precision)).compile()

    cases = [(name, precision) for precision in PRECISIONS for name in SHAPES]
    programs = iter(bench.compile(partial(ready, *case, form) for case in cases for form in FORMS))
    lost = []
    for name, precision in cases:
        what = f"conv {name}, {precision}, grouped / patches"
        job = partial(compared, what, operands(bench.size.clients, name, precision), [next(programs) for _ in FORMS])
        line = bench.line(what, "ratio", job)
        yield line
        lost += [f"{name}, {precision}"] if line["value"] < 1 else []
    yield row("conv, where the default form, patches, loses", len(lost), f"of {len(cases)}", "; ".join(lost))


def compared(what: str, given: tuple[jax.Array, jax.Array], programs: list[Any]) -> Row | str:
    """Which of the forms wins; or why one could not be compiled."""
    for program in programs:
        if isinstance(program, str):
            return program
    sides = {form: partial(program, *given) for form, program in zip(FORMS, programs, strict=True)}
    alternate(sides, 1)
    seconds = alternate(sides, REPEATS)
    ms = {form: 1e3 * median(seconds[form]) for form in FORMS}
    value = ratio(seconds["grouped"], seconds["patches"])
    winner = "patches" if value >= 1 else "grouped"
    return row(what, value, "ratio", f"{winner} wins: grouped {ms['grouped']:.3g} ms, patches {ms['patches']:.3g} ms")


def operands(n_clients: int, name: str, precision: str) -> tuple[jax.Array, jax.Array]:
    """(images, kernels) of every client."""
    side, channels, features, kernel = SHAPES[name]
    key_x, key_w = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key_x, (n_clients, 20, side, side, channels), dtype_of(precision))
    return x, jax.random.normal(key_w, (n_clients, kernel, kernel, channels, features), dtype_of(precision))


def gradients(convolve: Callable) -> Any:
    """Compiled when called: the gradients of every client's images and kernels."""

    def value(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(convolve(x, w)).sum(dtype=jnp.float32)

    return jax.jit(jax.vmap(jax.grad(value, (0, 1))))
