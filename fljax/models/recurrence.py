"""An LSTM's recurrence, whose backward pass sums the gradient of its kernel over all steps at once.

Differentiated as it stands, a scan adds to the kernel's gradient in each step: of a small batch that is more traffic
than arithmetic. Kept apart, the steps' gradients meet their inputs in one product at the end (`benchmarks/lstm.py`).
"""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array, lax
from jax.typing import DTypeLike


class LSTM(nn.Module):
    """A layer of long short-term memory (Hochreiter and Schmidhuber, 1997; with a forget gate, Gers et al., 2000).

    From zeros, ``i, f, g, o = x W + b + h R``; ``c = sigmoid(f) c + sigmoid(i) tanh(g)``; ``h = sigmoid(o) tanh(c)``.
    Parameters ``input`` (W and b) and ``recurrent_kernel`` (R, orthogonal at first), the gates in that order.
    """

    width: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """(batch, steps, features) to h after each step, (batch, steps, width)."""
        shape = (self.width, 4 * self.width)
        kernel = self.param("recurrent_kernel", nn.initializers.orthogonal(), shape, jnp.float32)
        driven = nn.Dense(4 * self.width, dtype=self.dtype, name="input")(x)
        # A test has no backward pass, and may be differentiated forwards, which `recur` may not.
        run = recur if train else lambda *given: _forward(*given)[0]
        return run(driven.swapaxes(0, 1), kernel.astype(self.dtype)).swapaxes(0, 1)


@jax.custom_vjp
def recur(driven: Array, kernel: Array) -> Array:
    """h after each step, (steps, batch, width), of what drives it, (steps, batch, 4 width), by ``kernel`` (R)."""
    return _forward(driven, kernel)[0]


def _forward(driven: Array, kernel: Array) -> tuple[Array, tuple[Array, ...]]:
    def step(carry: tuple[Array, Array], driven: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        h, c = carry
        i, f, g, o = jnp.split(driven + h @ kernel, 4, axis=-1)
        i, f, g, o = nn.sigmoid(i), nn.sigmoid(f), jnp.tanh(g), nn.sigmoid(o)
        c = f * c + i * g
        told = jnp.tanh(c)
        h = o * told
        return (h, c), (h, c, told, i, f, g, o)

    zeros = _zeros(driven, kernel)
    _, kept = lax.scan(step, (zeros, zeros), driven)
    return kept[0], (*kept, kernel)


def _backward(kept: tuple[Array, ...], given: Array) -> tuple[Array, Array]:
    """By hand, as what the gates came to is kept: an exponential takes longer than all else of a step's gates."""
    h, c, *gates, kernel = kept
    zeros = _zeros(h, kernel)
    back = lax.optimization_barrier(kernel.T)  # laid out once, or each step would turn it anew

    def step(carry: tuple[Array, Array], of_step: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        (d_h, d_c), (given, c, told, i, f, g, o) = carry, of_step
        d_h = d_h + given
        d_c = d_c + d_h * o * (1 - told * told)
        parts = d_c * g * i * (1 - i), d_c * c * f * (1 - f), d_c * i * (1 - g * g), d_h * told * o * (1 - o)
        d_gates = jnp.concatenate(parts, axis=-1)
        return (d_gates @ back, d_c * f), d_gates

    _, d_gates = lax.scan(step, (zeros, zeros), (given, _before(c), *gates), reverse=True)
    return d_gates, jnp.einsum("tbh,tbg->hg", _before(h), d_gates)


recur.defvjp(_forward, _backward)


def _before(after: Array) -> Array:
    """What stood before each step, where ``after`` is what stands after it."""
    return jnp.concatenate([jnp.zeros_like(after[:1]), after[:-1]])


def _zeros(of_steps: Array, kernel: Array) -> Array:
    return jnp.zeros((of_steps.shape[1], kernel.shape[0]), of_steps.dtype)
