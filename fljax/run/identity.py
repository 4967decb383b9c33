"""What makes a run this run and no other: what must be equal for a folder's run to be gone on with."""

import dataclasses
import json
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fljax.run.hosts import from_all_hosts
from fljax.types import Algorithm, Federation, Key, State, Work


def run_identity(
    algorithm: Algorithm,
    state: State,
    hyper: NamedTuple,
    federation: Federation,
    key: Key,
    size: int,
    evaluate_every: int,
    dropout: float | None,
) -> dict[str, Any]:
    """Everything that a run's numbers depend on but the number of rounds, as plain values by name.

    ``state`` is the one that the run begins with, or its shapes.
    """
    sizes = np.asarray(federation.train.size)
    numbers = {f"hyper.{name}": None if value is None else float(value) for name, value in hyper._asdict().items()}
    return {
        "algorithm": algorithm.init.__module__.rpartition(".")[2],
        **static_choices(algorithm),
        **numbers,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "cohort": size,
        "evaluate_every": evaluate_every,
        "dropout": None if dropout is None else float(dropout),
        "n_clients": len(sizes),
        "n_examples": int(sizes.sum()),
        "data": _checksum(federation),
        "pixels": _pixels(federation),
        **{f"state{jax.tree_util.keystr(at)}": list(x.shape) for at, x in jax.tree_util.tree_leaves_with_path(state)},
    }


def static_choices(algorithm: Algorithm) -> dict[str, Any]:
    """The constants of the method and its model, read from what the algorithm's functions close over.

    An algorithm is only its functions, so that is where its epochs, its number of clusters or its model's dropout are.
    """
    choices: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # the values too, lest another takes the place of one that is gone
    waiting: list[tuple[str, Any]] = [("", function) for function in algorithm[::-1]]
    while waiting:
        name, value = waiting.pop()
        plain = _plain(value)
        if name and plain is not _NOT_PLAIN:
            while choices.get(name, plain) != plain:  # another function's constant of the same name
                name += "'"
            choices[name] = plain
        if id(value) not in seen and not isinstance(plain, list):
            seen[id(value)] = value
            waiting += list(_inside(name, value))[::-1]
    return dict(sorted(choices.items()))


_NOT_PLAIN = object()
"""What `_plain` says of anything that JSON does not know."""


def _plain(value: Any) -> Any:
    """A constant as JSON gives it back: an array as its checksum, a type or a function as its name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | jax.Array) and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return [*value.shape, zlib.crc32(np.ascontiguousarray(value).tobytes())]
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(name := getattr(value, "__qualname__", None), str):
        return name
    if type(value) in (tuple, list):
        parts = [_plain(part) for part in value]
        return _NOT_PLAIN if any(part is _NOT_PLAIN for part in parts) else parts
    return _NOT_PLAIN


def _inside(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a container, a module or a function holds, by name."""
    if isinstance(value, Work):
        # Clients side by side change no result, so a run may go on with another `at_once`.
        yield from ((f"work.{field}", part) for field, part in value._asdict().items() if field != "at_once")
    elif isinstance(value, tuple | list):
        fields = getattr(value, "_fields", range(len(value)))
        yield from ((f"{name}.{field}", part) for field, part in zip(fields, value, strict=True))
    elif isinstance(value, dict):
        yield from ((f"{name}.{field}", part) for field, part in value.items())
    elif isinstance(value, partial):
        yield from (("", value.func), (f"{name}.args", value.args), (f"{name}.keywords", value.keywords))
    elif hasattr(value, "__wrapped__"):  # of jax.jit, functools.cache
        yield "", value.__wrapped__
    elif hasattr(value, "__code__"):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            yield variable, cell.cell_contents
    elif dataclasses.is_dataclass(value):  # a flax module
        yield f"{name}", type(value).__name__
        own = [field.name for field in dataclasses.fields(value) if field.name not in ("parent", "name")]
        yield from ((f"{name}.{field}", getattr(value, field, None)) for field in own)


def _checksum(federation: Federation) -> int:
    """Of who owns what, and of the labels."""
    checksum = 0
    for data in (federation.train, federation.test):
        for array in (data.index, data.size, data.pool.y):
            checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
    return checksum


def _pixels(federation: Federation) -> int:
    """A checksum of every example of every split and of the public data, and of who has what of the validation data."""
    splits = (federation.train, federation.test, federation.val)
    pools = [None if data is None else data.pool.x for data in splits]
    pools.append(None if federation.public is None else federation.public.x)
    known = {id(x): _of_pool(x) for x in pools}  # splits may share a pool, which is read once
    checksum = zlib.crc32(json.dumps([known[id(x)] for x in pools]).encode())
    for array in () if federation.val is None else (federation.val.index, federation.val.size):
        checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), checksum)
    return checksum


def _of_pool(x: Any) -> list[int]:
    """Checksums of the examples ``x``, of each host's own where no host has all."""
    if x is None:
        return []
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return [zlib.crc32(np.ascontiguousarray(x).view(np.uint8).data)]
    checksum = 0
    for shard in x.addressable_shards:
        checksum = zlib.crc32(np.ascontiguousarray(shard.data).tobytes(), checksum)
    return from_all_hosts(checksum)
