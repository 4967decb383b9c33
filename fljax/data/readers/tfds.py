"""Data sets prepared by TensorFlow Datasets, read without TensorFlow and decoded once."""

import importlib.util
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fljax.data.cache import Chunk, cached, fingerprint
from fljax.data.federation import on_host
from fljax.data.readers.celeba import shrink
from fljax.data.readers.foreign import installed
from fljax.data.readers.limits import inside, read_object
from fljax.data.shown import short
from fljax.data.users import UserExamples, encode, join
from fljax.types import Examples

_ROWS = 500
_MOST_METADATA = 1 << 26
"""Largest size in bytes of a metadata file."""


class _OtherLabels(ValueError):
    """The data set is complete, but another one."""


def find(folder: Path, name: str) -> Path | None:
    """The newest prepared version ``folder/name/x.y.z``, or None."""
    versions = [info.parent for info in (folder / name).glob("*.*.*/dataset_info.json")]
    return max(
        versions, key=lambda path: [int(part) if part.isdigit() else -1 for part in path.name.split(".")], default=None
    )


def read(path: Path, name: str, n_classes: int) -> tuple[Examples, Examples]:
    """Train and test images uint8 and labels from 0 of a prepared image classification set.

    ``emnist/letters`` is corrected: its images are stored transposed and its labels run from 1 to 26.
    """
    train, test = (_columns(path, name, (split,), n_classes) for split in ("train", "test"))
    return on_host(train["x"], train["y"]), on_host(test["x"], test["y"])


def read_celeb_a(path: Path) -> tuple[UserExamples, UserExamples]:
    """Reads ``celeb_a``: images (84, 84, 3), label 1 for smiling, identities as users; validation is training data."""
    return join(*(_columns(path, "celeb_a", splits, 2) for splits in (("train", "validation"), ("test",))))


def prepare(name: str, folder: Path) -> Path:
    """Downloads a data set and prepares it in ``folder``; needs the network and, unlike reading, TensorFlow.

    Raises:
        ModuleNotFoundError: TensorFlow is not installed.
    """
    if importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(f"preparing {name} needs TensorFlow (reading does not): pip install 'fljax[prepare]'")
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=str(folder), file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_dir)


def _columns(path: Path, name: str, splits: tuple[str, ...], n_classes: int) -> dict[str, np.ndarray]:
    remedy = f"prepare {name} again"
    info = read_object(path / "dataset_info.json", "dataset_info.json", _MOST_METADATA)
    if (file_format := info.get("fileFormat", "tfrecord")) != "array_record":
        shown = file_format if file_format == "tfrecord" else short(file_format)
        raise ValueError(
            f"{path} is prepared as {shown}, which needs TensorFlow to read;"
            f" prepare it as array_record: fljax data prepare {name}"
        )
    sizes = _sizes(path / "dataset_info.json", info, remedy)
    if missing := [split for split in splits if split not in sizes]:
        raise ValueError(f"{path} has no split {missing[0]!r} but {short(', '.join(sizes))}; {remedy}")
    _check_features(path / "features.json", remedy)
    records = list(path.glob("*array_record*"))
    key = f"{name}/{path.name}/{'-'.join(splits)}-{fingerprint(path, records)}"
    n_chunks = sum(-(-sizes[split] // _ROWS) for split in splits)
    return cached(key, lambda: _chunks(path, name, splits, n_classes, sizes), n_chunks)


def _sizes(file: Path, info: dict[str, Any], remedy: str) -> dict[str, int]:
    """The number of examples of each split.

    Raises:
        ValueError: the file does not describe its splits, or names files of another folder.
    """
    sizes: dict[str, int] = {}
    splits = info.get("splits")
    for split in splits if isinstance(splits, list) else [None]:
        split: Any = split if isinstance(split, dict) else {}
        name, shards = split.get("name"), split.get("shardLengths")
        are_counts = isinstance(shards, list) and all(str(n).isdecimal() and len(str(n)) < 16 for n in shards)
        if not are_counts or not isinstance(name, str):
            raise ValueError(f"{file} does not describe its splits, which are {short(splits)}; {remedy}")
        for part in (name, split.get("filepathTemplate") or name):
            inside(file.parent, str(part), file)
        sizes[name] = sum(int(n) for n in shards)
    inside(file.parent, str(info.get("name") or "unnamed"), file)
    return sizes


def _check_features(file: Path, remedy: str) -> None:
    """Raises ValueError unless all features are TensorFlow Datasets' own, because it imports the classes they name."""
    waiting: list[Any] = [read_object(file, "features.json", _MOST_METADATA)] if file.exists() else []
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key in ("type", "pythonClassName"):
                name = value.get(key)
                if isinstance(name, str) and "." in name and not name.startswith("tensorflow_datasets.core.features."):
                    raise ValueError(f"{file} names {short(name)}, not a feature of TensorFlow Datasets; {remedy}")
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _chunks(path: Path, name: str, splits: tuple[str, ...], n_classes: int, sizes: dict[str, int]) -> Iterator[Chunk]:
    tfds = installed("tensorflow_datasets", path)  # slow to import

    for split in splits:
        try:
            builder = tfds.builder_from_directory(path)
            # Images are decoded by `_image`: the data set's own decoder takes twice as long.
            as_stored = {"image": tfds.decode.SkipDecoding()}
            source = builder.as_data_source(split, decoders=as_stored)
            for start in range(0, sizes[split], _ROWS):
                records = source.__getitems__(list(range(start, min(start + _ROWS, sizes[split]))))
                yield _celeb_a(records) if name == "celeb_a" else _labelled(records, name, n_classes, path)
        except _OtherLabels:
            raise
        except Exception as error:  # for a damaged file, TensorFlow Datasets and its parts raise errors of any kind
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{path}: split {split} is damaged or not {name} ({reason}); prepare it again") from error


def _labelled(records: list[dict], name: str, n_classes: int, path: Path) -> Chunk:
    x = np.stack([np.asarray(_image(record), np.uint8) for record in records])
    x = x[..., None] if x.ndim == 3 else x
    y = np.array([record["label"] for record in records], np.int32)
    if name == "emnist/letters":
        x, y = x.swapaxes(1, 2), y - 1
    if y.min() < 0 or y.max() >= n_classes:
        raise _OtherLabels(f"{path} has labels from {y.min()} to {y.max()}; {name} has 0 to {n_classes - 1}")
    return {"x": x, "y": y}


def _celeb_a(records: list[dict]) -> Chunk:
    return {
        "x": np.stack([shrink(_image(record)) for record in records]),
        "y": np.array([record["attributes"]["Smiling"] for record in records], np.int32),
        "user": encode([str(record["identity"]["Identity_No"]) for record in records]),
    }


def _image(record: dict) -> Any:
    """The image of a record that holds it as stored, a PNG or a JPEG."""
    from PIL import Image

    return Image.open(io.BytesIO(record["image"]))
