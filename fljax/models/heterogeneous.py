"""Networks of different architectures in one federation: client i has network ``i mod n``, and all end with one layer.

A client's parameters have a place for every network, of which it uses one, see `fljax.models.own_network`.
"""

from functools import cache

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import Array
from jax.typing import DTypeLike

from fljax.choices import check_kind, listed, unknown
from fljax.models.calling import outputs_of
from fljax.models.linen import Init, from_linen
from fljax.models.own_network import FLAGS, HEAD, with_own_network
from fljax.models.sizes import check_tuples, check_widths
from fljax.tree import STATISTICS, at_least_float32, join_statistics, split_statistics
from fljax.types import Description, Key, Model, Params


class _Head(nn.Module):
    n_classes: int
    dtype: DTypeLike

    @nn.compact
    def __call__(self, x, train):
        return at_least_float32(nn.Dense(self.n_classes, dtype=self.dtype, name=HEAD)(nn.relu(x)))


def heterogeneous(
    input_shape: tuple[int, ...] = (28, 28, 1),
    networks: tuple[str | Model, ...] = ("mlp", "cnn"),
    n_features: int = 64,
    n_classes: int = 10,
    dtype: DTypeLike = jnp.float32,
    init: Init = "lecun",
) -> Model:
    """Different networks for different clients: ``network - ReLU - head``; client i has network i modulo their number.

    Layers are the networks, by name, and ``head``, a dense layer of the same shape for all. All networks are in every
    client's parameters. Only methods that never combine the networks' parameters accept it, such as FedProto and FedMD.

    Args:
        input_shape: shape of an example.
        networks: names of fljax.MODELS, in their usual sizes, or models with ``n_features`` outputs. A network that is
            named twice has twice as many clients, and initial parameters for each time.
        n_features: outputs of every network, which are the inputs of ``head``.
        n_classes: width of the output.
        dtype: type of the computation of ``head`` and of networks given by name: float32, bfloat16 or float16.
        init: initialisation of ``head`` and of networks given by name: "lecun" or "pytorch" (`from_linen`).

    Raises:
        ValueError: a size below 1, no network, an unknown name, or a network that does not have ``n_features`` outputs.
    """
    check_tuples(input_shape=input_shape)
    check_widths(input_shape=input_shape, n_features=n_features, n_classes=n_classes)
    given = listed("networks", networks, "give names of fljax.MODELS or models, such as ('mlp', 'cnn')")
    if not given:
        raise ValueError("networks=() is empty; give one or more")
    options = {"input_shape": tuple(input_shape), "n_classes": n_features, "dtype": dtype, "init": init}
    head = from_linen(_Head(n_classes, dtype), (n_features,), init=init)
    return _joined(tuple(_named(one, options) for one in given), head, tuple(input_shape))


def _named(given: str | Model, options: dict) -> tuple[str, Model]:
    if not isinstance(given, str):
        check_kind("networks", given, Model, "give names of fljax.MODELS, or models")
        return str(dict(given.about).get("network", "model")).lower(), given
    from fljax.models import MODELS  # which holds `heterogeneous` too

    if given not in MODELS:
        raise ValueError(f"networks={given!r}: {unknown('model', given, MODELS)}")
    return given, MODELS[given](**options)


@cache
def _joined(given: tuple[tuple[str, Model], ...], head: Model, input_shape: tuple[int, ...]) -> Model:
    names, networks = _distinct([name for name, _ in given]), tuple(network for _, network in given)
    network_of = dict(zip(names, networks, strict=True))
    n_features = dict(head.about)["input_shape"][0]
    dtypes = dict.fromkeys(dict(network.about).get("input_dtype", "float32") for network in networks)
    if len(dtypes) > 1:
        raise ValueError(f"networks: they take examples of {' and '.join(dtypes)}; give networks for one of them")
    for name, network in network_of.items():
        _check_network(name, network, input_shape, n_features)

    def init(key: Key) -> Params:
        *keys, key_head = jax.random.split(key, len(names) + 1)
        params = head.init(key_head)
        statistics = {FLAGS: {name: jnp.float32(name == names[0]) for name in names}}
        for (name, network), own_key in zip(network_of.items(), keys, strict=True):
            params[name], own_statistics = split_statistics(network.init(own_key))
            if own_statistics:
                statistics[name] = own_statistics[STATISTICS]
        return join_statistics(params, {STATISTICS: statistics})

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        def features_of(params: Params) -> tuple[Array, Params]:
            layers, statistics = split_statistics(params)
            (name,) = (name for name in names if name in layers)
            own_statistics = statistics.get(STATISTICS, {}).get(name)
            own = join_statistics(layers[name], {STATISTICS: own_statistics} if own_statistics else {})
            features, updated = network_of[name].apply(own, x, key)
            new = split_statistics(updated)[1]
            return features, join_statistics(layers, {STATISTICS: {name: new[STATISTICS]}} if new else {})

        features, updated = with_own_network(features_of, params)
        logits, _ = head.apply({HEAD: params[HEAD]}, features, key)
        return logits, params if key is None else updated

    return Model(init, apply, (*names, HEAD), about=_about(networks, head, input_shape), n_networks=len(names))


def _distinct(names: list[str]) -> tuple[str, ...]:
    """Names of which equal ones are counted: mlp, mlp_2."""
    counts = [names[:i].count(name) for i, name in enumerate(names, start=1)]
    return tuple(name if count == 1 else f"{name}_{count}" for name, count in zip(names, counts, strict=True))


def _check_network(name: str, network: Model, input_shape: tuple[int, ...], n_features: int) -> None:
    """Raises ValueError unless the network returns ``n_features`` floats for an example."""
    if network.n_networks > 1 or name in (HEAD, FLAGS):
        raise ValueError(
            f"networks: {name!r} is heterogeneous itself, or has a name that is taken; give another network"
        )
    dtype = jnp.dtype(dict(network.about).get("input_dtype", "float32"))

    def outputs(x: Array) -> Array:
        return network.apply(network.init(jax.random.key(0)), x, None)[0]

    width = outputs_of(outputs, jax.ShapeDtypeStruct((1, *input_shape), dtype), name)[0].shape[-1]
    if width != n_features:
        raise ValueError(f"networks: {name!r} has {width} outputs; all need n_features={n_features}")


def _about(networks: tuple[Model, ...], head: Model, input_shape: tuple[int, ...]) -> Description:
    """The description; () if a network has none, because it would then be incomplete."""
    if not all(network.about for network in networks):
        return ()
    of_head, of_inputs = dict(head.about), {"input_shape": input_shape}
    for network in networks:  # of tokens, which all of them take
        of_inputs |= {name: value for name, value in network.about if name in ("input_dtype", "vocabulary")}
    return (
        ("network", "heterogeneous"),
        ("networks", tuple(network.about for network in networks)),
        *((name, of_head[name]) for name in ("n_classes", "dtype", "n_outputs", "initial")),
        *of_inputs.items(),
    )
