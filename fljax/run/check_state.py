"""What a method gives: its first state, a state that is given back to it, and the models that it deploys."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fljax.choices import check_kind
from fljax.client.map import check_table
from fljax.types import Algorithm, ClientData, Key, ModelTable, State


def begun(init: Callable[..., State], key: Key, hyper: Any, data: ClientData) -> State:
    """What ``init`` of a method gives.

    Raises:
        ValueError: it is no `State`, or what clients keep has not a row for each of them: a round would give some
            another's, and lose their own.
    """
    state = init(key, hyper, data)
    check_kind("what init gave", state, State, "give fljax.State(server, clients)")
    n_clients = data.n_clients
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.clients):
        if (shape := jnp.shape(leaf))[:1] != (n_clients,):
            raise ValueError(
                f"init gave clients{jax.tree_util.keystr(path)} of shape {shape} for {n_clients} clients; give a row "
                f"for each, ({n_clients}, ...): of models fljax.tree.broadcast(params, data.n_clients)"
            )
    return state


def check_state(
    algorithm: Algorithm, hyper: Any, state: Any, data: ClientData, key: Key, *, same_clients: bool
) -> None:
    """Checks that ``state`` is one of the method's runs, and where ``same_clients``, that these were the run's clients.

    Raises:
        ValueError: it is none.
    """
    check_kind("state", state, State, "give what fljax.simulate gives first, or fljax.train(...).state")
    data = data if same_clients else _of_so_many(data, _n_kept(state) or data.n_clients)
    own = jax.eval_shape(algorithm.init, key, hyper, data)
    more = own
    if not same_clients:  # which axes are those of clients is seen with twice as many; newcomers do not say how long
        more = jax.eval_shape(algorithm.init, key, hyper, _of_so_many(data, 2 * data.n_clients))
    alike = jax.tree.structure(own) == jax.tree.structure(state)
    if not (alike and all(map(_fits, *map(jax.tree.leaves, (state, own, more))))):
        others = "method, network or federation" if same_clients else "method or network"
        raise ValueError(f"state is of another {others}; give that of {algorithm.about.name or 'the method'}'s run")


def _fits(leaf: Any, own: jax.ShapeDtypeStruct, more: jax.ShapeDtypeStruct) -> bool:
    """Whether ``leaf`` has the axes of ``own``, and their lengths where ``more`` has the same."""
    alike = len(jnp.shape(leaf)) == len(own.shape)
    return alike and all(n == a for n, a, b in zip(jnp.shape(leaf), own.shape, more.shape, strict=True) if a == b)


def _n_kept(state: State) -> int:
    """The clients that the run kept something for; 0: for none."""
    return next((leaf.shape[0] for leaf in jax.tree.leaves(state.clients) if jnp.ndim(leaf)), 0)


def _of_so_many(data: ClientData, n_clients: int) -> ClientData:
    """Shapes of ``data`` for other clients: a method may refuse to begin with few."""
    of_all = [jax.ShapeDtypeStruct((n_clients, *leaf.shape[1:]), leaf.dtype) for leaf in (data.index, data.size)]
    return data._replace(index=of_all[0], size=of_all[1])


def deployed(deploy: Callable[..., ModelTable], key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
    """The models that a method deploys.

    Raises:
        ValueError: they are no table, or it does not say of every client which row it holds.
    """
    models = deploy(key, hyper, state, data)
    check_kind("what deploy gave", models, ModelTable, "give fljax.ModelTable(params, row)")
    check_table(models)
    shape, kind = jnp.shape(models.row), jnp.result_type(models.row)
    if shape != data.size.shape or not jnp.issubdtype(kind, jnp.integer):
        given = f"deploy gave a row of shape {shape} and type {kind}"
        raise ValueError(f"{given}; give each of {data.n_clients} clients the number of the row that it holds")
    return models
