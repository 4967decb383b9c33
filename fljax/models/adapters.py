"""Adapters: a fixed network, and a small part of it that is trained and sent, with any method."""

import math
import zlib
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from fljax.argument_kinds import checked_kinds
from fljax.choices import Positive, check_kind
from fljax.models.calling import check_layers
from fljax.models.sizes import n_outputs
from fljax.ranges import real
from fljax.tree import split_statistics
from fljax.types import Description, Key, Model, Params

Leaves = dict[tuple[str, ...], Any]
"""Path -> array."""


@checked_kinds
def only_trained(model: Model, base: Params, layers: tuple[str, ...]) -> Model:
    """The model with only the named layers as parameters; all other layers stay as in ``base``.

    A method then trains, sends, averages, compares and keeps per client only these layers: for example FedPer with an
    adapter as personal layer, or FedAvg of a head on a pretrained body. The base is stored once, not once per client;
    its running statistics do not change.

    Args:
        model: the network.
        base: its parameters, from a finished run (`fljax.load_run`) or from ``model.init``.
        layers: names of the layers that are trained, starting from ``base``.

    Returns:
        A model. Each call returns a new object, which compiles again, so call it once.

    Raises:
        ValueError: the network has no such layers, or ``base`` are not its parameters.
    """
    trainable = _trainable_part(model, base)
    if not layers or not set(layers) <= set(model.layers):
        raise ValueError(f"layers={layers}: the network's layers are {model.layers}; name one or more of them")
    fixed = {name: part for name, part in base.items() if name not in layers}
    start = {name: trainable[name] for name in layers}

    def init(key: Key) -> Params:
        return jax.tree.map(jnp.asarray, start)

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        outputs, _ = model.apply(fixed | params, x, key)
        return outputs, params

    ordered = tuple(name for name in model.layers if name in layers)
    return model._replace(init=init, apply=apply, layers=ordered, halves=None, about=_about(model, base, layers))


@checked_kinds
def lora(
    model: Model,
    base: Params,
    rank: Positive = 4,
    *,
    layers: tuple[str, ...] | None = None,
    alpha: float | None = None,
) -> Model:
    """Low-rank adapters (LoRA, Hu et al., ICLR 2022): each kernel W of ``base`` becomes ``W + alpha / rank * A B``.

    A (inputs, rank) is drawn with variance 1 / inputs and B (rank, outputs) is 0 at first, so the network starts as
    ``base``. Kernels with more than two axes are treated as matrices (inputs, outputs), with all inputs of a
    convolution's window; an adapter has ``rank * (inputs + outputs)`` numbers.

    Args:
        model: the network.
        base: its parameters, which do not change.
        rank: rank of the change, at least 1.
        layers: layers whose kernels are adapted; None: all.
        alpha: scale of the change; None: ``rank``, a factor of 1.

    Returns:
        A model whose parameters are ``{layer: {...: {"a", "b"}}}``. Each call returns a new object, which compiles
        again, so call it once.

    Raises:
        ValueError: the network has no such layers, ``base`` are not its parameters, or the layers have no kernel.
    """
    trainable = _trainable_part(model, base)
    if alpha is not None and not math.isfinite(real("alpha", alpha)):
        raise ValueError(f"alpha={alpha} is out of its range; choose a finite number")
    chosen = model.layers if layers is None else layers
    if not set(chosen) <= set(model.layers):
        raise ValueError(f"layers={layers}: the network's layers are {model.layers}; name some of them")
    leaves: Leaves = flatten_dict({name: trainable[name] for name in chosen if isinstance(trainable[name], dict)})
    kernels = {path: leaf for path, leaf in leaves.items() if path[-1] == "kernel" and jnp.ndim(leaf) >= 2}
    if not kernels:
        raise ValueError(f"layers={chosen} have no kernel; choose dense or convolutional layers")
    factor = (rank if alpha is None else alpha) / rank

    def init(key: Key) -> Params:
        adapters = {}
        for i, (path, leaf) in enumerate(kernels.items()):
            bias = leaves.get((*path[:-1], "bias"))
            outputs = n_outputs(leaf.shape, None if bias is None else bias.shape)
            inputs = leaf.size // outputs
            a = jax.random.normal(jax.random.fold_in(key, i), (inputs, rank), jnp.float32) / math.sqrt(inputs)
            adapters[path] = {"a": a, "b": jnp.zeros((rank, outputs), jnp.float32)}
        return unflatten_dict({(*path, name): leaf for path, pair in adapters.items() for name, leaf in pair.items()})

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        flat, pairs = cast(Leaves, flatten_dict(base)), cast(Leaves, flatten_dict(params))
        for path, leaf in kernels.items():
            change = factor * pairs[*path, "a"] @ pairs[*path, "b"]
            flat[path] = leaf + change.reshape(leaf.shape)
        outputs, _ = model.apply(unflatten_dict(flat), x, key)
        return outputs, params

    ordered = tuple(name for name in model.layers if any(path[0] == name for path in kernels))
    about = (*_about(model, base, chosen), ("rank", rank), ("alpha", factor * rank))
    return model._replace(init=init, apply=apply, layers=ordered, halves=None, about=about)


def _trainable_part(model: Model, base: Params) -> dict[str, Any]:
    """The trainable part of ``base``.

    Raises:
        ValueError: ``base`` is not a dict, or differs from the network's parameters in layers or shapes.
    """
    if model.n_networks > 1:
        raise ValueError(
            f"clients have {model.n_networks} different networks; adapters are for one, so adapt each first"
        )
    check_kind("base", base, dict, "give the network's parameters, from model.init or fljax.load_run")
    trainable = split_statistics(base)[0]
    check_layers(list(trainable), model.layers)
    expected = jax.eval_shape(model.init, jax.random.key(0))
    if jax.tree.map(lambda leaf: leaf.shape, expected) != jax.tree.map(jnp.shape, base):
        raise ValueError("the base's parameters have other shapes than the network's; give those of this network")
    return trainable


def _about(model: Model, base: Params, layers: tuple[str, ...]) -> Description:
    """The network's description with the trained layers and a checksum of ``base``; () if it has no description."""
    checksum = 0
    for leaf in jax.tree.leaves(base):
        checksum = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), checksum)
    return (*model.about, ("trained", tuple(layers)), ("base", checksum)) if model.about else ()
