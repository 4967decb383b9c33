"""From a flax.linen module to a `Model`: pure functions over one plain dict of parameters."""

import dataclasses
import math
from collections.abc import Hashable
from functools import cache
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.tree import STATISTICS, join_statistics, split_statistics
from fljax.types import Description, Halves, Key, Model, Params

Init = Literal["lecun", "pytorch"]
"""How the numbers of a network begin: flax's default, or PyTorch's for ``Linear`` and ``Conv2d``."""
INITS: tuple[Init, ...] = ("lecun", "pytorch")

_STD_OF_TRUNCATED_NORMAL = 0.87962566103423978  # of the standard normal cut at two standard deviations


def from_linen(
    module: nn.Module,
    input_shape: tuple[int, ...],
    layers: tuple[str, ...],
    own_init: bool = False,
    halves: Halves | None = None,
    init: Init = "lecun",
) -> Model:
    """A flax module as a `Model`.

    Args:
        module: called as ``module(x, train)``; may use the random stream ``"dropout"`` and, for running statistics,
            the collection ``"batch_stats"``, which travels in the parameters under that name.
        input_shape: shape of one example, without the batch axis.
        layers: the module's weighted top-level submodules in forward order.
        own_init: True: every parameter is drawn by the module's own initializer, whatever `init`. False: the leaves
            called "kernel" are cut from a single draw, which compiles in a fraction of the time; the others are as the
            module makes them.
        halves: of a probabilistic network.
        init: "lecun": kernels are LeCun normal (flax's default: truncated, variance 1 / fan in). "pytorch": kernels
            and the biases beside them are uniform in +-1 / sqrt(fan in), PyTorch's default of ``Linear`` and
            ``Conv2d``: a third of LeCun's variance.

    Returns:
        The model. ``init`` gives ``{layer: subtree}``; in training mode ``apply`` gives back the same parameters with
        updated running statistics. Equal arguments give the same object, so nothing compiles twice.

    Raises:
        ValueError: the module has a field ``dtype`` that is no floating-point type, or one that JAX would narrow; or
            an unknown `init`.
    """
    _check_dtype(getattr(module, "dtype", None))
    if init not in INITS:
        raise ValueError(f"init={init!r}: choose one of {', '.join(map(repr, INITS))}")
    return _adapt(cast(Hashable, module), input_shape, layers, "own" if own_init else init, halves)


def _check_dtype(dtype: DTypeLike | None) -> None:
    try:
        known = dtype is None or jnp.issubdtype(dtype, jnp.floating)
    except TypeError:  # a word that names no type
        known = False
    if dtype is None or (known and jax.dtypes.canonicalize_dtype(dtype) == dtype):
        return
    wider = ", or set jax_enable_x64" if known else ""  # without it JAX would compute in float32
    raise ValueError(f"dtype={dtype!r}: choose float32, bfloat16 or float16{wider}")


@cache
def _adapt(
    module: nn.Module, input_shape: tuple[int, ...], layers: tuple[str, ...], initial: str, halves: Halves | None
) -> Model:
    def init(key: Key) -> Params:
        variables = module.init(key, jnp.zeros((1, *input_shape)), False)
        trainable = variables["params"] if initial == "own" else _drawn(key, variables["params"], initial)
        return join_statistics(trainable, {k: v for k, v in variables.items() if k == STATISTICS})

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        trainable, statistics = split_statistics(params)
        variables = {"params": trainable, **statistics}
        if key is None:
            return cast(Array, module.apply(variables, x, False)), params
        logits, updated = module.apply(variables, x, True, rngs={"dropout": key}, mutable=[STATISTICS])
        return cast(Array, logits), join_statistics(trainable, updated)

    return Model(init, apply, layers, halves, about=(*_about(module, input_shape), ("initial", initial)))


def _about(module: nn.Module, input_shape: tuple[int, ...]) -> Description:
    """The network's name and sizes: the fields of its module."""
    fields = [field.name for field in dataclasses.fields(module) if field.name not in ("parent", "name")]
    own = ((name, getattr(module, name, None)) for name in fields)
    return (("network", type(module).__name__.lstrip("_")), ("input_shape", input_shape), *own)


def _drawn(key: Key, params: Params, initial: str) -> Params:
    """`params` with its kernels (..., fan in, fan out) drawn anew, "pytorch" the biases beside them as well.

    All come from one vector of numbers of variance 1 ("lecun") or 1/3.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    kernel_of = {path[:-1]: leaf for path, leaf in leaves if _is(path, "kernel")}
    anew = [
        _is(path, "kernel") or (initial == "pytorch" and _is(path, "bias") and path[:-1] in kernel_of)
        for path, _ in leaves
    ]
    numbers = _unscaled(key, sum(leaf.size for (_, leaf), new in zip(leaves, anew, strict=True) if new), initial)
    drawn, start = [], 0
    for (path, leaf), new in zip(leaves, anew, strict=True):
        if new:
            scale = math.sqrt(1 / math.prod(kernel_of[path[:-1]].shape[:-1]))
            drawn.append(scale * numbers[start : start + leaf.size].reshape(leaf.shape))
            start += leaf.size
        else:
            drawn.append(leaf)
    return jax.tree.unflatten(treedef, drawn)


def _unscaled(key: Key, n: int, initial: str) -> Array:
    """(n,) numbers that are multiplied by 1 / sqrt(fan in)."""
    if initial == "pytorch":
        return jax.random.uniform(key, (n,), minval=-1, maxval=1)
    return jax.random.truncated_normal(key, -2, 2, (n,)) / _STD_OF_TRUNCATED_NORMAL


def _is(path: tuple[Any, ...], name: str) -> bool:
    return jax.tree_util.keystr(path[-1:], simple=True) == name
