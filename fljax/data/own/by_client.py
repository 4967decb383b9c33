"""Your own data, client by client: arrays or data sets of each one, split already or not."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fljax.choices import Seed
from fljax.data.items import arrays_of
from fljax.data.own.arrays import SPLIT, own_data
from fljax.data.own.checks import PARTS
from fljax.ranges import said
from fljax.types import Federation

ByClient = Mapping[Any, Any] | Iterable[Any]
"""Each client's examples: ``{name: (x, y)}`` or ``[(x, y), ...]``."""


def federation_from_clients(
    clients: ByClient,
    *,
    val: ByClient | None = None,
    test: ByClient | None = None,
    split: tuple[float, float, float] = SPLIT,
    seed: Seed = 0,
) -> Federation:
    """A federation of each client's examples: ``{name: (x, y)}`` or ``[(x, y), ...]``, clients in this order.

    Instead of a pair of arrays, a client may have a data set like PyTorch's: an object with a length whose items
    ``data[i]`` are examples ``(x_i, y_i)``.

    Args:
        clients: each client's examples; with ``test``, those to train on.
        val: each client's validation examples, in the same form; only with ``test``.
        test: each client's test examples, in the same form; a client without any, which a mapping leaves out and for
            which a list has None, is not tested. None: ``split`` decides.
        split: shares of train, validation and test in each client, if there is no ``test``.
        seed: decides which examples go to which split.

    Raises:
        ValueError: no clients; a client's examples are neither of these, or of another shape or type than the first
            client's; ``val`` or ``test`` has other clients; both ``test`` and ``split`` are given; or as `own_data` and
            `OwnData.federation`.
    """
    if test is None and val is not None:
        raise ValueError("val is given, but test is not; give both, or neither and the shares as split")
    if test is not None and tuple(split) != SPLIT:
        raise ValueError(f"split={split} and test are both given; leave one of them out")
    named = {part: _named(what, given) for part, what, given in zip(PARTS, _GIVEN, (clients, val, test), strict=True)}
    number = {name: i for i, name in enumerate(named["train"])}
    for part, given in (("val", val), ("test", test)):
        _check_clients(part, named[part], number, isinstance(given, Mapping))
    arrays = {
        (name, part): arrays_of(examples, _whose(name, part))
        for part, examples_of in named.items()
        for name, examples in examples_of.items()
        if examples is not None or part == "train"
    }
    _check_alike({_whose(*key): pair for key, pair in arrays.items()})
    xs, ys = zip(*arrays.values(), strict=True)
    sizes = [len(x) for x in xs]
    client = np.repeat([number[name] for name, _ in arrays], sizes)
    part = None if test is None else np.repeat([part for _, part in arrays], sizes)
    data = own_data(np.concatenate(xs), np.concatenate([_joinable(y) for y in ys]), client, part=part)
    return data._replace(clients=tuple(map(str, number))).federation(split, seed=seed)


_GIVEN = ("clients", "val", "test")
"""The arguments that have the `PARTS`."""


def _whose(name: Any, part: str) -> str:
    return f"client {name!r}" if part == "train" else f"client {name!r}, {part},"


def _named(what: str, given: Any) -> dict[Any, Any]:
    """``given`` by the clients' names; their numbers, if it is a sequence. {} if it is None, except for ``clients``.

    Raises:
        ValueError: there are no clients.
    """
    is_optional = what != "clients"
    if given is None and is_optional:
        return {}
    if isinstance(given, str | bytes) or not np.iterable(given):
        raise ValueError(f"{said(what, given)} has no clients; give a pair of arrays (x, y) for each")
    examples_of = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
    if not examples_of or (is_optional and all(examples is None for examples in examples_of.values())):
        raise ValueError(f"no clients{f' in {what}' if is_optional else ''}; give a pair of arrays (x, y) for each")
    return examples_of


def _check_clients(part: str, examples_of: Mapping[Any, Any], trained: Mapping[Any, Any], is_named: bool) -> None:
    """Raises ValueError if a part has other clients than those ``trained``: all of them, or some if they are named."""
    if unknown := [name for name in examples_of if name not in trained]:
        raise ValueError(f"{part} has examples of client {unknown[0]!r}, but clients does not; give them to both")
    if examples_of and not is_named and len(examples_of) < len(trained):
        raise ValueError(f"{part} has {len(examples_of)} clients, clients {len(trained)}; give one each, None for none")


def _check_alike(arrays: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Raises ValueError if one's examples or labels are not of the kind of the first client's."""
    first, labels = next(iter(arrays.values()))
    for who, (x, y) in arrays.items():
        if len(x) != len(y):
            raise ValueError(f"{who} has {len(x)} examples and {len(y)} labels; give a label for each")
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise ValueError(f"{who} has examples {_kind(x)}, the first client {_kind(first)}; give one kind")
        if (kind := _kind_of_labels(y)) != (first_kind := _kind_of_labels(labels)):
            raise ValueError(f"{who} has labels {kind} and the first client {first_kind}; give all the same")


def _kind(x: np.ndarray) -> str:
    return f"of shape {x.shape[1:]} and dtype {x.dtype}"


def _kind_of_labels(y: np.ndarray) -> str:
    """The kind of labels, of which only equal kinds are joined: whole or bool, floating-point, or names."""
    words = {"b": "whole numbers", "i": "whole numbers", "u": "whole numbers", "f": "floating-point numbers"}
    return f"of shape {y.shape[1:]} that are {words.get(y.dtype.kind, 'names')}"


def _joinable(y: np.ndarray) -> np.ndarray:
    """Whole numbers as int64, because int64 and uint64 would join to floats; larger numbers stay as they are."""
    fits = y.dtype.kind in "biu" and int(y.max()) <= np.iinfo(np.int64).max
    return y.astype(np.int64) if fits else y
