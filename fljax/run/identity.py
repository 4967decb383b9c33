"""What makes a run this run and no other: what must be equal for a folder's run to be gone on with."""

import json
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fljax.choices import plain, says_all
from fljax.files import checksum
from fljax.models.task import Task
from fljax.numbers import as_dict
from fljax.rounds.sampling import Draw
from fljax.run.hosts import from_all_hosts
from fljax.run.simulate import as_traced, run_round, split_key
from fljax.types import Algorithm, Federation, Key, Model, State

CLASSES = Model._field_defaults["loss"]


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
    """Everything that a run's numbers depend on but the number of rounds, as plain values by name.

    ``state`` is the one that the run begins with, or its shapes.
    """
    sizes = np.asarray(federation.train.size)
    numbers = {f"hyper.{name}": None if value is None else float(value) for name, value in as_dict(hyper).items()}
    sampling = {f"sampling.{name}": _short(value) for name, value in draw.sampling.about}
    said, kind = static_choices(algorithm) | sampling, str(jax.random.key_impl(key))
    known = sampling and tells_itself(algorithm) and says_all(json.dumps(said))
    return {
        **said,
        **({} if known else {"program": program(algorithm, hyper, federation, key, draw)}),
        **numbers,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        **({} if kind == "threefry2x32" else {"key_impl": kind}),
        "cohort": draw.size,
        "evaluate_every": evaluate_every,
        "dropout": None if dropout is None else float(dropout),
        "n_clients": len(sizes),
        "n_examples": int(sizes.sum()),
        "data": _checksum(federation),
        "pixels": _pixels(federation),
        **{f"state{jax.tree_util.keystr(at)}": list(x.shape) for at, x in jax.tree_util.tree_leaves_with_path(state)},
    }


def static_choices(algorithm: Algorithm) -> dict[str, Any]:
    """The method's name, its static choices, its local work and its network, as the algorithm states them.

    Clients side by side change no result, so ``at_once`` is not among them; bricks are in the name.
    """
    about = algorithm.about
    work = {} if about.work is None else about.work._asdict()
    return {
        "algorithm": about.name or f"{algorithm.round.__module__}.{algorithm.round.__qualname__}",
        **{f"choice.{name}": _short(value) for name, value in about.choices},
        **{f"work.{name}": plain(value) for name, value in work.items() if name != "at_once" and value != ()},
        **{f"model.{name}": _short(value) for name, value in about.model},
        **({} if isinstance(algorithm.loss, Task) or algorithm.loss is CLASSES else {"loss": plain(algorithm.loss)}),
    }


def tells_itself(algorithm: Algorithm) -> bool:
    """Whether an algorithm and its network say what they are, the scales of a regression's targets included."""
    about, loss = algorithm.about, algorithm.loss
    scaled = not isinstance(loss, Task) or loss.name != "regression" or "target_mean" in dict(about.model)
    return bool(about.name and about.model) and scaled


def program(algorithm: Algorithm, hyper: Any, federation: Federation, key: Key, draw: Draw) -> int:
    """A checksum of what a round computes, of a method or network that says nothing of its own choices."""
    numbers = as_traced(hyper)
    keys = split_key(key)
    state = jax.eval_shape(algorithm.init, keys.init, numbers, federation.train)

    def one_round(numbers: Any, federation: Federation, state: State) -> Any:
        return run_round(algorithm, draw, numbers, federation, keys, None, state, jnp.int32(0))

    traced = jax.make_jaxpr(one_round)(numbers, federation, state)
    text = re.sub(r"0x[0-9a-f]+", "", str(traced))  # addresses of functions are another process's
    constants = [checksum(np.ascontiguousarray(const)) for const in traced.consts if _is_array(const)]
    return checksum(json.dumps([text, constants]).encode())


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _short(value: Any) -> Any:
    """A choice as JSON gives it back; a long one as its length and checksum."""
    told = plain(value)
    text = json.dumps(told)
    return told if len(text) <= 200 else [len(text), checksum(text.encode())]


def _checksum(federation: Federation) -> int:
    """Of who owns what, of the labels, and of who is in which group or sees a trigger."""
    found = 0
    for data in (federation.train, federation.test):
        for array in (data.index, data.size, data.pool.y):
            found = checksum(np.ascontiguousarray(array), found)
    for array in jax.tree.leaves((federation.there, federation.stages, federation.group, federation.triggered)):
        found = checksum(np.ascontiguousarray(array), found)
    return found


def _pixels(federation: Federation) -> int:
    """A checksum of every example of every split and of the public data, and of who has what of the validation data."""
    splits = (federation.train, federation.test, federation.val)
    pools = [None if data is None else data.pool.x for data in splits]
    pools.append(None if federation.public is None else federation.public.x)
    known = {id(x): _of_pool(x) for x in pools}  # splits may share a pool, which is read once
    found = checksum(json.dumps([known[id(x)] for x in pools]).encode())
    for array in () if federation.val is None else (federation.val.index, federation.val.size):
        found = checksum(np.ascontiguousarray(array), found)
    return found


def _of_pool(x: Any) -> list[int]:
    """Checksums of the examples ``x``, of each host's own where no host has all."""
    if x is None:
        return []
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return [checksum(np.ascontiguousarray(x))]
    found = 0
    for shard in x.addressable_shards:
        found = checksum(np.ascontiguousarray(shard.data), found)
    return from_all_hosts(found)
