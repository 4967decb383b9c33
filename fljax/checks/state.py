"""Checks of a method's first state, of a state that is passed to it, and of the models that it deploys."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import Array

from fljax.choices import check_kind
from fljax.client.map import check_table
from fljax.types import Algorithm, ClientData, Key, ModelTable, State


def begun(init: Callable[..., State], key: Key, hyper: Any, data: ClientData) -> State:
    """The state that ``init`` of a method returns.

    Raises:
        ValueError: it is no `State`, or its ``clients`` do not have one row per client, so that a round would mix up
            their rows.
    """
    state = init(key, hyper, data)
    check_kind("what init returned", state, State, "return fljax.State(server, clients)")
    n_clients = data.n_clients
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.clients):
        if (shape := jnp.shape(leaf))[:1] != (n_clients,):
            raise ValueError(
                f"init returned clients{jax.tree_util.keystr(path)} of shape {shape} for {n_clients} clients; return "
                f"one row per client, ({n_clients}, ...), for models fljax.tree.broadcast(params, data.n_clients)"
            )
    return state


def check_state(
    algorithm: Algorithm, hyper: Any, state: Any, data: ClientData, key: Key, *, same_clients: bool
) -> None:
    """Checks that ``state`` belongs to a run of the method, and with ``same_clients`` to a run with these clients.

    Raises:
        ValueError: it does not.
    """
    check_kind("state", state, State, "give the first result of fljax.simulate, or fljax.train(...).state")
    first = partial(jax.eval_shape, algorithm.init, key, hyper)
    expected, doubled = (first(data),) * 2 if same_clients else _with_other_clients(first, state, data)
    has_same_structure = jax.tree.structure(expected) == jax.tree.structure(state)
    if not (has_same_structure and all(map(_fits, *map(jax.tree.leaves, (state, expected, doubled))))):
        what = "method, network or federation" if same_clients else "method or network"
        raise ValueError(
            f"state is of another {what}; give the state of a run of {algorithm.about.name or 'the method'}"
        )


def _with_other_clients(first: Callable[[ClientData], Any], state: State, data: ClientData) -> tuple[Any, Any]:
    """Shapes of the ``first`` state with some number of clients, and with twice as many.

    They show which axes are those of clients, whose lengths may differ. A method may reject these numbers, as one that
    is told each client's edge does; then both are with the number of clients that gives the lengths of ``state``.
    """
    n_clients = _n_kept_clients(state) or data.n_clients
    try:
        return first(_with_n_clients(data, n_clients)), first(_with_n_clients(data, 2 * n_clients))
    except ValueError:
        for length in sorted({jnp.shape(leaf)[0] for leaf in jax.tree.leaves(state) if jnp.ndim(leaf)}):
            with contextlib.suppress(ValueError):
                expected = first(_with_n_clients(data, length))
                if [*map(jnp.shape, jax.tree.leaves(expected))] == [*map(jnp.shape, jax.tree.leaves(state))]:
                    return expected, expected
        raise


def _fits(leaf: Any, expected: jax.ShapeDtypeStruct, doubled: jax.ShapeDtypeStruct) -> bool:
    """Whether ``leaf`` has the axes of ``expected``, and the lengths of those axes in which ``doubled`` is equal."""
    shape = jnp.shape(leaf)
    lengths = zip(shape, expected.shape, doubled.shape, strict=True)
    return len(shape) == len(expected.shape) and all(n == a for n, a, b in lengths if a == b)


def _n_kept_clients(state: State) -> int:
    """The number of clients for which the run keeps something; 0 if it keeps nothing per client."""
    return next((leaf.shape[0] for leaf in jax.tree.leaves(state.clients) if jnp.ndim(leaf)), 0)


def _with_n_clients(data: ClientData, n_clients: int) -> ClientData:
    """Shapes of ``data`` for another number of clients; a method may reject a small number."""
    leaves = (data.index, data.size)
    index, size = (cast(Array, jax.ShapeDtypeStruct((n_clients, *leaf.shape[1:]), leaf.dtype)) for leaf in leaves)
    return data._replace(index=index, size=size)


def deployed(deploy: Callable[..., ModelTable], key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
    """The models that a method deploys.

    Raises:
        ValueError: they are no `ModelTable`, or ``row`` does not have one row number per client.
    """
    models = deploy(key, hyper, state, data)
    check_kind("what deploy returned", models, ModelTable, "return fljax.ModelTable(params, row)")
    check_table(models)
    shape, kind = jnp.shape(models.row), jnp.result_type(models.row)
    if shape != data.size.shape or not jnp.issubdtype(kind, jnp.integer):
        text = f"deploy returned a row of shape {shape} and type {kind}"
        raise ValueError(f"{text}; return the row number of each of the {data.n_clients} clients")
    return models
