"""A small transformer that tells the next token of a text."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array

from fljax.models.linen import from_linen
from fljax.models.sizes import check_widths
from fljax.ranges import real
from fljax.types import Model


class _Block(nn.Module):
    width: int
    n_heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: Array, mask: Array, train: bool) -> Array:
        still = not train
        y = nn.LayerNorm(name="norm1")(x)
        y = nn.MultiHeadDotProductAttention(self.n_heads, name="attention")(y, y, mask=mask)
        x = x + nn.Dropout(self.dropout, deterministic=still)(y)
        y = nn.Dense(4 * self.width, name="widen")(nn.LayerNorm(name="norm2")(x))
        y = nn.Dense(self.width, name="narrow")(nn.gelu(y))
        return x + nn.Dropout(self.dropout, deterministic=still)(y)


class _Transformer(nn.Module):
    n_classes: int
    width: int
    n_layers: int
    n_heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        place = self.param("place", nn.initializers.normal(0.02), (x.shape[1], self.width), jnp.float32)
        y = nn.Embed(self.n_classes, self.width, name="embed")(x) + place[None]
        mask = nn.make_causal_mask(jnp.ones(x.shape, jnp.float32))
        for i in range(self.n_layers):
            y = _Block(self.width, self.n_heads, self.dropout, name=f"block{i + 1}")(y, mask, train)
        return nn.Dense(self.n_classes, name="head")(nn.LayerNorm(name="norm")(y[:, -1]))


def transformer(
    length: int = 32, n_classes: int = 64, width: int = 32, n_layers: int = 2, n_heads: int = 4, dropout: float = 0.1
) -> Model:
    """Decoder of a text: tokens (batch, length) int32 to the logits of the next one (batch, n_classes).

    Learnt places, then blocks of causal attention and a dense part four times as wide, layer norms before each
    (Radford et al., 2019). Layers ``place, embed, block1, ..., norm, head``.

    Args:
        length: tokens that it sees.
        n_classes: different tokens.
        width: of a token's representation.
        n_layers: blocks.
        n_heads: heads of an attention, a divisor of ``width``.
        dropout: share of what blocks add that is dropped in training, in [0, 1).

    Raises:
        ValueError: a size below 1, heads that do not divide the width, or a dropout out of its range.
    """
    check_widths(length=length, n_classes=n_classes, width=width, n_layers=n_layers, n_heads=n_heads)
    if width % n_heads:
        raise ValueError(f"n_heads={n_heads} does not divide width={width}")
    if not 0 <= real("dropout", dropout) < 1:
        raise ValueError(f"dropout={dropout} is not in [0, 1)")
    return from_linen(_Transformer(n_classes, width, n_layers, n_heads, dropout), (length,), input_dtype=jnp.int32)
