"""LEAF's JSON files: ``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``."""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from fljax.data.readers.limits import read_object
from fljax.data.shown import short


class LeafUser(NamedTuple):
    """A user's examples as in the file."""

    user: str
    x: list
    y: list


def find_shards(folder: Path) -> Path | None:
    """The folder with ``train/*.json``: ``folder`` or its ``data``."""
    return next((place for place in (folder, folder / "data") if any(place.glob("train/*.json"))), None)


def users_of(file: Path) -> list[LeafUser]:
    """The users of a file, in its order.

    Raises:
        ValueError: the file is incomplete, or states sizes or users that its data contradict.
    """
    content = read_object(file, "LEAF shard")
    users, sizes, data = (content.get(name) for name in ("users", "num_samples", "user_data"))
    if not isinstance(users, list) or not isinstance(sizes, list) or not isinstance(data, dict):
        raise ValueError(f"{file} is not a whole LEAF shard: users, num_samples or user_data is missing; get it again")
    if bad := [user for user in users if not isinstance(user, str)]:
        raise ValueError(f"{file} lists the user {short(bad[0])}, which is not a text; get it again")
    if repeated := next((user for user, n in Counter(users).items() if n > 1), None):
        raise ValueError(f"{file} lists user {short(repeated)} twice; get it again")
    if len(users) != len(sizes) or set(users) != set(data):
        raise ValueError(f"{file} lists {len(users)} users, {len(sizes)} sizes and data of {len(data)}; get it again")
    return [_leaf_user(file, user, size, data[user]) for user, size in zip(users, sizes, strict=True)]


def _leaf_user(file: Path, user: str, size: Any, data: Any) -> LeafUser:
    x, y = (data.get(name) if isinstance(data, dict) else None for name in ("x", "y"))
    if not isinstance(x, list) or not isinstance(y, list):
        raise ValueError(f"{file}: user {short(user)} has no lists x and y; get it again")
    if isinstance(size, bool) or not isinstance(size, int) or (len(x), len(y)) != (size, size):
        sizes = f"{len(x)} examples, {len(y)} labels, but should have {short(size)}"
        raise ValueError(f"{file}: user {user if user.isprintable() else short(user)} has {sizes}")
    return LeafUser(user, x, y)
