"""Convolutions whose kernels carry a client axis: XLA's grouped one, columns, and what lays out less than columns."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from accelerator.bench import PRECISIONS, REPEATS, Bench, dtype_of, precisely
from accelerator.table import Row, not_measured, row
from timing import alternate, ratio

from fljax.models import conv_forms
from fljax.models.conv import conv

# `fljax.models.conv.CLIENT_FORMS`, but for a loop over clients, which leaves the device idle; and "columns", matrices
# that are always products of columns.
FORMS = ("grouped", "columns", "matrices")
SHAPES = {  # side, channels, features, kernel
    "28x28x1-32, 5x5": (28, 1, 32, 5),
    "14x14x32-64, 5x5": (14, 32, 64, 5),
    "32x32x3-32, 3x3": (32, 3, 32, 3),
    "16x16x128-128, 3x3": (16, 128, 128, 3),
}


def convolutions(bench: Bench) -> Iterator[Row]:
    """The forms, value and gradients; which wins, and where that is not the default."""
    cases = [(name, precision) for precision in PRECISIONS for name in SHAPES]
    traced = [bench.attempt(partial(lowered, bench, *case, form)) for case in cases for form in FORMS]
    programs = iter(bench.compile(partial(_compiled, program) for program in traced))
    lost_cases, n_unknown = [], 0
    for name, precision in cases:
        what = f"conv {name}, {precision}, best other form / matrices"
        draw = partial(operands, bench.size.clients, name, precision)  # drawn in the attempt: not when it is too late
        job = partial(compared, what, draw, [next(programs) for _ in FORMS])
        line = bench.line(what, "ratio", job)
        yield line
        lost_cases += [f"{name}, {precision}"] if line["value"] < 1 else []
        n_unknown += math.isnan(line["value"])
    what, unit = "conv, where matrices lose", f"of {len(cases)}"
    yield (
        not_measured(what, unit, f"{n_unknown} of them")
        if n_unknown
        else row(what, len(lost_cases), unit, "; ".join(lost_cases))
    )


def lowered(bench: Bench, name: str, precision: str, form: str) -> Any:
    """The gradients of every client's images and kernels, traced. Not in threads: the form is the process's."""

    def value(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(conv(x, w)).sum(dtype=jnp.float32)

    gradients = jax.jit(jax.vmap(jax.grad(value, (0, 1))))
    with precisely(precision), formed(form):
        return gradients.lower(*operands(bench.size.clients, name, precision))


def formed(form: str) -> ExitStack:
    """Functions are traced with a form of `FORMS`."""
    stack = ExitStack()
    stack.enter_context(mock.patch.dict(os.environ, FLJAX_CONV="matrices" if form == "columns" else form))
    if form == "columns":
        stack.enter_context(mock.patch.object(conv_forms, "_halves_pay", return_value=False))
    return stack


def _compiled(traced: Any) -> Callable | str:
    return traced if isinstance(traced, str) else traced.compile()


def compared(what: str, draw: Callable[[], tuple[jax.Array, jax.Array]], programs: list[Any]) -> Row | str:
    """How much slower than matrices the best of the others is; or why one could not be compiled."""
    for program in programs:
        if isinstance(program, str):
            return program
    arrays = draw()
    sides = {form: partial(program, *arrays) for form, program in zip(FORMS, programs, strict=True)}
    alternate(sides, 1)
    seconds = alternate(sides, REPEATS)
    ms = [f"{form} {1e3 * median(seconds[form]):.3g} ms" for form in FORMS]
    value = min(ratio(seconds[form], seconds["matrices"]) for form in FORMS if form != "matrices")
    return row(what, value, "ratio", ", ".join(ms))


def operands(n_clients: int, name: str, precision: str) -> tuple[jax.Array, jax.Array]:
    """(images, kernels) of every client."""
    side, channels, features, kernel = SHAPES[name]
    key_x, key_w = jax.random.split(jax.random.key(0))
    x = jax.random.normal(key_x, (n_clients, 20, side, side, channels), dtype_of(precision))
    return x, jax.random.normal(key_w, (n_clients, kernel, kernel, channels, features), dtype_of(precision))
