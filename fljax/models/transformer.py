"""A small transformer for texts, which predicts the next token or a text's class."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.models.linen import Init, from_linen
from fljax.models.sizes import check_tokens, check_widths
from fljax.ranges import real
from fljax.tree import at_least_float32
from fljax.types import Model


def _normed(x: Array, name: str, dtype: DTypeLike) -> Array:
    """Applies the layer norm ``name`` in at least float32."""
    return nn.LayerNorm(name=name)(at_least_float32(x)).astype(dtype)


class _Block(nn.Module):
    width: int
    n_heads: int
    dropout: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, mask: Array, train: bool) -> Array:
        deterministic = not train
        y = _normed(x, "norm1", self.dtype)
        y = nn.MultiHeadDotProductAttention(self.n_heads, dtype=self.dtype, name="attention")(y, y, mask=mask)
        x = x + nn.Dropout(self.dropout, deterministic=deterministic)(y)
        y = _normed(x, "norm2", self.dtype)
        y = nn.Dense(4 * self.width, dtype=self.dtype, name="widen")(y)
        y = nn.Dense(self.width, dtype=self.dtype, name="narrow")(nn.gelu(y))
        return x + nn.Dropout(self.dropout, deterministic=deterministic)(y)


class _Transformer(nn.Module):
    n_tokens: int
    n_classes: int
    width: int
    n_layers: int
    n_heads: int
    dropout: float
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        n_positions, near_zero = x.shape[1], nn.initializers.normal(0.02)
        y = nn.Embed(self.n_tokens, self.width, dtype=self.dtype, name="embed")(x)
        position = nn.Embed(n_positions, self.width, dtype=self.dtype, embedding_init=near_zero, name="place")
        y = y + position(jnp.arange(n_positions))[None]
        mask = nn.make_causal_mask(jnp.ones(x.shape, jnp.float32))
        for i in range(self.n_layers):
            y = _Block(self.width, self.n_heads, self.dropout, self.dtype, name=f"block{i + 1}")(y, mask, train)
        y = _normed(y[:, -1], "norm", self.dtype)
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name="head")(y))


def transformer(
    input_shape: tuple[int, ...] = (80,),
    n_classes: int = 80,
    vocabulary: int = 80,
    width: int = 32,
    n_layers: int = 2,
    n_heads: int = 4,
    dropout: float = 0.1,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """Transformer: ``embed + place - block* - n_classes`` at the last token, for the next token or a text's class.

    Learnt position embeddings (``place``), then blocks of causal attention and a dense part four times as wide, with
    layer norms before each (GPT-2; Radford et al., 2019). Examples are tokens (length,) int32. Layers ``embed, place,
    block1, block2, ..., norm, head``. Parameters and logits are float32.

    Args:
        input_shape: shape of an example.
        n_classes: width of the output.
        vocabulary: number of different tokens.
        width: width of a token's representation.
        n_layers: number of blocks.
        n_heads: attention heads per block, a divisor of ``width``.
        dropout: dropout rate of the blocks' residual branches, in [0, 1).
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: a size below 1, examples that are not rows of tokens, heads that do not divide the width, a dropout
            out of its range, or an unknown `init`.
    """
    check_tokens(input_shape, n_classes=n_classes, vocabulary=vocabulary)
    check_widths(width=width, n_layers=n_layers, n_heads=n_heads)
    if width % n_heads:
        raise ValueError(f"n_heads={n_heads} does not divide width={width}; choose a divisor of the width")
    if not 0 <= real("dropout", dropout) < 1:
        raise ValueError(f"dropout={dropout} is out of its range; choose 0 <= dropout < 1")
    module = _Transformer(vocabulary, n_classes, width, n_layers, n_heads, dropout, dtype)
    return from_linen(module, input_shape, init=init, input_dtype=jnp.int32)
