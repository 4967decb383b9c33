"""FEMNIST by writer, as LEAF's JSON shards or as TensorFlow Federated's sqlite file."""

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fljax.data.cache import Chunk, cached, fingerprint
from fljax.data.readers.foreign import kind
from fljax.data.users import UserExamples, encode, join

N_CLASSES = 62
_ROWS = 5000


def find_json(folder: Path) -> Path | None:
    """The folder with ``train/*.json``: ``folder`` or its ``data``."""
    return next((place for place in (folder, folder / "data") if any(place.glob("train/*.json"))), None)


def read_json(folder: Path) -> tuple[UserExamples, UserExamples]:
    """LEAF shards ``{train,test}/*.json``; pixels are inverted, so that ink is 255 on 0 as in MNIST."""
    return join(*(_read_split(folder, split) for split in ("train", "test")))


def _read_split(folder: Path, split: str) -> dict[str, np.ndarray]:
    shards = sorted((folder / split).glob("*.json"))
    if not shards:
        raise FileNotFoundError(f"{folder / split} has no .json file; LEAF's folder has data/train and data/test")
    key = f"femnist/leaf/{split}-{fingerprint(folder / split, shards)}"
    return cached(key, lambda: (_shard(file) for file in shards), len(shards))


def _shard(file: Path) -> Chunk:
    try:
        content = json.loads(file.read_bytes())
        users, sizes, data = content["users"], content["num_samples"], content["user_data"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is not a whole LEAF shard but {kind(file.read_bytes()[:4])}; get it again") from error
    if len(users) != len(sizes) or set(users) != set(data):
        raise ValueError(f"{file} lists {len(users)} users, {len(sizes)} sizes and data of {len(data)}; get it again")
    for user, size in zip(users, sizes, strict=True):
        found = len(data[user]["x"]), len(data[user]["y"])
        if found != (size, size):
            raise ValueError(f"{file}: user {user} has {found[0]} images, {found[1]} labels, and should have {size}")
    x = [row for user in users for row in data[user]["x"]]
    y = [label for user in users for label in data[user]["y"]]
    return _chunk(x, y, np.repeat(users, sizes).tolist(), file)


def _chunk(x: list, y: list, user: list[str], file: Path) -> Chunk:
    try:
        pixels, labels = np.asarray(x, np.float32).reshape(-1, 28, 28, 1), np.asarray(y)
    except ValueError as error:
        raise ValueError(f"{file}: images are not 784 numbers each") from error
    if len(labels) and not (labels.dtype.kind == "i" and labels.min() >= 0 and labels.max() < N_CLASSES):
        raise ValueError(f"{file} has labels from {labels.min()} to {labels.max()}; FEMNIST's are 0 to {N_CLASSES - 1}")
    if not (np.all(pixels >= 0) and np.all(pixels <= 1)):
        raise ValueError(f"{file} has pixels outside 0 to 1; get it again")
    ink = np.round(255 * (1 - pixels)).astype(np.uint8)
    return {"x": ink, "y": labels.astype(np.int32), "user": encode(user)}


def find_sqlite(folder: Path) -> Path | None:
    """``emnist_all.sqlite`` in ``folder``, or ``folder`` itself where it is an .sqlite file."""
    return next((f for f in (folder, folder / "emnist_all.sqlite") if f.suffix == ".sqlite" and f.is_file()), None)


def read_sqlite(file: Path) -> tuple[UserExamples, UserExamples]:
    """TensorFlow Federated's ``emnist_all.sqlite``, read without TensorFlow; ink is 255 on 0."""
    columns = []
    for split in ("train", "test"):
        key = f"femnist/tff/{split}-{fingerprint(file, [file])}"
        columns.append(cached(key, lambda split=split: _sqlite_rows(file, split)))
    return join(*columns)


def _sqlite_rows(file: Path, split: str) -> Iterator[Chunk]:
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2  # slow to import

    ask = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    expect = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
    found: Counter[str] = Counter()
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            expected = dict(database.execute(expect, (split,)))
            rows = database.execute(ask, (split,))
            while batch := rows.fetchmany(_ROWS):
                users = [str(user) for user, _ in batch]
                found.update(users)
                features = [tf_example_pb2.Example.FromString(proto).features.feature for _, proto in batch]
                pixels = [feature["pixels"].float_list.value for feature in features]
                labels = [feature["label"].int64_list.value[0] for feature in features]
                yield _chunk(pixels, labels, users, file)
    except (sqlite3.Error, DecodeError, IndexError) as error:
        raise ValueError(f"{file} is not a whole emnist_all.sqlite ({error}); get it again") from error
    if wrong := [user for user in expected.keys() | found.keys() if expected.get(user, 0) != found[user]]:
        user = min(wrong)
        raise ValueError(f"{file}: {split} user {user} has {found[user]} examples and should have {expected.get(user)}")
