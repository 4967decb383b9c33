"""From a flax.nnx module to a `Model`: its state becomes a plain dict of parameters, and is restored for each call."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from fljax.choices import UNTOLD
from fljax.models.calling import Mode, about_inputs, calling_mode, check_layers, once, outputs_of
from fljax.models.lapack_init import one_by_one
from fljax.models.sizes import check_tuples, check_widths
from fljax.tree import STATISTICS, join_statistics, split_statistics
from fljax.types import Description, Key, Model, Params

Flat = list[tuple[tuple[Any, ...], Any]]
"""A state as ``(path, variable)`` pairs in a fixed order."""


def from_nnx(
    make: Callable[[nnx.Rngs], nnx.Module],
    input_shape: tuple[int, ...],
    layers: tuple[str, ...] | None = None,
    *,
    input_dtype: DTypeLike = jnp.float32,
) -> Model:
    """An nnx module as a `Model`.

    ::

        model = fljax.from_nnx(lambda rngs: Net(64, rngs=rngs), (8, 8, 1))

    Args:
        make: ``(rngs) -> module``. The module is called with a batch; ``module.train()`` and ``module.eval()`` set the
            training mode, as does an argument of its ``__call__`` as in `from_linen`. It may draw from its ``rngs``
            (dropout), and keep `nnx.BatchStat` variables, which are part of the parameters as running statistics.
        input_shape: shape of one example, without the batch axis.
        layers: the module's weighted attributes in forward order; None: all, in the order in which they are set.
        input_dtype: type of the module's inputs: float32, or int32 for tokens.

    Returns:
        The model; equal arguments return the same object. A ``make`` that is defined again, such as a lambda in a cell
        that is run again, is another function, and programs are compiled again for it.

    Raises:
        ValueError: ``make`` is not a function (but, for example, a module), the module cannot be made or called so,
            ``layers`` are not its layers, or it keeps other variables.
    """
    if isinstance(make, nnx.Module) or not callable(make):
        raise ValueError(f"make is of type {type(make).__name__}, not a function; give lambda rngs: Net(64, rngs=rngs)")
    check_tuples(input_shape=input_shape)
    check_widths(input_shape=input_shape)
    return _adapt(make, tuple(input_shape), None if layers is None else tuple(layers), jnp.dtype(input_dtype))


@once
def _adapt(
    make: Callable[[nnx.Rngs], nnx.Module],
    input_shape: tuple[int, ...],
    layers: tuple[str, ...] | None,
    input_dtype: DTypeLike,
) -> Model:
    attributes: list[str] = []

    def noted() -> nnx.Module:
        module = make(nnx.Rngs(0))
        attributes.extend(vars(module))  # in order here; a traced dict is sorted
        return module

    abstract = nnx.eval_shape(noted)
    name = type(abstract).__name__
    mode = calling_mode(type(abstract).__call__, name)
    _, params, statistics, _ = _divided(abstract)
    paths = [path for path, _ in params], [path for path, _ in statistics]
    layer_names = [
        attribute for attribute in dict.fromkeys(attributes) if any(path[0] == attribute for path in paths[0])
    ]

    def init(key: Key) -> Params:
        _, params, statistics, _ = _divided(make(nnx.Rngs(key)))
        return join_statistics(_nested(params), {STATISTICS: _nested(statistics)} if statistics else {})

    def apply(params: Params, x: Array, key: Key | None) -> tuple[Array, Params]:
        trainable, running = split_statistics(params)
        random_key = jax.random.key(0) if key is None else key
        module = nnx.eval_shape(lambda: make(nnx.Rngs(0)))  # shapes only; all variables are filled in below
        module.train() if key is not None else module.eval()
        graph, param_state, running_state, random_state = nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState)
        param_state = _filled(param_state, paths[0], trainable)
        running_state = _filled(running_state, paths[1], running.get(STATISTICS, {}))
        module = nnx.merge(graph, param_state, running_state, _seeded(random_state, random_key))
        outputs = module(x, **mode(key is not None))
        if key is None:
            return outputs, params
        updated = nnx.to_flat_state(nnx.state(module, nnx.BatchStat))
        return outputs, join_statistics(trainable, {STATISTICS: _nested(list(updated))} if running else {})

    batch = jax.ShapeDtypeStruct((1, *input_shape), input_dtype)
    outputs, traced = outputs_of(lambda x: apply(init(jax.random.key(0)), x, None)[0], batch, name)
    model = Model(one_by_one(init, traced), apply, check_layers(layer_names, layers))
    inputs = (*about_inputs(input_shape, input_dtype), *_vocabulary(make, batch, mode))
    sizes = (*inputs, ("n_outputs", outputs.shape[-1]))
    return model._replace(about=(("network", name), *sizes, ("arguments", UNTOLD)))  # only ``make`` knows them


def _vocabulary(make: Callable[[nnx.Rngs], nnx.Module], batch: jax.ShapeDtypeStruct, mode: Mode) -> Description:
    """The vocabulary of the module, if it embeds the examples directly."""
    vocabularies: list[int] = []

    def call(x: Array) -> Array:
        module = make(nnx.Rngs(0))
        module.eval()
        for _, node in nnx.iter_graph(module):
            if isinstance(node, nnx.Embed):
                object.__setattr__(node, "__class__", heeding(type(node), x))
        return module(x, **mode(False))

    def heeding(kind: type[nnx.Embed], x: Array) -> type[nnx.Embed]:
        class Heeding(kind):
            def __call__(self, inputs: Array, *arguments: Any, **options: Any) -> Array:
                if inputs is x:  # not an embedding of positions
                    vocabularies.append(self.num_embeddings)
                return super().__call__(inputs, *arguments, **options)

        return Heeding

    if jnp.issubdtype(batch.dtype, jnp.integer):
        jax.eval_shape(call, batch)
    return (("vocabulary", min(vocabularies)),) if vocabularies else ()


def _divided(module: nnx.Module) -> tuple[Any, Flat, Flat, Flat]:
    """(graph, parameters, running statistics, random state) of a module.

    Raises:
        ValueError: the module keeps variables of another kind, which would be lost.
    """
    graph, params, statistics, random_state, rest = nnx.split(module, nnx.Param, nnx.BatchStat, nnx.RngState, ...)
    if unknown_kinds := [type(variable).__name__ for _, variable in nnx.to_flat_state(rest)]:
        allowed = "only parameters and BatchStat are kept between rounds"
        raise ValueError(f"{type(module).__name__} keeps {', '.join(sorted(set(unknown_kinds)))}; {allowed}")
    params, statistics, random_state = (list(nnx.to_flat_state(state)) for state in (params, statistics, random_state))
    return graph, params, statistics, random_state


def _nested(flat: Flat) -> dict[str, Any]:
    """``{attribute: {...: array}}`` with indices of lists as text."""
    nested: dict[str, Any] = {}
    for path, variable in flat:
        inner = nested
        for part in path[:-1]:
            inner = inner.setdefault(str(part), {})
        inner[str(path[-1])] = variable.get_value()
    return nested


def _filled(state: Any, paths: list[tuple[Any, ...]], params: Mapping[str, Any]) -> Any:
    """``state`` with the arrays of ``params`` at its paths."""

    def at(path: tuple[Any, ...]) -> Any:
        inner: Any = params
        for part in path:
            inner = inner[str(part)]
        return inner

    variables = dict(nnx.to_flat_state(state))
    return nnx.from_flat_state([(path, variables[path].replace(at(path))) for path in paths])


def _seeded(state: Any, key: Key) -> Any:
    """``state`` with each stream of random numbers restarted from its own key, derived from ``key``."""
    restarted = []
    for i, (path, variable) in enumerate(nnx.to_flat_state(state)):
        value = jax.random.fold_in(key, i) if isinstance(variable, nnx.RngKey) else jnp.zeros((), jnp.uint32)
        restarted.append((path, variable.replace(value)))
    return nnx.from_flat_state(restarted)
