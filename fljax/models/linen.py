"""From a flax.linen module to a `Model`: pure functions over one plain dict of parameters."""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import ScopeParamNotFoundError, ScopeParamShapeError
from jax import Array
from jax.typing import DTypeLike

from fljax.choices import check_kind
from fljax.models.calling import FLOATS, Mode, about_inputs, calling_mode, check_layers, once, outputs_of
from fljax.models.lapack_init import one_by_one
from fljax.models.sizes import check_tuples, check_widths, n_outputs
from fljax.tree import STATISTICS, join_statistics, split_statistics
from fljax.types import Description, Halves, Key, Model, Params

Init = Literal["lecun", "pytorch"]
"""Initialisation of a network: flax's default, or PyTorch's for ``Linear`` and ``Conv2d``."""
INITS: tuple[Init, ...] = ("lecun", "pytorch")

_STD_OF_TRUNCATED_NORMAL = 0.87962566103423978  # of the standard normal cut at two standard deviations


class ParamsError(ValueError):
    """Parameters or examples that do not fit a network."""


def from_linen(
    module: nn.Module,
    input_shape: tuple[int, ...],
    layers: tuple[str, ...] | None = None,
    *,
    init: Init | None = None,
    halves: Halves | None = None,
    input_dtype: DTypeLike = jnp.float32,
) -> Model:
    """A flax module as a `Model`.

    Args:
        module: called with a batch. Training mode is set by its argument ``train``, ``training`` or ``is_training``, or
            (negated) by ``deterministic``, ``inference`` or ``use_running_average``; or by its second argument of any
            name, if that has no default. A module without such an argument is called with the batch only. It may
            use the random stream ``"dropout"`` and, for running statistics, the collection ``"batch_stats"``, which is
            part of the parameters under that name. If a module in it has an attribute ``reads_batch`` that is True, as
            a normalisation by the current batch in evaluation has, tests use batches of one client's examples.
        input_shape: shape of one example, without the batch axis.
        layers: the module's weighted top-level submodules in forward order; None: all, in the order of their first use.
        init: None: each parameter is initialised by the module. "lecun" and "pytorch" replace all leaves called
            "kernel" by parts of a single draw, which compiles in a fraction of the time; the other leaves are
            initialised by the module. "lecun": LeCun normal (truncated, variance 1 / fan in). "pytorch": kernels and
            the biases beside them are uniform in +-1 / sqrt(fan in), PyTorch's default for ``Linear`` and ``Conv2d``,
            with a third of LeCun's variance. With either, a module of ``dtype`` float64 has parameters of float64.
        halves: the two parts of a probabilistic network.
        input_dtype: type of the module's inputs: float32, or int32 for tokens.

    Returns:
        The model. ``init`` returns ``{layer: subtree}``; in training mode ``apply`` returns the same parameters with
        updated running statistics. Equal arguments return the same object, which compiles once, unless a field of the
        module is a list.

    Raises:
        ValueError: the module cannot be called with such examples, ``layers`` are not its layers, it keeps variables
            other than parameters and running statistics, or its field ``dtype`` is not a floating-point type or is one
            that JAX would narrow; or an unknown `init`.
    """
    check_kind("module", module, nn.Module, "give a flax.linen module, such as Net(64)")
    check_tuples(input_shape=input_shape)
    check_widths(input_shape=input_shape)
    _check_dtype(getattr(module, "dtype", None))
    if init is not None and init not in INITS:
        raise ValueError(f"init={init!r}: choose one of {', '.join(map(repr, INITS))}, or None for the module's own")
    layer_names = None if layers is None else tuple(layers)
    return _adapt(module, tuple(input_shape), layer_names, init or "own", halves, jnp.dtype(input_dtype))


def _check_dtype(dtype: DTypeLike | None) -> None:
    try:
        is_known = dtype is None or jnp.dtype(dtype) in FLOATS
    except (TypeError, SyntaxError):  # a word that names no type, or a number with more digits than Python reads
        is_known = False
    if dtype is None or (is_known and jax.dtypes.canonicalize_dtype(dtype) == dtype):
        return
    advice = ", or set jax_enable_x64" if is_known else ""  # without it JAX would compute in float32
    raise ValueError(f"dtype={dtype!r}: choose float32, bfloat16 or float16{advice}")


@once
def _adapt(
    module: nn.Module,
    input_shape: tuple[int, ...],
    layers: tuple[str, ...] | None,
    initial: str,
    halves: Halves | None,
    input_dtype: DTypeLike,
) -> Model:
    mode = calling_mode(type(module).__call__, type(module).__name__)
    batch = jax.ShapeDtypeStruct((1, *input_shape), input_dtype)

    def init(key: Key) -> Params:
        variables = module.init(key, jnp.zeros(batch.shape, batch.dtype), **mode(False))
        trainable = variables["params"]
        if initial != "own":
            trainable = _drawn(key, _as_wide(trainable, getattr(module, "dtype", None)), initial)
        return join_statistics(trainable, {k: v for k, v in variables.items() if k == STATISTICS})

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        trainable, statistics = split_statistics(params)
        variables = {"params": trainable, **statistics}
        try:
            if key is None:
                return cast(Array, module.apply(variables, x, **mode(False))), params
            logits, updated = module.apply(variables, x, **mode(True), rngs={"dropout": key}, mutable=[STATISTICS])
        except (ScopeParamShapeError, ScopeParamNotFoundError) as error:
            reason = str(error).partition(" (http")[0]
            raise ParamsError(f"params or examples do not fit this network: {reason}") from error
        return cast(Array, logits), join_statistics(trainable, updated)

    def both_modes(x: Array) -> Array:
        params = init(jax.random.key(0))
        apply(params, x, jax.random.key(0))
        return apply(params, x, None)[0]

    layer_names, vocabulary, width, traced = _parts(module, batch, mode)
    if not type(module).__module__.startswith("fljax."):  # a user's module may fail in only one of the modes
        outputs_of(both_modes, batch, type(module).__name__)
    inputs = (*about_inputs(input_shape, input_dtype), *vocabulary)
    about = (*_about(module, inputs), ("n_outputs", width), ("initial", initial))
    return Model(one_by_one(init, traced), apply, check_layers(layer_names, layers), halves, about=about)


def _parts(module: nn.Module, batch: jax.ShapeDtypeStruct, mode: Mode) -> tuple[tuple[str, ...], Description, int, Any]:
    """The weighted top-level submodules in the order of their first use, the vocabulary (if the module embeds the
    examples directly), the width of the output, and the jaxpr of initialisation and call.

    Raises:
        ValueError: the module cannot be called, or keeps variables that would be lost.
    """
    names: list[str] = []
    other_collections: list[str] = []
    vocabularies: list[int] = []

    def note(x: Array) -> Array:
        def heed(call: Callable, args: Sequence[Any], kwargs: Mapping[str, Any], context: Any) -> Any:
            if isinstance(context.module, nn.Embed) and args and args[0] is x:  # not an embedding of positions
                vocabularies.append(context.module.num_embeddings)
            return call(*args, **kwargs)

        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        with nn.intercept_methods(heed):
            outputs, variables = module.init_with_output(keys, x, **mode(False))
        # In order here; a traced dict is sorted.
        names.extend(cast(dict, variables).get("params", ()))
        other_collections.extend(name for name in variables if name not in ("params", STATISTICS))
        return outputs

    network = type(module).__name__
    outputs, traced = outputs_of(note, batch, network)
    if other_collections:
        allowed = f"only parameters and {STATISTICS!r} are kept between rounds"
        raise ValueError(f"{network} keeps {', '.join(other_collections)}; {allowed}")
    return tuple(names), (("vocabulary", min(vocabularies)),) if vocabularies else (), outputs.shape[-1], traced


def _about(module: nn.Module, inputs: Description) -> Description:
    """The network's description: its name, and the fields of its module."""
    fields = [field.name for field in dataclasses.fields(module) if field.name not in ("parent", "name")]
    values = ((name, _hashable(getattr(module, name, None))) for name in fields)
    return (("network", type(module).__name__.lstrip("_")), *values, *inputs)  # of equal names, the last counts


def _hashable(value: Any) -> Any:
    """A field's value; as text if it is mutable, without addresses, which differ between processes."""
    return value if _is_hashable(value) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _as_wide(params: Params, dtype: DTypeLike | None) -> Params:
    """Parameters at least as wide as the computation: float64 for float64."""
    is_wide = dtype is not None and jnp.dtype(dtype).itemsize > 4
    return jax.tree.map(lambda leaf: leaf.astype(dtype), params) if is_wide else params


def _drawn(key: Key, params: Params, initial: str) -> Params:
    """`params` with new kernels (fan in, fan out) of any number of axes; with "pytorch" also new biases beside them.

    All come from one vector of numbers of variance 1 ("lecun") or 1/3.
    """
    leaves, treedef = jax.tree_util.tree_flatten_with_path(params)
    kernel_of = {path[:-1]: leaf for path, leaf in leaves if _ends_with(path, "kernel")}
    bias_of = {path[:-1]: leaf.shape for path, leaf in leaves if _ends_with(path, "bias")}
    are_new = [
        _ends_with(path, "kernel") or (initial == "pytorch" and _ends_with(path, "bias") and path[:-1] in kernel_of)
        for path, _ in leaves
    ]
    n_numbers = sum(leaf.size for (_, leaf), is_new in zip(leaves, are_new, strict=True) if is_new)
    numbers = _unscaled(key, n_numbers, initial)
    new_leaves, start = [], 0
    for (path, leaf), is_new in zip(leaves, are_new, strict=True):
        if is_new:
            kernel, bias = kernel_of[path[:-1]], bias_of.get(path[:-1])
            scale = math.sqrt(n_outputs(kernel.shape, bias) / kernel.size)  # 1 / sqrt(fan in)
            new_leaves.append((scale * numbers[start : start + leaf.size].reshape(leaf.shape)).astype(leaf.dtype))
            start += leaf.size
        else:
            new_leaves.append(leaf)
    return jax.tree.unflatten(treedef, new_leaves)


def _unscaled(key: Key, n: int, initial: str) -> Array:
    """(n,) numbers before the multiplication by 1 / sqrt(fan in)."""
    if initial == "pytorch":
        return jax.random.uniform(key, (n,), jnp.float32, minval=-1, maxval=1)
    return jax.random.truncated_normal(key, -2, 2, (n,), jnp.float32) / _STD_OF_TRUNCATED_NORMAL


def _ends_with(path: tuple[Any, ...], name: str) -> bool:
    return jax.tree_util.keystr(path[-1:], simple=True) == name
