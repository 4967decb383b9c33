"""Transforms of updates between client and server, chained as in optax; they apply to any exchange."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fljax import tree
from fljax.argument_kinds import Allowed, check_allowed, checked_kinds
from fljax.choices import check_kind, listed
from fljax.rounds.check_like import check_like
from fljax.rounds.cohort import keys_for
from fljax.rounds.round_metrics import checked_metrics
from fljax.rounds.uplink.message import FLOAT_BITS, Message, Trip, plain_message, received, shapes_of
from fljax.rounds.wrapping import halves_of, inside
from fljax.types import Algorithm, ClientData, Cohort, Key, Metrics, Params, State, Upload


class Memory(NamedTuple):
    """The state of a transform from round to round."""

    server: Any = ()  # without a client axis
    clients: Any = ()  # every leaf (clients, ...); in a round (cohort, ...)


def _empty_memory(hyper: Any, n_clients: int, shapes: tuple) -> Memory:
    return Memory()


class Transform(NamedTuple):
    """Changes updates on their way: a pair of functions, like an optax transformation.

    ``apply(hyper, memory, message, trip) -> (memory, message)``, with the participants' rows of the memory;
    ``init(hyper, n_clients, shapes) -> Memory`` before the first round. Rows of weight 0 did not send, so their values
    must have no effect.
    """

    apply: Callable[[Any, Memory, Message, Trip], tuple[Memory, Message]]
    init: Callable[[Any, int, tuple], Memory] = _empty_memory
    needs: str = ""  # "sum": the server may only sum the updates; "mean": it averages them, all with equal weight
    is_last: bool = False  # nothing may change its messages
    not_fed_back: str = ""  # why a client must not add what this loses to its next update
    name: str = ""
    sees_each: bool = False  # the server looks at single messages
    masks: bool = False  # its messages can only be summed
    follows_mask: bool = False  # may come after a transform that masks: its clients' part happens before the mask
    feeds_back: bool = False  # a client adds what one update lost to its next one


Link = Transform | Callable[[Transform], Transform]
"""A part of a chain: a transform, or a function of the rest of the chain, as `error_feedback` is."""

LINK = Allowed((Transform,), is_function=True, form="a function of the rest of the chain")
"""What a `Link` is, for `check_allowed`."""

NOTHING = Transform(lambda hyper, memory, message, trip: (memory, message), name="nothing")
"""Updates arrive unchanged."""


def chained(links: Sequence[Link]) -> Transform:
    """One transform from several, applied in the order of ``links``.

    Raises:
        ValueError: one is neither a transform nor a function, or this order is not possible.
    """
    remedy, rest = "give a list of transforms", NOTHING
    if isinstance(links, Transform):  # which is a tuple, of its functions
        raise ValueError(f"links is one Transform, not a list; {remedy}")
    links = listed("links", links, remedy)
    for i, link in enumerate(links):
        check_allowed(f"link {i}", link, LINK)
    for link in reversed(links):
        rest = _followed_by(link, rest) if isinstance(link, Transform) else link(rest)
        check_kind(
            "what a brick of the uplink returned", rest, Transform, "write Brick(..., value=Transform(function))"
        )
    return rest


def _followed_by(first: Transform, rest: Transform) -> Transform:
    if rest is NOTHING:
        return first
    if first.is_last:
        raise ValueError(f"{first.name} comes before {rest.name}, which would change its result; put it last")
    if first.masks and not rest.follows_mask:
        raise ValueError(f"{first.name} comes before {rest.name}, which would change what it has masked; put it last")

    hides, sees_each = first.needs or rest.needs, first.sees_each or rest.sees_each
    if hides and sees_each:
        raise ValueError(f"{first.name}, {rest.name}: one needs single updates, the other hides all but their {hides}")

    def init(hyper: Any, n_clients: int, shapes: tuple) -> Memory:
        parts = [link.init(hyper, n_clients, shapes) for link in (first, rest)]
        return Memory(tuple(part.server for part in parts), tuple(part.clients for part in parts))

    def apply(hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
        memories = []
        for i, link in enumerate((first, rest)):
            new, message = link.apply(hyper, Memory(memory.server[i], memory.clients[i]), message, trip.part(i))
            memories.append(new)
        return Memory(tuple(m.server for m in memories), tuple(m.clients for m in memories)), message

    return first._replace(
        apply=apply,
        init=init,
        needs="mean" if "mean" in (first.needs, rest.needs) else hides,
        is_last=rest.is_last,
        not_fed_back=first.not_fed_back or rest.not_fed_back,
        sees_each=sees_each,
        masks=first.masks or rest.masks,
        follows_mask=first.follows_mask and rest.follows_mask,
        feeds_back=first.feeds_back or rest.feeds_back,
    )


class Linked(NamedTuple):
    """A half of a method's `State`, and the state of the transforms."""

    own: Any
    link: Any


@checked_kinds
def with_uplink(algorithm: Algorithm, transform: Transform) -> Algorithm:
    """``algorithm`` whose participants' updates go through ``transform`` before the server sees them.

    ``State.server`` and ``State.clients`` are `Linked`. The metric ``uplink`` counts what is actually sent, in floats
    of 32 bits. Parts that clients keep do not change.

    Raises:
        ValueError: the method's server needs what the transform hides, clients send nothing, or lost parts would be
            added twice; at the start of a run: noise on a mean would not hide all that is sent; when a round is traced:
            the transform returns another shape.
    """
    name, exchange = algorithm.about.name or "this method", algorithm.round_exchange
    if exchange is None:
        raise ValueError(
            f"{name}: its round is not made of two halves, so nothing can change updates on their way; leave uplink "
            "bricks and attacks on updates out, or give the method an Exchange"
        )
    _check_seen(name, exchange.sees, transform.needs)
    if transform.feeds_back and exchange.catches_up:
        raise ValueError(
            f"{name}: a client's update is relative to the server's copy of its model, so the next update contains "
            "what one loses, and error_feedback would add it twice; leave it out"
        )

    def init(key: Key, hyper: Any, data: ClientData) -> State:
        state = algorithm.init(key, hyper, data)
        part = exchange.part(state.server)
        shapes = shapes_of(part)
        if not shapes:
            raise ValueError(f"{name}: clients send nothing to the server; leave bricks that change updates out")
        if transform.needs == "mean":
            _check_exact(name, part)
        memory = transform.init(hyper, data.n_clients, shapes)
        return State(Linked(state.server, memory.server), Linked(state.clients, memory.clients))

    def send(key: Key, hyper: Any, state: State, cohort: Cohort) -> Upload:
        return exchange.send(key, hyper, _inner_state(state), cohort)

    def receive(key: Key, hyper: Any, state: State, cohort: Cohort, upload: Upload) -> tuple[State, Metrics]:
        shapes = shapes_of(exchange.part(state.server.own))
        message = plain_message(upload.start, upload.params, upload.weight)
        memory = Memory(state.server.link, state.clients.link)
        memory, arrived = applied(transform, hyper, memory, message, trip_of(key, cohort, shapes))
        finite = jnp.isfinite(arrived.values).all(axis=1)
        if not transform.needs:  # a server that sees single updates excludes those with NaN or inf
            values = jnp.where(finite[:, None], arrived.values, 0.0)
            arrived = arrived._replace(values=values, weight=jnp.where(finite, arrived.weight, 0.0))
        params = received(upload.start, upload.params, message.values, arrived.values)
        upload = upload._replace(params=params, weight=arrived.weight)
        new_state, metrics = exchange.receive(key, hyper, _inner_state(state), cohort, upload)
        metrics = checked_metrics(metrics, cohort)
        metrics |= {"ok": metrics["ok"] & finite}
        metrics |= {"uplink": sent_floats(metrics["uplink"], message.values.shape[1], arrived.n_bits())}
        return State(Linked(new_state.server, memory.server), Linked(new_state.clients, memory.clients)), metrics

    linked = inside(algorithm, init, _inner_state, send=send, receive=receive)
    return without_numbers(linked._replace(exchange=halves_of(linked)._replace(chain=(algorithm, transform))))


def applied(transform: Transform, hyper: Any, memory: Memory, message: Message, trip: Trip) -> tuple[Memory, Message]:
    """The result of a transform on the participants' updates.

    Raises:
        ValueError: it is not a memory and a message, or they have other shapes.
    """
    name, result = f"transform {transform.name or 'of yours'}", transform.apply(hyper, memory, message, trip)
    kinds = [type(part).__name__ for part in result] if type(result) is tuple else [type(result).__name__]
    if kinds != [Memory.__name__, Message.__name__]:
        raise ValueError(f"{name} returned {' and '.join(kinds) or 'nothing'}; return (memory, message)")
    new_memory, arrived = result
    check_like(f"{name} returned a memory", new_memory, memory)
    check_like(f"{name} returned an array of updates", arrived.values, message.values)
    check_like(f"{name} returned an array of weights", arrived.weight, message.weight)
    return new_memory, arrived


def without_numbers(algorithm: Algorithm) -> Algorithm:
    """``algorithm`` without its list of hyperparameters, because an added part reads others than its own class has."""
    return algorithm._replace(about=algorithm.about._replace(numbers=()))


def _check_seen(name: str, sees: str, needs: str) -> None:
    """Raises ValueError if a method's server ``sees`` more than a transform, by its ``needs``, leaves visible."""
    hint = "; dp_sgd protects the examples of each client instead" if needs == "mean" else ""
    if needs and sees == "each":
        remedy = hint or "; leave the brick out, or choose a method that averages updates"
        raise ValueError(f"{name}: its server needs single updates, but may only see their {needs} here{remedy}")
    if needs == "mean" and sees != "mean":
        raise ValueError(
            f"{name}: its server does not compute one mean of all updates, or an update depends on more than one "
            f"client's data, so that noise on a mean does not hide a client{hint}"
        )


def _check_exact(name: str, part: Params) -> None:
    """Raises ValueError if clipped updates would be changed by rounding, or something else is sent beside them."""
    trainable, statistics = tree.split_statistics(part)
    if statistics:
        raise ValueError(f"{name}: running statistics of a network are sent without noise; use a network without them")
    dtypes = sorted({leaf.dtype.name for leaf in jax.tree.leaves(trainable) if leaf.dtype.itemsize < 4})
    if dtypes:  # rounding to bfloat16: slightly more than half of the last digit becomes a whole one
        raise ValueError(
            f"{name}: parameters of {dtypes[0]} round a clipped update to up to twice its length, but the noise is "
            "scaled to the clip; use a network with float32 parameters"
        )


def sent_floats(floats: Array, d: int, bits: Array) -> Array:
    """``floats`` () or (cohort,) that a method counts, if its d numbers are sent in ``bits`` () or (cohort,).

    If the method sends only a part of an update, such as DC-PFL's due layers, it saves the same share.
    """
    share = bits / (FLOAT_BITS * d)
    return floats - jnp.minimum(floats, float(d)) * (1 - share)


def trip_of(key: Key, cohort: Cohort, shapes: tuple) -> Trip:
    """The `Trip` of a round's participants; its keys are used for nothing else."""
    keys, server_key = keys_for(cohort, _ON_THE_WAY), jax.random.fold_in(key, _ON_THE_WAY)
    expected = float(cohort.n_clients) if cohort.expected is None else cohort.expected
    return Trip(keys, server_key, cohort.ids, cohort.round, shapes, expected)


_ON_THE_WAY = 0x75706C6B


def _inner_state(state: State) -> State:
    return State(state.server.own, state.clients.own)
