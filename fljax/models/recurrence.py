"""The recurrence of an LSTM; its backward pass sums the kernel's gradient over all steps at once.

The automatic derivative of a scan adds to the kernel's gradient in each step, which for a small batch costs more memory
traffic than arithmetic. Here the gradients of all steps are multiplied by their inputs in one product at the end
(`benchmarks/lstm.py`).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array, lax
from jax.typing import DTypeLike


class LSTM(nn.Module):
    """A layer of long short-term memory (Hochreiter and Schmidhuber, 1997; with a forget gate, Gers et al., 2000).

    ``i, f, g, o = x W + b + h R``; ``c = sigmoid(f) c + sigmoid(i) tanh(g)``; ``h = sigmoid(o) tanh(c)``, from zeros.
    Parameters ``input`` (W and b) and ``recurrent_kernel`` (R, orthogonal at first), with the gates in this order.
    """

    width: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """(batch, steps, features) -> h after each step, (batch, steps, width)."""
        shape = (self.width, 4 * self.width)
        kernel = self.param("recurrent_kernel", nn.initializers.orthogonal(), shape, jnp.float32)
        driven = nn.Dense(4 * self.width, dtype=self.dtype, name="input")(x)
        # Evaluation needs no backward pass and may use forward-mode derivatives, which `recur` does not have.
        run = recur if train else lambda *operands: _forward(*operands)[0]
        return run(driven.swapaxes(0, 1), kernel.astype(self.dtype)).swapaxes(0, 1)


@jax.custom_vjp
def recur(driven: Array, kernel: Array) -> Array:
    """h after each step, (steps, batch, width), from ``driven``, x W + b (steps, batch, 4 width), and ``kernel``, R."""
    return _forward(driven, kernel)[0]


def _forward(driven: Array, kernel: Array) -> tuple[Array, tuple[Array, ...]]:
    def step(carry: tuple[Array, Array], driven: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        h, c = carry
        i, f, g, o = jnp.split(driven + h @ kernel, 4, axis=-1)
        i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)
        c = f * c + i * g
        squashed = jnp.tanh(c)
        h = o * squashed
        return (h, c), (h, c, squashed, i, f, g, o)

    zeros = _zeros(driven, kernel)
    _, values = lax.scan(step, (zeros, zeros), driven)
    return values[0], (*values, kernel)


def _backward(residuals: tuple[Array, ...], d_out: Array) -> tuple[Array, Array]:
    """Uses the gates' values kept by the forward pass: their exponentials take longer than the rest of a step."""
    h, c, *gates, kernel = residuals
    zeros = _zeros(h, kernel)
    kernel_transposed = lax.optimization_barrier(kernel.T)  # transposed once in memory, instead of in each step

    def step(carry: tuple[Array, Array], values: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (d_h, d_c), (d_out, c, squashed, i, f, g, o) = carry, values
        d_h = d_h + d_out
        d_c = d_c + d_h * o * (1 - squashed * squashed)
        parts = d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g), d_h * squashed * o * (1 - o)
        d_gates = jnp.concatenate(parts, axis=-1)
        return (d_gates @ kernel_transposed, d_c * f), d_gates

    _, d_gates = lax.scan(step, (zeros, zeros), (d_out, _before(c), *gates), reverse=True)
    return d_gates, jnp.einsum("tbh,tbg->hg", _before(h), d_gates)


recur.defvjp(_forward, _backward)


def _before(after: Array) -> Array:
    """The values before each step, from the values ``after`` each step; zeros before the first."""
    return jnp.concatenate([jnp.zeros_like(after[:1]), after[:-1]])


def _zeros(steps: Array, kernel: Array) -> Array:
    return jnp.zeros((steps.shape[1], kernel.shape[0]), steps.dtype)
