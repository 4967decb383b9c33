"""The local optimiser, built where it is used from traced numbers."""

from typing import Protocol

import optax
from jax import Array

from fljax.types import Work


class LocalHyper(Protocol):
    """The fields that every method's Hyper has for its clients' optimiser. None leaves the term out of the program."""

    @property
    def lr(self) -> Array | float:
        """Learning rate, > 0."""
        ...

    @property
    def lr_decay(self) -> Array | float | None:
        """Factor on the learning rate a round, in (0, 1]."""
        ...

    @property
    def momentum(self) -> Array | float | None:
        """Momentum of SGD, in [0, 1); its buffer starts at 0 in every round."""
        ...


def local_optimizer(hyper: LocalHyper, work: Work, round: Array) -> optax.GradientTransformation:
    """``work.optimizer`` with the learning rate of this round: ``lr * lr_decay ** round``.

    Raises:
        ValueError: unknown optimizer, or a momentum for one that has none.
    """
    lr = hyper.lr if hyper.lr_decay is None else hyper.lr * hyper.lr_decay ** round.astype("float32")
    if work.optimizer == "sgd":
        return optax.sgd(lr, momentum=hyper.momentum)
    if work.optimizer == "adam":
        if hyper.momentum is not None:
            raise ValueError("momentum is given but optimizer='adam' has none; use momentum=None or optimizer='sgd'")
        return optax.adam(lr)
    raise ValueError(f"optimizer={work.optimizer!r} is unknown; choose 'sgd' or 'adam'")


class ClippedHyper(LocalHyper, Protocol):
    """The numbers of a method that clips its clients' gradients."""

    @property
    def max_norm(self) -> Array | float | None:
        """Gradients are clipped to this norm, > 0; None: not clipped."""
        ...


def clipped_optimizer(hyper: ClippedHyper, work: Work, round: Array) -> optax.GradientTransformation:
    """`local_optimizer`, before which gradients are clipped to the global norm ``hyper.max_norm``."""
    optimizer = local_optimizer(hyper, work, round)
    return optimizer if hyper.max_norm is None else optax.chain(optax.clip_by_global_norm(hyper.max_norm), optimizer)
