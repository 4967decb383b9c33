"""Recurrent networks (LSTM) of texts and of series of numbers."""

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
    """Recurrent network: ``embed - [LSTM]* - last step - n_classes``, of a text or of a series of numbers.

    As it is, the network for Shakespeare of LEAF (Caldas et al., 2018) and FedProx, that of FedAvg's paper: 80
    characters to the next one, 817,872 parameters. Examples of one axis are tokens, int32; those of more, (steps, ...),
    are steps of as many numbers each, which are not embedded: sensors over time, or the rows of an image.

    Layers ``embed, lstm1, lstm2, ..., fc``. ``dtype`` is that of the computation, parameters and logits are float32.
    Biases begin at 0, where LEAF adds 1 to the forget gate's, and what a step takes from the one before is orthogonal,
    whatever ``init`` draws.

    Args:
        input_shape: of an example.
        n_classes: width of the output.
        hidden: widths of the LSTM layers.
        vocabulary: different tokens; of a series it says nothing.
        embedding: numbers that a token becomes; of a series it says nothing.
        dtype: of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, as parameters then are.
        init: how kernels and biases are drawn, "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: a size below 1, examples without steps, no LSTM layer, or an unknown `init`.
    """
    check_tuples(input_shape=input_shape, hidden=hidden)
    check_widths(input_shape=input_shape, hidden=hidden, n_classes=n_classes)
    check_widths(vocabulary=vocabulary, embedding=embedding)
    if not input_shape:
        raise ValueError("input_shape=(): give (length,) of a text, or (steps, ...) of a series")
    if not hidden:
        raise ValueError("hidden=(): give the width of at least one LSTM layer, as (256,)")
    is_text = len(input_shape) == 1
    module = _LSTM(vocabulary if is_text else 0, embedding if is_text else 0, tuple(hidden), n_classes, dtype)
    return from_linen(module, input_shape, init=init, input_dtype=jnp.int32 if is_text else jnp.float32)
