"""Recurrent networks (LSTM) for texts and for series of numbers."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.models.linen import Init, from_linen
from fljax.models.recurrence import LSTM
from fljax.models.sizes import check_tuples, check_widths
from fljax.tree import at_least_float32
from fljax.types import Model


class _LSTM(nn.Module):
    n_tokens: int
    embedding: int
    hidden: tuple[int, ...]
    n_classes: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        if x.ndim == 2:
            x = nn.Embed(self.n_tokens, self.embedding, dtype=self.dtype, name="embed")(x)
        x = x.reshape(*x.shape[:2], -1)
        for i, width in enumerate(self.hidden):
            x = LSTM(width, self.dtype, name=f"lstm{i + 1}")(x, train)
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name="fc")(x[:, -1]))


def lstm(
    input_shape: tuple[int, ...] = (80,),
    n_classes: int = 80,
    hidden: tuple[int, ...] = (256, 256),
    vocabulary: int = 80,
    embedding: int = 8,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """Recurrent network: ``embed - [LSTM]* - last step - n_classes``, for texts or series of numbers.

    By default, the network for Shakespeare of LEAF (Caldas et al., 2018) and FedProx, which is that of FedAvg's paper:
    from 80 characters to the next one, 817,872 parameters. Examples with one axis are int32 tokens; examples with more
    axes, (steps, ...), are steps of several numbers, which are not embedded: sensors over time, or rows of an image.

    Layers ``embed, lstm1, lstm2, ..., fc``. Parameters and logits are float32. At first, biases are 0 with "lecun"
    (LEAF adds 1 to the forget gate's), and recurrent kernels are orthogonal with either initialisation.

    Args:
        input_shape: shape of an example.
        n_classes: width of the output.
        hidden: widths of the LSTM layers.
        vocabulary: number of different tokens; not used for a series.
        embedding: width of a token's embedding; not used for a series.
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: a size below 1, examples without steps, no LSTM layer, or an unknown `init`.
    """
    check_tuples(input_shape=input_shape, hidden=hidden)
    check_widths(input_shape=input_shape, hidden=hidden, n_classes=n_classes)
    check_widths(vocabulary=vocabulary, embedding=embedding)
    if not input_shape:
        raise ValueError("input_shape=(): give (length,) for texts, or (steps, ...) for series")
    if not hidden:
        raise ValueError("hidden=(): give the width of at least one LSTM layer, such as (256,)")
    is_text = len(input_shape) == 1
    module = _LSTM(vocabulary if is_text else 0, embedding if is_text else 0, tuple(hidden), n_classes, dtype)
    return from_linen(module, input_shape, init=init, input_dtype=jnp.int32 if is_text else jnp.float32)
