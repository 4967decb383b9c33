"""The identity of a run: everything that must be equal for a folder's run to be resumed."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fljax.choices import is_of_libraries, is_told, plain
from fljax.client.map import AtHome
from fljax.devices.hosts import from_all_hosts
from fljax.devices.mesh import shapes
from fljax.files import checksum
from fljax.models.scored import is_validated
from fljax.models.task import Task, scores_of
from fljax.numbers import as_dict
from fljax.rounds.memory import remembering
from fljax.rounds.sampling import Draw
from fljax.run.one_round import as_traced, run_round, test_round
from fljax.types import Algorithm, Federation, Key, State


def run_identity(
    algorithm: Algorithm,
    state: State,
    hyper: Any,
    federation: Federation,
    key: Key,
    draw: Draw,
    evaluate_every: int,
    dropout: float | None,
) -> dict[str, Any]:
    """Everything on which a run's results depend, except the number of rounds, as plain values by name.

    ``state`` is the run's first state, or its shapes.
    """
    example_sums, federation = sums_of_examples(federation), _unpadded(federation)
    sizes, leaves = np.asarray(federation.train.size), jax.tree_util.tree_leaves_with_path(state)
    numbers = {f"hyper.{name}": None if value is None else _decimal(value) for name, value in as_dict(hyper).items()}
    return {
        **static_choices(algorithm),
        **({} if tells_all(algorithm, draw) else program(algorithm, hyper, federation, key, draw)),
        **numbers,
        "key.impl": str(jax.random.key_impl(key)),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        **{f"sampling.{name}": _short(value) for name, value in draw.sampling.about},
        **({} if draw.sampling.about else {"sampling.timing": _short(draw.sampling.timing)}),
        "cohort": draw.size,
        "evaluate_every": evaluate_every,
        "dropout": None if dropout is None else _decimal(dropout),
        "n_clients": len(sizes),
        "n_examples": int(sizes.sum()),
        **example_sums,
        "group": None if federation.group is None else _sum_of([federation.group]),
        "triggered": _triggered(federation),
        **{f"state{jax.tree_util.keystr(path)}": list(x.shape) for path, x in leaves},
    }


def sums_of_examples(federation: Federation) -> dict[str, int]:
    """Checksums of the clients' row numbers and labels, ``"data"``, and of the examples themselves, ``"pixels"``."""
    unpadded = _unpadded(federation)
    is_padded = jax.tree.map(np.shape, federation) != jax.tree.map(np.shape, unpadded)
    sums = (("data", _checksum), ("pixels", _pixels))
    return {
        name: _Sum(sum_of(unpadded), sum_of(federation)) if is_padded else sum_of(unpadded) for name, sum_of in sums
    }


def static_choices(algorithm: Algorithm) -> dict[str, Any]:
    """The method's name, its static choices, its local work and its network, as the algorithm states them.

    ``at_once`` is not included, because it does not change results, nor ``drop_last`` and ``local_steps`` unless they
    are chosen, which older runs do not have; bricks are part of the name.
    """
    about = algorithm.about
    work = {} if about.work is None else about.work._asdict()
    left_out = {"at_once", *(name for name in ("drop_last", "local_steps") if not work.get(name))}
    return {
        "algorithm": about.name or f"{algorithm.round.__module__}.{algorithm.round.__qualname__}",
        **{f"choice.{name}": _short(value) for name, value in about.choices},
        **{f"work.{name}": plain(value) for name, value in work.items() if name not in left_out},
        **{f"model.{name}": _short(value) for name, value in about.model},
        "loss": plain(_loss_of(algorithm)),
        **({"scores": [score.name for score in scores]} if (scores := scores_of(algorithm.loss)) else {}),
        **({"validated": True} if is_validated(algorithm.loss) else {}),
    }


def tells_all(algorithm: Algorithm, draw: Draw) -> bool:
    """Whether `static_choices` and those of the sampling describe a round's program completely."""
    about, sampling = algorithm.about, draw.sampling.about
    named = "sampling" in dict(sampling)  # a user's sampling may have a clock, which describes only its seconds
    if about.work is None or not (about.name and about.model and named):
        return False
    values = [value for _, value in (*about.choices, *about.model, *sampling)]
    if not (_is_loss_described(algorithm) and is_told([*values, about.work.optimizer, about.work.terms])):
        return False
    parts = [part for name, part in algorithm._asdict().items() if name not in ("about", "loss")]
    return is_of_libraries([*parts, draw.sampling])


def _loss_of(algorithm: Algorithm) -> Any:
    """The loss of a classification, without its scores, which are listed separately; for another task the task."""
    loss = algorithm.loss
    return loss.loss if isinstance(loss, Task) and loss.name == "classification" else loss


def _is_loss_described(algorithm: Algorithm) -> bool:
    """Whether the loss is described completely; a regression's loss holds the targets' mean and standard deviation,
    which the network's description has."""
    loss = algorithm.loss.loss if isinstance(algorithm.loss, Task) else algorithm.loss
    if not is_told([score.of for score in scores_of(algorithm.loss)]):
        return False
    return is_told(loss) or ("target_mean" in dict(algorithm.about.model) and loss.__module__ == Task.__module__)


def _decimal(value: Any) -> float:
    """A number as it is written in decimal: float32's 0.1, with which a run computes, becomes Python's 0.1."""
    return float(str(np.asarray(value)[()]))


def program(algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, draw: Draw) -> dict[str, int]:
    """Checksums of a run's program, for when its choices do not describe it: of a round, and of the computations before
    and after rounds.

    Traced for one device, so that they do not depend on the number of devices; nothing is compiled or computed.
    """
    numbers, federation = jax.eval_shape(as_traced, hyper), shapes(federation)
    algorithm = remembering(algorithm, draw.sampling.memory)

    def begin(numbers: Any, federation: Federation) -> State:
        return algorithm.init(key, numbers, federation.train)

    def one_round(numbers: Any, federation: Federation, state: State) -> Any:
        return run_round(algorithm, draw, numbers, federation, key, None, state, jnp.int32(0))

    def test(numbers: Any, federation: Federation, state: State, due: jax.Array) -> Any:
        return test_round(algorithm, numbers, federation, key, state, jnp.int32(0), due, False)

    with _on_one_device(federation):
        traced_begin, state = jax.make_jaxpr(begin, return_shape=True)(numbers, federation)
        traced_round = jax.make_jaxpr(one_round)(numbers, federation, state)
        traced_test = jax.make_jaxpr(test)(numbers, federation, state, jax.ShapeDtypeStruct((), bool))
    round_parts = [_text(traced_round), _sums_of_constants(traced_round.consts)]
    constants = [_sums_of_constants(_all_constants(part)) for part in (traced_begin, traced_round, traced_test)]
    rest = [_text(traced_begin), _text(traced_test), *constants]
    return {"program": checksum(json.dumps(round_parts).encode()), "program.rest": checksum(json.dumps(rest).encode())}


def _on_one_device(federation: Federation) -> contextlib.AbstractContextManager[Any]:
    """A context with a single device, unless examples are spread over several."""
    at_home = isinstance(federation.train.pool, AtHome)
    return contextlib.nullcontext() if at_home else jax.set_mesh(Mesh(np.empty((), object), ()))


def _text(traced: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "", str(traced))  # addresses of functions differ between processes


def _all_constants(traced: Any) -> Iterator[Any]:
    """The arrays that a traced function holds, and those of the functions in it."""
    yield from getattr(traced, "consts", ())
    for equation in traced.eqns:
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_traced):
            yield from _all_constants(inner) if _is_traced(inner) else ()


def _is_traced(value: Any) -> bool:
    return hasattr(value, "eqns")


def _sums_of_constants(constants: Iterable[Any]) -> list[int]:
    """The checksum of each array; random keys, which differ from run to run, are left out."""
    return [_sum_of([x]) for x in constants if hasattr(x, "dtype") and not _is_key(x)]


def _is_key(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _short(value: Any) -> Any:
    """A choice as JSON gives it back; a long one as its length and checksum."""
    plain_value = plain(value)
    text = json.dumps(plain_value)
    return plain_value if len(text) <= 200 else [len(text), checksum(text.encode())]


class _Sum(int):
    """A checksum of data without padding, equal to the one with it too: folders of before have that.

    Of an attacker's or a held out client's table the columns past all sizes were no padding; they are left out, too.
    """

    padded: int

    def __new__(cls, unpadded: int, padded: int) -> "_Sum":
        """``unpadded`` is the number that is written down."""
        instance = super().__new__(cls, unpadded)
        instance.padded = padded
        return instance

    def __eq__(self, other: object) -> bool:
        return other in (int(self), self.padded)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__


def _unpadded(federation: Federation) -> Federation:
    """Without what `fljax.data.padding.same_shapes` adds, which other seeds decide: columns past all sizes, zeros."""
    pools: dict[int, Any] = {}

    def pool(old: Any) -> Any:  # splits may share it, and still do after
        if id(old) not in pools:
            pools[id(old)] = old if isinstance(old, AtHome) else old._replace(**_without_zeros(old.x, old.y))
        return pools[id(old)]

    def table(rows: Any) -> Any:
        return rows._replace(index=np.asarray(rows.index)[..., : max(1, int(np.asarray(rows.size).max(initial=0)))])

    names, stages = ("train", "val", "test"), federation.stages
    splits: dict[str, Any] = {name: split for name in names if (split := getattr(federation, name)) is not None}
    fields: dict[str, Any] = {name: table(split)._replace(pool=pool(split.pool)) for name, split in splits.items()}
    if stages is not None:
        fields["stages"] = stages._replace(**{name: table(getattr(stages, name)) for name in splits})
    return federation._replace(**fields)


def _without_zeros(x: Any, y: Any) -> dict[str, Any]:
    """The examples without those at the end that are 0 and labelled 0."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return {"x": x, "y": y}
    labels = np.asarray(y)
    n = _up_to_zeros(labels)
    if n == len(labels):  # the pool can stay on its device
        return {"x": x, "y": y}
    inputs = np.asarray(x)
    n = max(1, n + _up_to_zeros(inputs[n:]))
    return {"x": x, "y": y} if n == len(labels) else {"x": inputs[:n], "y": labels[:n]}


def _up_to_zeros(rows: np.ndarray) -> int:
    """The number of rows up to the last one that is not all 0."""
    nonzero_rows = np.flatnonzero(rows.any(axis=tuple(range(1, rows.ndim))))
    return int(nonzero_rows[-1]) + 1 if len(nonzero_rows) else 0


def _checksum(federation: Federation) -> int:
    """The checksum of the clients' row numbers and of the labels."""
    tables = [array for data in (federation.train, federation.test) for array in (data.index, data.size, data.pool.y)]
    return _sum_of([*tables, *jax.tree.leaves((federation.there, federation.stages))])


def _pixels(federation: Federation) -> int:
    """The checksum of all examples, the public ones included, and of the validation split's row numbers."""
    splits = (federation.train, federation.test, federation.val)
    pools = [None if data is None else data.pool.x for data in splits]
    pools.append(None if federation.public is None else federation.public.x)
    sums = {id(x): _sums_of_pool(x) for x in pools}  # splits may share a pool, which is read once
    crc = checksum(json.dumps([sums[id(x)] for x in pools]).encode())
    if (val := federation.val) is not None:
        # `_checksum` has those of training.
        labels = () if np.array_equal(val.pool.y, federation.train.pool.y) else (val.pool.y,)
        crc = _sum_of((val.index, val.size, *labels), crc)
    return crc


def _triggered(federation: Federation) -> int | None:
    """The checksum of the examples with an attack's trigger and of their clients; None if there are none."""
    if (data := federation.triggered) is None:
        return None
    return _sum_of((data.index, data.size, data.pool.y), checksum(json.dumps(_sums_of_pool(data.pool.x)).encode()))


def _sums_of_pool(x: Any) -> list[int]:
    """Checksums of the examples ``x``, one per host if no host has all of them."""
    if x is None:
        return []
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return [_sum_of([x])]
    return from_all_hosts(_sum_of(shard.data for shard in x.addressable_shards))


def _sum_of(arrays: Iterable[Any], before: int = 0) -> int:
    """The checksum of arrays one after another, continuing from the checksum ``before``."""
    for array in arrays:
        before = checksum(np.ascontiguousarray(array), before)
    return before
