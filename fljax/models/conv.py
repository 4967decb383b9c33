"""A convolution that is also fast inside loops, and with weights that have a client axis.

XLA's CPU backend runs a convolution at full speed inside a loop only if it is written NHWC x HWIO -> NHWC, unlike
JAX's own gradient of a convolution; a ``vmap`` over the weights makes a grouped convolution, which is slow too. Here
the forward pass and both gradients are written in the fast layout, and their batching rules loop over the clients on a
CPU and multiply matrices on other devices; the environment variable FLJAX_CONV overrides this. The three maps are
bilinear and each other's gradients, so reverse-mode derivatives of any order work.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache, partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap
from jax.experimental.xla_metadata import set_xla_metadata

from fljax.models.conv_forms import forms, forward_matrix
from fljax.models.window import Window

CLIENT_FORMS = ("loop", "matrices", "grouped")
"""Forms of convolution for clients with different kernels: one client after another, image patches and matrix products,
or XLA's grouped convolution, which ``vmap`` makes of a convolution."""


_as_defined = ContextVar("as_defined", default=False)


@contextlib.contextmanager
def as_defined() -> Iterator[None]:
    """A context in which convolutions are traced with the products of their definition, for counting them and for
    forward-mode derivatives.

    The forms that usually run have fewer products (Winograd's) or more (a pooling window's), differ between devices,
    and are faster, but have reverse-mode derivatives only.
    """
    token = _as_defined.set(True)
    try:
        # Keeps JAX's cached traces of jitted functions in this context apart from those that run.
        with set_xla_metadata(convolutions="as_defined"):
            yield
    finally:
        _as_defined.reset(token)


def is_as_defined() -> bool:
    """Whether a convolution is traced inside `as_defined`."""
    return _as_defined.get()


def usual_form() -> str:
    """The form of `CLIENT_FORMS` that is compiled if FLJAX_CONV is not set."""
    return "loop" if jax.default_backend() == "cpu" else "matrices"


def client_form() -> str:
    """The form of `CLIENT_FORMS` that is compiled: FLJAX_CONV if set, else "loop" on a CPU, "matrices" elsewhere.

    The variable is read at tracing, so set it before the first run. `benchmarks/conv.py` and `benchmarks/gpu.py`
    compare the forms.

    Raises:
        ValueError: FLJAX_CONV is none of the forms.
    """
    form = os.environ.get("FLJAX_CONV") or usual_form()
    if form not in CLIENT_FORMS:
        raise ValueError(f"FLJAX_CONV={form!r}: choose one of {', '.join(CLIENT_FORMS)}, or leave it unset")
    return form


def conv(x: Array, kernel: Array, strides: int | Sequence[int] = 1, padding: str | Sequence[tuple[int, int]] = "SAME"):
    """2-D convolution, equal to ``lax.conv_general_dilated`` in NHWC, HWIO.

    ``out[b, h, w, o] = sum_ijc x[b, s h + i - pad, s w + j - pad, c] kernel[i, j, c, o]``

    Args:
        x: (batch, height, width, channels).
        kernel: (kernel height, kernel width, channels, out channels), of x's dtype.
        strides: one for both axes, or (vertical, horizontal).
        padding: "SAME", "VALID", or ((top, bottom), (left, right)), each >= 0.

    Returns:
        (batch, out height, out width, out channels).

    Raises:
        ValueError: the channels of x and kernel differ, a padding or stride is invalid, or the output is empty.
    """
    window = Window.of(x.shape, kernel.shape, strides, padding)
    return forward_matrix(window, x, kernel) if is_as_defined() else _ops(window)[0](x, kernel)


@cache
def _ops(window: Window) -> tuple[Callable, Callable, Callable]:
    """(conv(x, w), input_gradient(w, g), weight_gradient(g, x)) of one window: each is the others' transpose."""
    # The number of the operand with the images; a weight gradient sums over both operands' batches: None.
    maps = [_over_clients(*pair, images) for pair, images in zip(forms(window), (0, 1, None), strict=True)]
    forward, input_gradient, weight_gradient = (_bilinear(maps, turn) for turn in range(3))
    return forward, input_gradient, weight_gradient


def _bilinear(maps: list[Callable], turn: int) -> Callable:
    """The map number `turn` of the cycle, whose gradients are the two after it."""
    op = jax.custom_vjp(lambda a, b: maps[turn](a, b))

    def forward(a, b):
        return op(a, b), (a, b)

    def backward(residuals, ct):
        # The cycle x -> w -> g: map 0 is (x, w) -> g, map 1 is (w, g) -> x, map 2 is (g, x) -> w.
        a, b = residuals
        return _bilinear(maps, (turn + 1) % 3)(b, ct), _bilinear(maps, (turn + 2) % 3)(ct, a)

    op.defvjp(forward, backward)
    return op


def _over_clients(direct: Callable, stacked: Callable, images: int | None) -> Callable:
    """`direct` with a batching rule.

    If only the operand number `images` has a client axis, the clients form one larger batch. Otherwise `client_form`
    chooses: a loop over `direct`, a ``vmap`` of the form `stacked`, or a ``vmap`` of `direct`.
    """
    op = custom_vmap(direct)

    @op.def_vmap
    def _(axis_size, in_batched, *operands):
        if images is not None and not in_batched[1 - images]:
            folded = [
                a.reshape(-1, *a.shape[2:]) if batched else a for batched, a in zip(in_batched, operands, strict=True)
            ]
            out = op(*folded)
            return out.reshape(axis_size, -1, *out.shape[1:]), True
        if (form := client_form()) != "loop":
            axes = tuple(0 if batched else None for batched in in_batched)
            return jax.vmap(stacked if form == "matrices" else direct, axes)(*operands), True
        return lax.map(partial(_row, op, in_batched, operands), jnp.arange(axis_size)), True

    return op


def _row(op: Callable, in_batched: Sequence[bool], operands: Sequence[Array], i: Array) -> Array:
    """`op` of row i of the batched operands."""
    return op(*(jnp.asarray(a)[i] if batched else a for batched, a in zip(in_batched, operands, strict=True)))
