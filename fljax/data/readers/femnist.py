"""FEMNIST by writer, as LEAF's JSON shards or as TensorFlow Federated's sqlite file."""

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fljax.data.cache import Chunk, cached, fingerprint
from fljax.data.readers.foreign import installed
from fljax.data.readers.leaf import users_of
from fljax.data.shown import short
from fljax.data.users import UserExamples, encode, join

N_CLASSES = 62
_ROWS = 5000


def read_json(folder: Path) -> tuple[UserExamples, UserExamples]:
    """Reads LEAF shards ``{train,test}/*.json``; pixels are inverted, so that ink is 255 on 0 as in MNIST."""
    return join(*(_read_split(folder, split) for split in ("train", "test")))


def _read_split(folder: Path, split: str) -> dict[str, np.ndarray]:
    shards = sorted((folder / split).glob("*.json"))
    if not shards:
        raise FileNotFoundError(f"{folder / split} has no .json file; LEAF's folder has data/train and data/test")
    key = f"femnist/leaf/{split}-{fingerprint(folder / split, shards)}"
    return cached(key, lambda: (_shard(file) for file in shards), len(shards))


def _shard(file: Path) -> Chunk:
    rows = users_of(file)
    x, y = [image for row in rows for image in row.x], [label for row in rows for label in row.y]
    return _chunk(x, y, [row.user for row in rows for _ in row.y], file)


def _chunk(x: list, y: list, user: list[str], file: Path) -> Chunk:
    labels = _labels(y, file)
    try:
        pixels = np.asarray(x, np.float32).reshape(len(labels), 28, 28, 1)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{file}: images are not 784 numbers each") from error
    if not (np.all(pixels >= 0) and np.all(pixels <= 1)):
        raise ValueError(f"{file} has pixels outside 0 to 1; get it again")
    ink = np.round(255 * (1 - pixels)).astype(np.uint8)
    return {"x": ink, "y": labels, "user": encode(user, file)}


def _labels(y: list, file: Path) -> np.ndarray:
    allowed = f"FEMNIST's are 0 to {N_CLASSES - 1}"
    if bad := [label for label in y if isinstance(label, bool) or not isinstance(label, int)]:
        raise ValueError(f"{file} has the label {short(bad[0])}; {allowed}")
    if y and not (min(y) >= 0 and max(y) < N_CLASSES):
        raise ValueError(f"{file} has labels from {min(y)} to {max(y)}; {allowed}")
    return np.array(y, np.int32)


def find_sqlite(folder: Path) -> Path | None:
    """``emnist_all.sqlite`` in ``folder``, or ``folder`` itself if it is an .sqlite file."""
    return next((f for f in (folder, folder / "emnist_all.sqlite") if f.suffix == ".sqlite" and f.is_file()), None)


def read_sqlite(file: Path) -> tuple[UserExamples, UserExamples]:
    """Reads TensorFlow Federated's ``emnist_all.sqlite`` without TensorFlow; ink is 255 on 0."""
    columns = []
    for split in ("train", "test"):
        key = f"femnist/tff/{split}-{fingerprint(file, [file])}"
        columns.append(cached(key, lambda split=split: _sqlite_rows(file, split)))
    return join(*columns)


def _sqlite_rows(file: Path, split: str) -> Iterator[Chunk]:
    DecodeError = installed("google.protobuf.message", file).DecodeError
    tf_example_pb2 = installed("tensorflow_datasets.proto", file).tf_example_pb2  # slow to import

    examples_query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ?"
    counts_query = "SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?"
    counts: Counter[str] = Counter()
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as database:
            expected = {str(user): count for user, count in database.execute(counts_query, (split,))}
            rows = database.execute(examples_query, (split,))
            while batch := rows.fetchmany(_ROWS):
                users = [str(user) for user, _ in batch]
                counts.update(users)
                if bad := [proto for _, proto in batch if not isinstance(proto, bytes)]:
                    raise ValueError(f"{file} has {short(bad[0])} instead of a record of bytes; get it again")
                features = [tf_example_pb2.Example.FromString(proto).features.feature for _, proto in batch]
                pixels = [feature["pixels"].float_list.value for feature in features]
                labels = [feature["label"].int64_list.value[0] for feature in features]
                yield _chunk(pixels, labels, users, file)
    except (sqlite3.Error, DecodeError, IndexError) as error:
        raise ValueError(f"{file} is not a whole emnist_all.sqlite ({error}); get it again") from error
    if wrong_users := [user for user in expected.keys() | counts.keys() if expected.get(user, 0) != counts[user]]:
        user = min(wrong_users)
        raise ValueError(
            f"{file}: {split} user {user} has {counts[user]} examples, but should have {short(expected.get(user))}"
        )
