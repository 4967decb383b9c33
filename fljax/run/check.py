"""What a run is told, checked before anything is traced: a refusal names the field, what it was and what it may be."""

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fljax import tree
from fljax.choices import check_kind
from fljax.data.federation import minibatch
from fljax.data.labels import are_classes
from fljax.models.task import task_of
from fljax.numbers import LocalHyper, as_dict, numbers_of
from fljax.ranges import real, said
from fljax.rounds.method import Method
from fljax.server.checks import is_key
from fljax.types import Algorithm, ClientData, Federation, Key, State


def whole(name: str, value: Any) -> int:
    """``value`` as an int.

    Raises:
        ValueError: it is not a whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{said(name, value)} is not a whole number; give one") from None


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Raises ValueError where ``value`` is not a whole number of at least ``least``, 0 or 1."""
    if whole(name, value) < least:
        raise ValueError(f"{name}={value} is {'not positive' if least else 'negative'}; choose {name} >= {least}")


def check_run(n_rounds: int, evaluate_every: int, dropout: float | None) -> None:
    """Raises ValueError where a run's number is out of its range."""
    check_count("n_rounds", n_rounds)
    check_count("evaluate_every", evaluate_every)
    try:
        fits = dropout is None or 0 <= real("dropout", dropout) < 1
    except ValueError:
        raise ValueError(f"{said('dropout', dropout)} is not a number; give one") from None
    if not fits:
        raise ValueError(f"dropout={dropout} is not a probability below 1; choose 0 <= dropout < 1")


def check_subjects(algorithm: Algorithm, federation: Federation, key: Key) -> None:
    """Checks that a run's method, clients and key are what they are to be, and that its labels suit its loss.

    Raises:
        ValueError: they are not; saying what they are, and what to give.
    """
    call = f"call it: fljax.{algorithm.name}(model, work)" if isinstance(algorithm, Method) else "make one by a method"
    check_kind("algorithm", algorithm, Algorithm, call)
    check_kind("federation", federation, Federation, "make one by fljax.PARTITIONS or fljax.own_data")
    check_key(key)
    about, x = dict(algorithm.about.model), federation.train.pool.x
    made_for, given = about.get("input_shape"), x.shape[1:]
    if (kind := about.get("input_dtype")) is not None and x.dtype != jnp.int32:
        pixels = ", which are pixels and are scaled" if x.dtype == jnp.uint8 else ""
        raise ValueError(f"the network takes {kind} tokens, and the examples are {x.dtype}{pixels}; give int32")
    if made_for is not None and math.prod(made_for) != math.prod(given):
        raise ValueError(
            f"the network takes examples of shape {made_for}, and the clients' are {given}; make it for these"
        )
    if (vocabulary := about.get("vocabulary")) is not None:
        _check_tokens(vocabulary, federation)
    check_labels(algorithm, federation)


def check_key(key: Any) -> None:
    """Raises ValueError where ``key`` is not one random key, nor, in the older form of JAX, its data."""
    if not is_key(key):
        raise ValueError(f"{said('key', key)} is not a random key; give jax.random.key(0)")


def check_labels(algorithm: Algorithm, federation: Federation) -> None:
    """Checks that the labels are of the kind that the model's loss is for, and that it has an output for each class.

    Raises:
        ValueError: saying what they are, and what to give.
    """
    y, task = federation.train.pool.y, task_of(algorithm.loss)
    shape = f"labels are {y.dtype} of shape {y.shape}"
    if task != "classification":
        if are_classes(y):
            raise ValueError(f"{shape}: classes, and the model is one of {task}; give floating-point targets")
        return
    if not are_classes(y):
        raise ValueError(
            f"{shape}, and the model's loss is of classes 0, 1, 2, ...; give whole numbers, or make the model "
            "fljax.regression(model) or fljax.multi_label(model), which take a loss of your own as loss="
        )
    if (n_outputs := dict(algorithm.about.model).get("n_outputs")) is not None:
        _check_enough(n_outputs, federation)


def begun(init: Callable[..., State], key: Key, hyper: Any, data: ClientData) -> State:
    """What ``init`` of a method gives.

    Raises:
        ValueError: it is no `State`, or what clients keep has not a row for each of them: a round would give some
            another's, and lose their own.
    """
    state = init(key, hyper, data)
    check_kind("what init gave", state, State, "give fljax.State(server, clients)")
    n_clients = data.size.shape[0]
    for path, leaf in jax.tree_util.tree_leaves_with_path(state.clients):
        if (shape := jnp.shape(leaf))[:1] != (n_clients,):
            raise ValueError(
                f"init gave clients{jax.tree_util.keystr(path)} of shape {shape} for {n_clients} clients; give a row "
                f"for each, ({n_clients}, ...): of models fljax.tree.broadcast(params, data.size.shape[0])"
            )
    return state


def check_outputs(algorithm: Algorithm, hyper: Any, federation: Federation, key: Key) -> None:
    """Checks that a network which does not say how many outputs it has, such as two functions, has one for each class.

    Raises:
        ValueError: it has fewer, so that the loss of some examples would not be a number.
    """
    if "n_outputs" not in dict(algorithm.about.model) and task_of(algorithm.loss) == "classification":
        outputs = _first_outputs.eval_shape(algorithm, hyper, federation.train, key)
        _check_enough(outputs.shape[-1], federation)


@partial(jax.jit, static_argnums=0)  # so that it is traced once
def _first_outputs(algorithm: Algorithm, hyper: Any, data: ClientData, key: Key) -> Array:
    """Those of the first client's model before any round, for one example."""
    deployed = algorithm.deploy(key, hyper, begun(algorithm.init, key, hyper, data), data)
    example = minibatch(data.pool, jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32))
    outputs = algorithm.predict(tree.row(deployed.params, deployed.row[0]), example.x)
    if not isinstance(outputs, Array) or outputs.ndim < 2 or len(outputs) != 1:
        given = f"an array {outputs.shape}" if isinstance(outputs, Array) else f"a {type(outputs).__name__}"
        raise ValueError(f"predict gave {given} of one example; give its outputs (examples, classes)")
    return outputs


def _check_enough(n_outputs: int, federation: Federation) -> None:
    _, largest = _range(federation.train.pool.y, federation.test.pool.y)
    if largest >= n_outputs:
        raise ValueError(f"label {largest} and a network of {n_outputs} outputs; give it {largest + 1} or more")


def _check_tokens(n_tokens: int, federation: Federation) -> None:
    """An embedding has a row for each token; of one beyond, outputs would be NaN, of -1 those of the last token."""
    least, largest = _range(federation.train.pool.x, federation.test.pool.x)
    if least < 0:
        raise ValueError(f"token {least}, and tokens are 0, 1, 2, ...; number one that fills short texts too")
    if largest >= n_tokens:
        raise ValueError(f"token {largest}, and the network knows {n_tokens} from 0 on; give it {largest + 1} or more")


def _range(*parts: Array) -> tuple[int, int]:
    """(least, largest) of whole numbers that are known here, and of 0 and -1: all there is of others."""
    if any(isinstance(one, jax.core.Tracer) or not getattr(one, "is_fully_addressable", True) for one in parts):
        return 0, -1
    held = [np.asarray(one) for one in parts]
    return min(int(one.min(initial=0)) for one in held), max(int(one.max(initial=-1)) for one in held)


@contextlib.contextmanager
def fields_of(hyper: Any, algorithm: Algorithm) -> Iterator[None]:
    """Inside it, a method that reads a field which ``hyper`` does not have is one clear error.

    Raises:
        ValueError: ``hyper`` is that of another method: it lacks a number that ``algorithm`` reads, or has one that it
            does not read and that would change nothing.
    """
    known, kind = algorithm.about.numbers, type(hyper)
    # One of a user's own, or joined with one, may hold what a function of theirs reads.
    is_library = all(one.__module__.partition(".")[0] == "fljax" for one in kind.__mro__ if one is not object)
    if known and is_library and (unread := [name for name in as_dict(hyper) if name not in known]):
        text = f"hyper={kind.__name__}(...) has {unread[0]!r}, which {algorithm.about.name} does not read; it reads"
        raise ValueError(f"{text} {', '.join(known)}")
    try:
        yield
    except AttributeError as error:
        if not isinstance(error.obj, type(hyper)):
            raise
        kind, fields = type(hyper).__name__, ", ".join(as_dict(hyper))
        remedy = "give the method's own Hyper"
        if error.name == LocalHyper.lr_of.__name__ or error.name in numbers_of(LocalHyper):
            remedy += ", and let that inherit fljax.LocalHyper, which has the numbers of the clients' optimiser"
        text = f"hyper={kind}({fields}) has no field {error.name!r}, which the method reads; {remedy}"
        raise ValueError(text) from None
