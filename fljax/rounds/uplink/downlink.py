"""Downlink: chains of the same transforms, applied to the changes of the server's model on their way to the clients.

The server keeps an image: the model as clients have received it. In a round, it sends the difference between its model
and the image through the chain; clients train from the image, and their updates are added to the model itself. What the
chain loses remains in the difference and is sent later, so no error feedback is needed (MCM: Philippenko, Dieuleveut,
NeurIPS 2021, https://arxiv.org/abs/2102.12528). Every client receives every broadcast, also those that do not
participate; the initial model is not sent, because all clients draw it from a common seed.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.argument_kinds import checked_kinds
from fljax.rounds.averaging import ReceivedModels
from fljax.rounds.round_metrics import checked_metrics
from fljax.rounds.uplink.chain import Memory, Transform, applied, sent_floats, trip_of, without_numbers
from fljax.rounds.uplink.message import n_numbers, plain_message, received, shapes_of
from fljax.rounds.wrapping import inside, within_server
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Params, Stacked, State, Upload


class Broadcast(NamedTuple):
    """The server's half of a method's `State`, and the state of the downlink."""

    own: Any
    image: Params  # the shared part, as clients have it
    link: Any  # the state of the transforms


@checked_kinds
def with_downlink(algorithm: Algorithm, transform: Transform) -> Algorithm:
    """``algorithm`` whose model goes through ``transform`` before clients see it.

    The metric ``downlink`` counts what is actually sent, in floats of 32 bits.

    Raises:
        ValueError: the method's clients start from more than one model.
    """
    exchange = algorithm.round_exchange
    if exchange is None or not exchange.starts_anywhere:
        name = algorithm.about.name or "this method"
        reason = "its clients do not all start from one model, or its round is its own"
        raise ValueError(f"{name}: {reason}, so nothing can change the model on its way; leave downlink bricks out")

    part = exchange.part

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        state = algorithm.init(key, hyper, data)
        image = part(state.server)
        return State(Broadcast(state.server, image, transform.init(hyper, 1, shapes_of(image))), state.clients)

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        shared = part(state.server.own)
        news = broadcast_of(transform, key, hyper, state.server, shared, cohort)
        images = tree.broadcast(news.image, cohort.n_clients)
        upload = exchange.send(key, hyper, State(ReceivedModels(images, state.server.own), state.clients), cohort)
        start, models = tree.everyone(shared, cohort.n_clients), with_updates(upload.params, images, shared)
        return upload._replace(start=start, params=models, rest=(upload.rest, news))

    def receive(key: Key, hyper: Any, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        rest, news = upload.rest
        new_state, metrics = exchange.receive(key, hyper, within_server(state), cohort, upload._replace(rest=rest))
        metrics = checked_metrics(metrics, cohort)
        metrics |= {"downlink": sent_floats(metrics["downlink"], n_numbers(shapes_of(news.image)), news.bits)}
        return State(Broadcast(new_state.server, news.image, news.link), new_state.clients), metrics

    return without_numbers(inside(algorithm, init, within_server, send=send, receive=receive, starts_anywhere=False))


class News(NamedTuple):
    """The state after a broadcast."""

    image: Params  # as clients have it now
    link: Memory  # the state of the transforms
    bits: Array  # () number of bits sent


def broadcast_of(transform: Transform, key: Key, hyper: Any, server: Broadcast, shared: Params, cohort: Cohort) -> News:
    """The broadcast of a round, for the present model ``shared``."""
    image, model, shapes = tree.everyone(server.image, 1), tree.broadcast(shared, 1), shapes_of(shared)
    message = plain_message(image, model, jnp.ones(1, jnp.float32))
    trip = trip_of(jax.random.fold_in(key, _ON_THE_WAY_DOWN), cohort, shapes)
    one_trip = trip._replace(key=trip.server_key[None], ids=jnp.zeros(1, jnp.int32))
    memory, arrived = applied(transform, hyper, server.link, message, one_trip)
    image = received(image, model, message.values, arrived.values)
    return News(jax.tree.map(lambda leaf: leaf[0], image), memory, arrived.n_bits()[0])


def with_updates(trained: Stacked, start: Stacked, shared: Params) -> Stacked:
    """``shared`` plus each participant's update from its ``start``; where both are equal, exactly the trained value."""

    def one(trained: Array, start: Array, shared_leaf: Array) -> Array:
        return jnp.where(start == shared_leaf[None], trained, shared_leaf[None] + (trained - start))

    return jax.tree.map(one, trained, start, shared)


def renamed(transform: Transform, **fields: str) -> Transform:
    """``transform`` that reads its hyperparameters under other names: ``bits="down_bits"``."""

    def own(hyper: Any) -> Any:
        return SimpleNamespace(**{inner: getattr(hyper, outer) for inner, outer in fields.items()})

    def apply(hyper: Any, *rest: Any) -> Any:
        return transform.apply(own(hyper), *rest)

    def init(hyper: Any, *rest: Any) -> Memory:
        return transform.init(own(hyper), *rest)

    return transform._replace(apply=apply, init=init)


_ON_THE_WAY_DOWN = 0x646F776E
