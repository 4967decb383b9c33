"""The message from the participants to the server, and its size."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.types import Key, ModelTable, Stacked

FLOAT_BITS = 32.0
"""Bits of an uncompressed number; traffic is counted in such floats."""


class Message(NamedTuple):
    """The participants' updates, ``w_i`` minus the initial model, on their way to the server."""

    values: Array  # (cohort, d) float32, what the server adds to the initial model
    weight: Array  # (cohort,) omega_i; 0: does not count
    n_values: Array  # (cohort,) float32, number of numbers that are sent
    n_places: Array  # (cohort,) float32, number of candidates among which they are; the server knows these
    bits: Array  # () or (cohort,) float32, bits of each number
    extra: Array  # (cohort,) float32, additional bits: norms, seeds
    scales: Array  # (cohort,) float32, bits of the quantisation scales
    factored: bool = False  # whether factors of the update's matrices are sent

    def n_bits(self) -> Array:
        """Bits of each message, (cohort,): the least of a dense vector, one with a bitmap, one with indices."""
        index = 32 - lax.clz(jnp.maximum(self.n_places, 2.0).astype(jnp.int32) - 1)  # bits of an index
        places = jnp.minimum(self.n_places, self.n_values * index.astype(jnp.float32))
        return jnp.minimum(self.n_places * self.bits, self.n_values * self.bits + places) + self.extra + self.scales

    def multiplied_out(self) -> "Message":
        """The message with all numbers of the update instead of factors, for transforms of single numbers."""
        return dense(self, self.values) if self.factored else self


class Trip(NamedTuple):
    """The inputs of a transform besides the message."""

    key: Array  # (cohort,) keys of the participants
    server_key: Key  # of the round
    ids: Array  # (cohort,) int32
    round: Array  # () int32
    shapes: tuple[tuple[int, ...], ...]  # of the leaves in a row of `Message.values`
    expected: Array | float  # mean number of participants of a round

    def part(self, number: int) -> "Trip":
        """The trip of one of several transforms, with its own keys."""
        fold = jax.vmap(lambda key: jax.random.fold_in(key, number))
        return self._replace(key=fold(self.key), server_key=jax.random.fold_in(self.server_key, number))


def shapes_of(part: Any) -> tuple[tuple[int, ...], ...]:
    """Shapes of the trainable leaves of one model, or of its shared part."""
    return tuple(leaf.shape for leaf in jax.tree.leaves(tree.trainable(part)))


def n_numbers(shapes: tuple[tuple[int, ...], ...]) -> int:
    """d, the length of an update."""
    return sum(int(np.prod(shape)) for shape in shapes)


@checked_kinds
def plain_message(start: ModelTable, params: Stacked, weight: Array) -> Message:
    """The uncompressed updates: d floats each."""
    values = tree.at_least_float32(tree.flatten(tree.subtract(params, tree.stacked(start))))
    zeros = jnp.zeros(values.shape[0], jnp.float32)
    return dense(Message(values, weight, zeros, zeros, jnp.float32(FLOAT_BITS), zeros, zeros), values)


def dense(message: Message, values: Array) -> Message:
    """``message`` with ``values``, all sent uncompressed."""
    n, d = values.shape
    all_numbers = jnp.full(n, d, jnp.float32)
    zeros, bits = jnp.zeros(n, jnp.float32), jnp.float32(FLOAT_BITS)
    fields = {"n_values": all_numbers, "n_places": all_numbers, "bits": bits, "extra": zeros, "scales": zeros}
    return message._replace(values=values, factored=False, **fields)


def received(start: ModelTable, params: Stacked, sent: Array, arrived: Array) -> Stacked:
    """The models as the server has them: the initial model plus the update that ``arrived`` (cohort, d).

    If a number arrived as it was ``sent``, the result is the trained parameter, bit for bit; ``start + (w - start)``
    would round it.
    """
    trainable, statistics = tree.split_statistics(params)
    start_params = tree.trainable(tree.stacked(start))
    leaves, structure = jax.tree.flatten(trainable)
    ends = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
    new_leaves = []
    for leaf, start_leaf, sent_values, arrived_values in zip(
        leaves, jax.tree.leaves(start_params), *(jnp.split(flat, ends, axis=1) for flat in (sent, arrived)), strict=True
    ):
        updated = start_leaf + arrived_values.reshape(leaf.shape).astype(leaf.dtype)
        new_leaves.append(jnp.where((sent_values == arrived_values).reshape(leaf.shape), leaf, updated))
    return tree.join_statistics(jax.tree.unflatten(structure, new_leaves), statistics)
