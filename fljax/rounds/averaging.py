"""The skeleton of methods that average one model, or a shared part of one.

::

    start_i <- join(shared, own_i)                  client i's initial model
    w_i     <- local(hyper, start_i, cohort)        local training
    s_i, own_i <- split(w_i)                        the part that is sent, and the part that the client keeps
                                                    (here uplink bricks apply, see `fljax.rounds.uplink`)
    shared  <- combine(hyper, shared, s, omega)     aggregation
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.client.objectives import predictor
from fljax.models.own_network import check_shared, first_network, own_copies
from fljax.rounds.accounting import Weighting, client_weight, reported
from fljax.rounds.combine import Combining, as_combine, mean
from fljax.rounds.joining import new_client_rounds
from fljax.rounds.local import Local, local_of
from fljax.rounds.sharing import GLOBAL_AND_OWN, WHOLE, Sharing
from fljax.shown import repr_with_shapes
from fljax.types import (
    Algorithm,
    ClientData,
    Cohort,
    Exchange,
    Key,
    Metrics,
    Model,
    ModelTable,
    Params,
    Stacked,
    State,
    Upload,
    Work,
)

Deploy = Callable[[Key, Any, State, ClientData], ModelTable]
"""The `Algorithm.deploy` of a method."""


class ServerState(NamedTuple):
    """The server's state if `combine` has a state; otherwise it is the shared part itself."""

    shared: Params
    memory: Any

    __repr__ = repr_with_shapes


class ReceivedModels(NamedTuple):
    """Instead of the server's state in `Exchange.send`: what each participant has received, if it differs."""

    models: Stacked  # (cohort, ...) of the shared part
    server: Any = None  # the server's state

    @property
    def own(self) -> "ReceivedModels":
        """The same for a method inside another one, whose server keeps the method's state as ``own``."""
        return self._replace(server=self.server.own)


def shared_part(server: Any) -> Params:
    """The shared part in the server's state."""
    return server.shared if isinstance(server, ServerState) else server


@checked_kinds
def averaging(
    model: Model,
    local: Local | Work,
    *,
    sharing: Sharing = WHOLE,
    combine: Combining = mean,
    weighting: Weighting = "size",
    begin: Callable[[Key], Params] | None = None,
    n_sent: Callable[[Params], int] = tree.size,
    metrics: Callable[[State, Cohort], Metrics] = lambda state, cohort: {},
    deployed: Callable[[Params], Params] = lambda params: params,
) -> Algorithm:
    """A method whose server keeps one model, or one shared part of the clients' models.

    ``State.server`` is the shared part (`ServerState` if ``combine`` has a state), ``State.clients`` what clients keep.

    Args:
        model: the network.
        local: ``(hyper, start, cohort) -> Trained``, the clients' part of a round, see `fljax.rounds.local`; a `Work`:
            they train on ``model.loss``.
        sharing: which part is sent, and which part clients keep.
        combine: ``(hyper, shared, received, weight) -> shared`` or a `Combine`: how the server combines the received
            parts.
        weighting: "size" (omega_i = n_i) or "uniform" (omega_i = 1).
        begin: ``(key) -> params``, the initial model of all clients; None: ``model.init``.
        n_sent: ``(shared) -> int``, the floats that a participant sends per round; it receives as many.
        metrics: ``(state, cohort) -> dict``, the method's own, from the state after a round (participants' rows); added
            to the usual ones, or in their place.
        deployed: ``(held) -> params``, the model's parameters in what a client holds.

    Returns:
        The algorithm. New clients start from the initial values, and are deployed to like the others.
    """
    train, combining = local_of(local, model), as_combine(combine)

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        shared, own = sharing.split((begin or model.init)(key))
        check_shared(model, shared, own)
        return State(server_state(shared, combining.init(hyper, shared)), own_copies(model, own, data.n_clients))

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        if isinstance(state.server, ReceivedModels):
            received = tree.own(state.server.models)
            start = tree.own(sharing.join(received.params, state.clients))
        else:
            shared, n = shared_part(state.server), cohort.n_clients
            received, start = tree.everyone(shared, n), sharing.held(shared, state.clients, n)
        trained = train(hyper, start, cohort)
        sent, own = sharing.split(trained.params)
        weight = client_weight(weighting, cohort, trained.ok)
        return Upload(received, sent, weight, trained._replace(params=own))

    def receive(key: Key, hyper: Any, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        shared, memory = shared_and_memory(state.server)
        shared, memory = combining.apply(hyper, memory, shared, upload.params, upload.weight)
        new_state = State(server_state(shared, memory), upload.rest.params)
        return new_state, reported(upload.rest, n_sent(shared)) | metrics(new_state, cohort)

    exchange = Exchange(send, receive, shared_part, "mean" if combining.sums else "each", starts_anywhere=True)

    def deploy(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
        held = sharing.held(shared_part(state.server), state.clients, data.n_clients)
        params = deployed(held.params)
        return ModelTable(params, held.row if tree.n_rows(params) > 1 else 0 * held.row)

    return Algorithm(init, exchange.round, deploy, predictor(model), loss=model.loss, exchange=exchange)


@checked_kinds
def two_models(
    model: Model,
    local: Local,
    deployed: Literal["global", "own"],
    *,
    combine: Combining = mean,
    weighting: Weighting = "size",
) -> Algorithm:
    """`averaging` of clients that hold ``{"global": theta, "own": v_i}``: "global" is shared; both start equal.

    If clients are tested with their own models, a new client's starts as the server's model (`join_from_shared`). If
    clients have different networks, the server's model is the first of them, and a new client's own starts as it was
    initialised.

    Args:
        model: the network.
        local: ``(hyper, start, cohort) -> Trained``, the clients' part of a round, with both models.
        deployed: the model that a client is tested with.
        combine: ``(hyper, shared, received, weight) -> shared`` or a `Combine`: how the server combines the global
            models.
        weighting: "size" (omega_i = n_i) or "uniform" (omega_i = 1).

    Raises:
        ValueError: ``deployed`` is neither of them.
    """

    def begin(key: Key) -> dict[str, Params]:
        theta = model.init(key)
        return {"global": first_network(model, theta), "own": theta}

    rounds = averaging(
        model,
        local,
        sharing=GLOBAL_AND_OWN,
        combine=combine,
        weighting=weighting,
        begin=begin,
        deployed=itemgetter(deployed),
    )
    starts_as_shared = deployed == "own" and model.n_networks == 1
    return rounds._replace(join=join_from_shared(rounds)) if starts_as_shared else rounds


def join_from_shared(
    rounds: Algorithm, keeps: Callable[[Any, Params], Any] = lambda hyper, shared: shared
) -> Callable[..., ModelTable]:
    """An `Algorithm.join`: a new client's own model starts as the server's, which stays fixed; ``rounds`` train it.

    Args:
        rounds: the method.
        keeps: ``(hyper, shared) -> own``, what a client keeps at first beside the server's part, if it is not a copy.
    """

    def join(key: Key, hyper: Any, state: State, data: ClientData, n_rounds: Array) -> ModelTable:
        own = keeps(hyper, shared_part(state.server))
        initial = State(state.server, tree.broadcast(own, data.n_clients))
        final = new_client_rounds(rounds.round, key, hyper, initial, data, n_rounds)
        return rounds.deploy(key, hyper, final, data)

    return join


def held_by_all(key: Key, hyper: Any, state: State, data: ClientData) -> ModelTable:
    """The `Algorithm.deploy` of methods without this skeleton: all clients hold the server's ``shared``."""
    return tree.everyone(state.server.shared, data.n_clients)


def server_state(shared: Params, memory: Any) -> Any:
    """The server's state from a shared part and the state of a combine: the part itself if that state is ()."""
    return shared if type(memory) is tuple and not memory else ServerState(shared, memory)


def shared_and_memory(server: Any) -> tuple[Params, Any]:
    """The inverse of `server_state`."""
    return server if isinstance(server, ServerState) else (server, ())
