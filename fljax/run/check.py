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
from flax.errors import FlaxError
from jax import Array

from fljax import tree
from fljax.choices import check_kind
from fljax.client.map import check_table
from fljax.data.federation import minibatch
from fljax.data.labels import are_classes
from fljax.models.task import task_of
from fljax.numbers import LocalHyper, as_dict, numbers_of
from fljax.ranges import real, said
from fljax.rounds.method import Method
from fljax.server.checks import is_key
from fljax.types import Algorithm, ClientData, ExampleLoss, Examples, Federation, Key, ModelTable, Params, State


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
    remedy = "make one by fljax.PARTITIONS, fljax.federation_from_arrays or fljax.own_data(...).federation()"
    check_kind("federation", federation, Federation, remedy)
    check_key(key)
    about, x = dict(algorithm.about.model), federation.train.pool.x
    made_for, given = about.get("input_shape"), x.shape[1:]
    if (kind := about.get("input_dtype")) is not None and x.dtype != jnp.int32:
        pixels = ", which are pixels and are scaled" if x.dtype == jnp.uint8 else ""
        raise ValueError(f"the network takes {kind} tokens, and the examples are {x.dtype}{pixels}; give int32")
    if made_for is not None and math.prod(made_for) != math.prod(given):
        raise _other_shape(made_for, given)
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
    _check_kind_of(federation.train.pool.y, algorithm.loss)
    n_outputs = dict(algorithm.about.model).get("n_outputs")
    if n_outputs is not None and task_of(algorithm.loss) == "classification":
        _check_enough(n_outputs, federation.train.pool.y, federation.test.pool.y)


def _check_kind_of(y: Array, loss: ExampleLoss) -> None:
    task = task_of(loss)
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


def check_state(
    algorithm: Algorithm, hyper: Any, state: Any, data: ClientData, key: Key, *, same_clients: bool
) -> None:
    """Checks that ``state`` is one of the method's runs, and where ``same_clients``, that these were the run's clients.

    Raises:
        ValueError: it is none.
    """
    check_kind("state", state, State, "give what fljax.simulate gives first, or fljax.train(...).state")

    def shapes(data: ClientData) -> list[tuple[int, ...]]:
        return [leaf.shape for leaf in jax.tree.leaves(jax.eval_shape(algorithm.init, key, hyper, data))]

    data = data if same_clients else _of_so_many(data, _n_kept(state) or data.size.shape[0])
    alike = jax.tree.structure(jax.eval_shape(algorithm.init, key, hyper, data)) == jax.tree.structure(state)
    if alike:
        own = shapes(data)
        # Which axes are those of clients is seen with twice as many. How long they are newcomers do not say.
        of_more = own if same_clients else shapes(_of_so_many(data, 2 * data.size.shape[0]))
        given = zip(map(jnp.shape, jax.tree.leaves(state)), own, of_more, strict=True)
        alike = all(
            len(shape) == len(expected)
            and all(length == here for length, here, more in zip(shape, expected, others, strict=True) if here == more)
            for shape, expected, others in given
        )
    if not alike:
        others = "method, network or federation" if same_clients else "method or network"
        raise ValueError(f"state is of another {others}; give that of {algorithm.about.name or 'the method'}'s run")


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
        raise ValueError(f"{given}; give each of {data.size.shape[0]} clients the number of the row that it holds")
    return models


def check_outputs(algorithm: Algorithm, hyper: Any, federation: Federation, key: Key) -> None:
    """Checks what only the outputs of a network show.

    Raises:
        ValueError: one that does not say how many outputs it has, such as two functions, has fewer than classes, so
            that the loss of some examples would not be a number; or it cannot take examples of as many numbers as those
            that it was made for in another shape, as a convolution cannot, and dense layers can.
    """
    about, given = dict(algorithm.about.model), federation.train.pool.x.shape[1:]
    if (made_for := about.get("input_shape")) is not None and tuple(made_for) != given:
        try:
            _first_outputs.eval_shape(algorithm, hyper, federation.train, key)
        except (ExampleError, FlaxError) as error:
            raise _other_shape(made_for, given) from error
    if "n_outputs" not in about and task_of(algorithm.loss) == "classification":
        outputs = _first_outputs.eval_shape(algorithm, hyper, federation.train, key)
        _check_enough(outputs.shape[-1], federation.train.pool.y, federation.test.pool.y)


class ExampleError(ValueError):
    """A network cannot take the examples."""


def _other_shape(made_for: Any, given: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"the network takes examples of shape {made_for}, and the clients' are {given}; make it for these"
    )


@partial(jax.jit, static_argnums=0)  # so that it is traced once
def _first_outputs(algorithm: Algorithm, hyper: Any, data: ClientData, key: Key) -> Array:
    """Those of the first client's model before any round, for one example."""
    models = deployed(algorithm.deploy, key, hyper, begun(algorithm.init, key, hyper, data), data)
    return _outputs(algorithm.predict, models, data.pool)


def check_tested(
    predict: Callable[[Params, Array], Array], models: ModelTable, data: ClientData, loss: ExampleLoss
) -> None:
    """Checks that models can be tested on ``data`` by ``loss``; of traced data, such as a run's, only its kind.

    Raises:
        ValueError: its labels are not of the loss's kind, or ``predict`` cannot take its examples, or has not an output
            for each class.
    """
    _check_kind_of(data.pool.y, loss)
    if not isinstance(data.pool.y, jax.core.Tracer):
        outputs = _outputs.eval_shape(predict, models, data.pool)
        if task_of(loss) == "classification":
            _check_enough(outputs.shape[-1], data.pool.y)


@partial(jax.jit, static_argnums=0)
def _outputs(predict: Callable[[Params, Array], Array], models: ModelTable, pool: Examples) -> Array:
    """Those of the first client's model for one example."""
    example = minibatch(pool, jnp.zeros(1, jnp.int32), jnp.ones(1, jnp.float32))
    try:
        outputs = predict(tree.row(models.params, models.row[0]), example.x)
    except Exception as error:  # whatever a network raises
        raise ExampleError(f"predict cannot take examples of shape {example.x.shape[1:]}: {error}") from error
    if not isinstance(outputs, Array) or outputs.ndim < 2 or len(outputs) != 1:
        given = f"an array {outputs.shape}" if isinstance(outputs, Array) else f"a {type(outputs).__name__}"
        raise ValueError(f"predict gave {given} of one example; give its outputs (examples, classes)")
    return outputs


def _check_enough(n_outputs: int, *labels: Array) -> None:
    _, largest = _range(*labels)
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
