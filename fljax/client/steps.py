"""How many local steps a client takes in a round: epochs over its own examples, or as many as every other client."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.client.minibatches import Sizes, n_batches
from fljax.ranges import said
from fljax.types import Work

OR_NONE = {
    "epochs": "local_steps instead",
    "batch_size": "all of a client's examples",
    "at_once": "the backend's best",
    "local_steps": "epochs instead",
}
"""Meaning of None, for the fields of `Work` that may be None."""


@checked_kinds
def check_work(work: Work) -> None:
    """Checks that ``work`` is a `Work` with one of epochs and local steps.

    Raises:
        ValueError: it is not, or a field of it is not a positive whole number of int32.
    """
    if not isinstance(work.terms, tuple) or not all(map(callable, work.terms)):
        raise ValueError(f"{said('terms', work.terms)} of work is not a tuple of functions; give () for none")
    for name in OR_NONE:
        value = getattr(work, name)
        if value is None:
            continue
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            remedy = f"choose {name} >= 1, or None: {OR_NONE[name]}"
            raise ValueError(f"{name}={value!r} is not a positive whole number; {remedy}")
        if value > np.iinfo(np.int32).max:
            raise ValueError(f"{said(name, value)} is too large; choose {name} <= {np.iinfo(np.int32).max}")
    if (work.epochs is None) == (work.local_steps is None):
        given = f"epochs={work.epochs} and local_steps={work.local_steps}"
        raise ValueError(f"{given} of work: a round is as long as one of them says; give one, and None for the other")
    if not isinstance(work.drop_last, bool | np.bool_):
        raise ValueError(f"{said('drop_last', work.drop_last)} of work is neither True nor False; choose one of them")
    if work.drop_last and work.batch_size is None:
        raise ValueError(
            "drop_last=True has no effect with batch_size=None, where all examples of a client are one batch; give a "
            "batch_size, or leave drop_last out"
        )


def batches_per_epoch(size: Sizes, work: Work) -> Sizes:
    """Number of local steps of a client with ``size`` examples in an epoch: `n_batches`, or whole batches only."""
    whole_size = work.batch_size if work.drop_last else None
    return n_batches(size, work.batch_size) if whole_size is None else size // whole_size


def n_steps(size: Sizes, work: Work) -> Sizes:
    """Number of local steps of a client with ``size`` examples: epochs * batches per epoch, or the ``local_steps``."""
    per_pass = batches_per_epoch(size, work)
    if work.local_steps is not None:
        return work.local_steps * per_pass.clip(0, 1)
    return whole_epochs(work, "a round") * per_pass


def steps_taken(size: Array, work: Work, effort: Array | None) -> Array:
    """The share ``effort`` of `n_steps`, rounded up, at least one if there are any; None: all of them."""
    steps = n_steps(size, work)
    if effort is None:
        return steps
    # Shares such as 3/5 are not binary fractions: products above a whole number only by rounding count as that number.
    part = jnp.ceil(jnp.asarray(effort, jnp.float32) * steps.astype(jnp.float32) - _ROUNDING).astype(jnp.int32)
    return jnp.clip(part, steps.clip(0, 1), steps)


_ROUNDING = 1e-3


def passes_of(work: Work, size: np.ndarray) -> float:
    """Mean number of times that an example of clients of these sizes is used in a round."""
    if work.epochs is not None:
        return float(work.epochs)
    batch = size if work.batch_size is None else np.minimum(size, work.batch_size)
    return float((n_steps(size, work) * batch).sum() / max(size.sum(), 1))


def whole_epochs(work: Work, who: str) -> int:
    """The number of epochs of ``work``.

    Raises:
        ValueError: it has a number of local steps instead; the message names ``who`` counts epochs.
    """
    if work.epochs is None:
        raise ValueError(f"local_steps={work.local_steps}: {who} counts epochs; give a number of epochs instead")
    return work.epochs
