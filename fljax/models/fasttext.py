"""fastText's network (Joulin et al., 2017): the mean of a text's word embeddings, and a linear layer."""

import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.models.linen import Init, from_linen
from fljax.models.sizes import check_tokens
from fljax.tree import at_least_float32
from fljax.types import Model


class _FastText(nn.Module):
    n_tokens: int
    embedding: int
    n_classes: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        words = nn.Embed(self.n_tokens, self.embedding, dtype=self.dtype, name="embed")(x)
        is_word = (x != 0)[..., None]
        mean = jnp.where(is_word, words, 0).sum(axis=1) / jnp.maximum(is_word.sum(axis=1), 1).astype(words.dtype)
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name="fc")(mean))


def fasttext(
    input_shape: tuple[int, ...] = (50,),
    n_classes: int = 2,
    vocabulary: int = 5002,
    embedding: int = 32,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """fastText (Joulin et al., 2017): ``embed - mean over the words - n_classes``, for texts as words.

    Examples are tokens (length,) int32; the mean leaves out token 0, which is padding. Layers ``embed, fc``. Parameters
    and logits are float32. Without the original's n-grams and hierarchical softmax.

    Args:
        input_shape: shape of an example.
        n_classes: width of the output.
        vocabulary: number of different tokens, including padding.
        embedding: width of a token's embedding.
        dtype: type of the computation: float32, bfloat16, float16; with ``jax_enable_x64`` float64, parameters too.
        init: initialisation of kernels and biases: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: a size below 1, examples that are not rows of tokens, or an unknown `init`.
    """
    check_tokens(input_shape, n_classes=n_classes, vocabulary=vocabulary, embedding=embedding)
    module = _FastText(vocabulary, embedding, n_classes, dtype)
    return from_linen(module, input_shape, init=init, input_dtype=jnp.int32)
