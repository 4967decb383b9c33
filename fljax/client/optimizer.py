"""The local optimiser, built from traced hyperparameters where it is used."""

import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.server.optimizer import EPS_ROOT
from fljax.types import Work

OPTIMIZERS = ("sgd", "adam", "adamw")
"""Names of local optimisers; `Work.optimizer` may also be a function from a learning rate to a transformation."""


class Elementwise(optax.GradientTransformationExtraArgs):
    """An optax transformation that treats every entry of a kernel alike, whatever its row and column.

    `local_optimizer` returns one for every name. For such an optimiser, `train_clients` may keep kernels transposed,
    which is faster on a CPU. ``Elementwise(*optax.sgd(0.1))`` marks your own optimiser.
    """

    def __new__(cls, init: Callable[..., Any], update: Callable[..., Any]) -> "Elementwise":
        """From a transformation's two functions; if ``update`` takes further keyword arguments, it gets the loss."""
        takes_more = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(update).parameters.values())
        plain = optax.GradientTransformation(init, update)
        return super().__new__(cls, init, update if takes_more else optax.with_extra_args_support(plain).update)


@checked_kinds
def local_optimizer(hyper: Any, work: Work, round: ArrayLike) -> optax.GradientTransformation:
    """``work.optimizer`` with the learning rate of this round.

    Args:
        hyper: a `fljax.numbers.LocalHyper`, with ``lr``, ``lr_decay``, ``momentum`` and ``weight_decay``. If it also
            has ``max_norm``, gradients are first clipped to this global norm.
        work: its ``optimizer`` is "sgd", with momentum if given; "adam"; "adamw", whose weight decay is decoupled
            from the gradient; or a function such as ``optax.lion``, which is called with the learning rate.
        round: () int32, counted from 0.

    Raises:
        ValueError: the name is unknown, or a given hyperparameter is not one of the optimiser's.
    """
    lr, momentum, decay = hyper.lr_of(round), hyper.momentum, hyper.weight_decay
    max_norm = getattr(hyper, "max_norm", None)
    if callable(work.optimizer):
        optimizer = _from_function(work.optimizer, lr, momentum, decay)
        return optimizer if max_norm is None else optax.chain(_clipped(max_norm), optimizer)
    if work.optimizer == "sgd":
        optimizer = _after_decay(decay, optax.sgd(lr, momentum=momentum))
    elif work.optimizer in ("adam", "adamw"):
        if momentum is not None:
            raise ValueError(f"momentum is given but optimizer={work.optimizer!r} has none; use momentum=None or 'sgd'")
        if work.optimizer == "adam":
            optimizer = _after_decay(decay, _widened(optax.adam(lr, eps_root=EPS_ROOT)))
        else:
            decay = 0.0 if decay is None else decay
            adamw = optax.adamw(lr, eps_root=EPS_ROOT, weight_decay=decay)
            optimizer = _widened(adamw)
    elif isinstance(work.optimizer, optax.GradientTransformation):
        raise ValueError(
            "optimizer is a finished transformation, which has its own learning rate; give a function from the "
            "Hyper's lr to one, such as optax.adam or lambda lr: optax.sgd(lr, nesterov=True)"
        )
    else:
        raise ValueError(f"optimizer={work.optimizer!r} is unknown; choose one of {OPTIMIZERS} or give a function")
    return Elementwise(*(optimizer if max_norm is None else optax.chain(_clipped(max_norm), optimizer)))


def _clipped(max_norm: Any) -> optax.GradientTransformation:
    """Clips gradients in float32 or wider: optax rejects a float32 norm for bfloat16 gradients."""
    inner = optax.clip_by_global_norm(max_norm)

    def update(updates: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), updates)
        clipped, state = inner.update(wide, state, params)
        return tree.as_before(clipped, updates), state

    return optax.GradientTransformation(inner.init, update)


def _widened(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """``optimizer``, computed in float32 for float16 parameters: in float16, Adam's epsilon of 1e-8 is 0."""

    def wide(values: Any) -> Any:
        return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float16 else x, values)

    def update(updates: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        moves, state = optimizer.update(wide(updates), state, None if params is None else wide(params))
        return tree.as_before(moves, updates), state

    return optax.GradientTransformation(lambda params: optimizer.init(wide(params)), update)


def _after_decay(decay: Any, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """``optimizer`` after L2 regularisation: ``decay`` times the weights is added to the gradient."""
    return optimizer if decay is None else optax.chain(optax.add_decayed_weights(decay), optimizer)


def _from_function(make: Any, lr: Any, momentum: Any, decay: Any) -> optax.GradientTransformation:
    if momentum is not None or decay is not None:
        name = "momentum" if momentum is not None else "weight_decay"
        raise ValueError(f"{name} is given, but the optimizer is a function of the learning rate; set it inside")
    function_name = getattr(make, "__name__", repr(make))
    try:
        inspect.signature(make).bind(lr)
    except TypeError as error:
        raise ValueError(
            f"optimizer {function_name} cannot be called with a learning rate alone: {error}; "
            "give a function of one argument"
        ) from None
    except ValueError:  # the signature of a C function is unknown
        pass
    optimizer = make(lr)
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        kind = type(optimizer).__name__
        raise ValueError(f"optimizer {function_name} returns a {kind}; give one that returns an optax transformation")
    return optimizer


def without_loss(optimizer: optax.GradientTransformation, why: str) -> optax.GradientTransformation:
    """``optimizer``, to which the loss is not passed; an optimiser that needs it is refused for the reason ``why``.

    Raises:
        ValueError: in an update, if it needs the loss.
    """

    def update(updates: Any, state: optax.OptState, params: Any = None) -> tuple[Any, optax.OptState]:
        try:
            return optimizer.update(updates, state, params)
        except TypeError as error:
            if "'value'" not in str(error):
                raise
            raise ValueError(f"{why}, and the optimizer asks for it; choose one that does not, such as sgd") from error

    return (Elementwise if isinstance(optimizer, Elementwise) else optax.GradientTransformation)(optimizer.init, update)


def raised_by_optax(error: Exception) -> bool:
    """Whether ``error`` was raised in a file of optax."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return Path(last.filename).is_relative_to(Path(optax.__file__).parent)
