"""Features of an example, the input of a network's last layer, and linear heads on them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array, lax

from fljax import tree
from fljax.client.each_example import of_each_example
from fljax.types import ClientData, Key, Model, ModelTable, Params


class Seen(NamedTuple):
    """Features and outputs of a network for a batch."""

    features: Array  # (batch, d) float32, or wider, the last layer's input before ``change``
    logits: Array  # (batch, n_classes)
    params: Params  # all parameters, with the network's running statistics updated


def see(
    model: Model, params: Params, x: Array, key: Key | None, change: Callable[[Array], Array] = lambda h: h
) -> Seen:
    """``model.apply`` of the network's own layers, and the features, the input of its last layer.

    Args:
        model: any network of flax modules whose last layer is dense.
        params: the network's layers; layers of other names do not belong to the network and stay unchanged.
        x: (batch, ...) examples.
        key: as in ``Model.apply``; None is evaluation mode.
        change: features (batch, d) -> the input that the last layer gets instead.

    Raises:
        ValueError: no flax module has the name of the network's last layer, or the layer does not make its outputs.
    """
    inputs: list[Array] = []
    widths: list[int] = []

    def listen(call: Callable[..., Any], args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> Any:
        if context.module.path != (model.layers[-1],) or context.method_name != "__call__":
            return call(*args, **kwargs)
        inputs.append(tree.at_least_float32(args[0]))
        outputs = call(change(args[0]), *args[1:], **kwargs)
        widths.append(outputs.shape[-1])
        return outputs

    layers = {name: leaf for name, leaf in params.items() if name in (*model.layers, tree.STATISTICS)}
    with nn.intercept_methods(listen):
        logits, updated = model.apply(layers, x, key)
    if not inputs:
        raise ValueError(
            f"{dict(model.about).get('network', 'the model')}: no flax module {model.layers[-1]!r} of linen, and this "
            "method reads the input of the last layer; make the network by fljax.from_linen or fljax.MODELS"
        )
    check_last(model, widths[-1], logits.shape[-1])
    return Seen(inputs[-1], logits, params | updated)


def client_features(model: Model, models: ModelTable, data: ClientData) -> Array:
    """(clients, capacity, d) features of each client's examples, by the client's model; 0 past its size."""
    head_shape(model, tree.first(models.params))
    return of_each_example(lambda params, batch: see(model, params, batch.x, None).features, models, data, 0.0)


def linear(layer: Params, features: Array) -> Array:
    """Logits (batch, n_classes) of a dense layer {"kernel": (d, n_classes), "bias": (n_classes,)}; bias is optional."""
    value = features @ layer["kernel"]
    return value + layer["bias"][None] if "bias" in layer else value


def dense(key: Key, d_in: int, d_out: int) -> dict[str, Array]:
    """A dense layer, initialised as in PyTorch: uniform in ``[-d_in ** -0.5, d_in ** -0.5]``."""
    uniform = jax.random.uniform(key, (d_in + 1, d_out), jnp.float32, minval=-(d_in**-0.5), maxval=d_in**-0.5)
    return {"kernel": uniform[:d_in], "bias": uniform[d_in]}


def dense_and_norm(key: Key, d_in: int, d_out: int) -> dict[str, Array]:
    """A `dense` layer with the scale and shift that `normalised` applies to its output."""
    layer = dense(key, d_in, d_out)
    return layer | {"scale": jnp.ones_like(layer["bias"]), "shift": jnp.zeros_like(layer["bias"])}


def normalised(layer: Params, value: Array, axis: int) -> Array:
    """``value`` (batch, d), normalised to mean 0, variance 1 over an axis, times the layer's scale, plus its shift."""
    value = (value - value.mean(axis, keepdims=True)) * lax.rsqrt(value.var(axis, keepdims=True) + 1e-5)
    return value * layer["scale"][None] + layer["shift"][None]


def head_shape(model: Model, params: Params) -> tuple[int, int]:
    """(d, n_classes) of the network's last layer.

    Raises:
        ValueError: the layer has no kernel with two axes, or it does not make the network's outputs.
    """
    layer = params[model.layers[-1]]
    kernel = layer.get("kernel") if isinstance(layer, Mapping) else None
    if kernel is None or getattr(kernel, "ndim", None) != 2:
        raise ValueError(
            f"the network's last layer {model.layers[-1]!r} is not dense, so it has no features; end with a dense layer"
        )
    check_last(model, kernel.shape[1], dict(model.about).get("n_outputs", kernel.shape[1]))
    return kernel.shape


def check_last(model: Model, width: int, n_outputs: int) -> None:
    """Raises ValueError if the last trained layer, of ``width`` outputs, does not make the network's ``n_outputs``."""
    if width != n_outputs:
        raise ValueError(
            f"the last layer that is trained, {model.layers[-1]!r}, has {width} outputs, but the network has "
            f"{n_outputs}; train its last layer too"
        )
