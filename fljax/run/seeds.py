"""Runs with different keys and federations, and a few different numbers, as one program: the runs of `fljax compare`.

Seeds of a comparison have federations of one shape (`fljax.data.padding.same_shapes`). Arrays that all have in common,
such as the pool of examples, are held once; the others are stacked. On an accelerator as many seeds as fit go side by
side, on a CPU one after another inside the program, each with its clients on all cores. Numbers that depend on each
seed's own data, such as the scales of a network's inputs, are inputs of the program, too (`Varied`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fljax import tree
from fljax.checks.state import begun
from fljax.placement import whole
from fljax.rounds.memory import remembering
from fljax.rounds.sampling import Draw
from fljax.run.chunk import most_rounds, run_chunk
from fljax.run.one_round import split_key
from fljax.types import Algorithm, Federation, Key, Metrics, State

Made = Callable[[Any], Algorithm]
"""Makes a method from its numbers, a pytree of arrays (...), which may be traced."""


class Varied(NamedTuple):
    """The method of several runs, with different numbers in each."""

    make: Made  # from arrays: the numbers are not in the description; from plain numbers: they are
    numbers: Sequence[Any]  # of each run: a pytree of tuples of floats

    def of(self, i: int) -> Algorithm:
        """The method of run ``i``."""
        return self.make(self.numbers[i])


class Setting(NamedTuple):
    """The static arguments of the program."""

    algorithm: Algorithm
    draw: Draw  # the sampling of a round
    structure: Any  # of a federation as a pytree
    at_once: int = 1  # seeds side by side
    make: Made | None = None  # makes ``algorithm`` with a seed's own numbers, if there are such

    def method(self, numbers: Any) -> Algorithm:
        """The method of one seed, inside the program."""
        return self.algorithm if self.make is None else remembering(self.make(numbers), self.draw.sampling.memory)


class Inputs(NamedTuple):
    """The traced arguments of the program besides states and rounds."""

    hyper: Any
    shared: list[Any]  # leaves that all federations share; None in the place of an own leaf
    own: list[Any]  # (seeds, ...) leaves that each federation has of its own; None in the place of a shared leaf
    key: Key  # (seeds,)
    dropout: Array | None
    evaluate_every: Array
    n_rounds: Array
    numbers: Any = None  # (seeds, ...) each seed's own numbers of the method, if there are such

    def of(self, rows: Sequence[int]) -> "Inputs":
        """The inputs of the seeds ``rows`` only."""
        own, numbers = tree.take((self.own, self.numbers), jnp.asarray(rows))
        return self._replace(own=own, key=self.key[jnp.asarray(rows)], numbers=numbers)


def joined(structure: Any, shared: Sequence[Any], own: Sequence[Any]) -> Federation:
    """The federation with the ``shared`` leaves, and ``own`` leaves where these are None."""
    return jax.tree.unflatten(structure, [b if a is None else a for a, b in zip(shared, own, strict=True)])


def stacked(federations: Sequence[Federation]) -> tuple[Any, list[Any], list[Any]]:
    """For federations of one shape: the structure, the leaves that are the same array in all, the others stacked."""
    structure, columns = jax.tree.structure(federations[0]), list(zip(*map(jax.tree.leaves, federations), strict=True))
    is_shared = [all(leaf is column[0] for leaf in column) for column in columns]
    shared = [column[0] if same else None for same, column in zip(is_shared, columns, strict=True)]
    return (
        structure,
        shared,
        [None if same else np.stack(column) for same, column in zip(is_shared, columns, strict=True)],
    )


@partial(jax.jit, static_argnums=0)
def begin_all(setting: Setting, inputs: Inputs) -> State:
    """The first state of each seed, (seeds, ...)."""

    def one(seed: tuple[Any, Key, Any]) -> State:
        own, key, numbers = seed
        train = joined(setting.structure, inputs.shared, own).train
        return begun(setting.method(numbers).init, split_key(key).init, inputs.hyper, train)

    return whole(lax.map(one, (inputs.own, inputs.key, inputs.numbers)))


@partial(jax.jit, static_argnums=0, donate_argnames="states")
def advance_all(setting: Setting, inputs: Inputs, states: State, first: Array, count: Array) -> tuple[State, Metrics]:
    """Rounds ``first`` to ``first + count`` of every seed: states (seeds, ...), metrics (rounds, seeds, ...)."""
    rounds = inputs.dropout, inputs.evaluate_every, inputs.n_rounds

    def one(seed: tuple[Any, Key, Any, State]) -> tuple[State, Metrics]:
        own, key, numbers, state = seed
        federation = joined(setting.structure, inputs.shared, own)
        most = most_rounds(len(inputs.key) * federation.train.n_clients)
        static = setting.method(numbers), setting.draw, most
        return run_chunk(*static, inputs.hyper, federation, key, *rounds, state, first, count)

    batch = None if setting.at_once == 1 else setting.at_once  # a batch of one would be a vmap of length one
    states, metrics = lax.map(one, (inputs.own, inputs.key, inputs.numbers, states), batch_size=batch)
    return whole(states), jax.tree.map(lambda rows: jnp.moveaxis(rows, 0, 1), metrics)
