"""Data sets that TensorFlow Datasets has prepared, read without TensorFlow, decoded once."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fljax.data.cache import Chunk, cached, fingerprint
from fljax.data.federation import on_host
from fljax.data.readers.celeba import shrink
from fljax.data.users import UserExamples, encode, join
from fljax.types import Examples

_ROWS = 500


def find(folder: Path, name: str) -> Path | None:
    """The newest prepared version ``folder/name/x.y.z``, or None."""
    versions = [info.parent for info in (folder / name).glob("*.*.*/dataset_info.json")]
    return max(
        versions, key=lambda path: [int(part) if part.isdigit() else -1 for part in path.name.split(".")], default=None
    )


def read(path: Path, name: str, n_classes: int) -> tuple[Examples, Examples]:
    """Train and test images uint8 and labels from 0 of a prepared image classification set.

    ``emnist/letters`` is put right: its images are stored transposed and its labels run from 1 to 26.
    """
    train, test = (_columns(path, name, (split,), n_classes) for split in ("train", "test"))
    return on_host(train["x"], train["y"]), on_host(test["x"], test["y"])


def read_celeb_a(path: Path) -> tuple[UserExamples, UserExamples]:
    """``celeb_a``: images (84, 84, 3), 1 for smiling, the identity as user; its validation split is training data."""
    return join(*(_columns(path, "celeb_a", splits, 2) for splits in (("train", "validation"), ("test",))))


def prepare(name: str, folder: Path) -> Path:
    """Downloads a set and prepares it in ``folder``; needs the network and, unlike reading, TensorFlow.

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
    try:
        info = json.loads((path / "dataset_info.json").read_text())
    except ValueError as error:
        raise ValueError(f"{path / 'dataset_info.json'} cannot be read; prepare {name} again") from error
    if info.get("fileFormat") != "array_record":
        raise ValueError(
            f"{path} is prepared as {info.get('fileFormat', 'tfrecord')}, which needs TensorFlow to read;"
            f" prepare it as array_record: fljax data prepare {name}"
        )
    sizes = {split["name"]: sum(map(int, split["shardLengths"])) for split in info["splits"]}
    if missing := [split for split in splits if split not in sizes]:
        raise ValueError(f"{path} has no split {missing[0]!r} but {', '.join(sizes)}; prepare {name} again")
    records = list(path.glob("*array_record*"))
    key = f"{name}/{path.name}/{'-'.join(splits)}-{fingerprint(path, records)}"
    n_chunks = sum(-(-sizes[split] // _ROWS) for split in splits)
    return cached(key, lambda: _chunks(path, name, splits, n_classes, sizes), n_chunks)


def _chunks(path: Path, name: str, splits: tuple[str, ...], n_classes: int, sizes: dict[str, int]) -> Iterator[Chunk]:
    import tensorflow_datasets as tfds  # slow to import

    builder = tfds.builder_from_directory(path)
    for split in splits:
        try:
            source = builder.as_data_source(split)  # pyright: ignore[reportCallIssue]
            for start in range(0, sizes[split], _ROWS):
                records = source.__getitems__(list(range(start, min(start + _ROWS, sizes[split]))))
                yield _celeb_a(records) if name == "celeb_a" else _labelled(records, name, n_classes, path)
        except (KeyError, IndexError, OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{path}: split {split} is damaged or not {name} ({reason}); prepare it again") from error


def _labelled(records: list[dict], name: str, n_classes: int, path: Path) -> Chunk:
    x = np.stack([record["image"] for record in records])
    y = np.array([record["label"] for record in records], np.int32)
    if name == "emnist/letters":
        x, y = x.swapaxes(1, 2), y - 1
    if y.min() < 0 or y.max() >= n_classes:
        raise ValueError(f"{path} has labels from {y.min()} to {y.max()}; {name} has 0 to {n_classes - 1}")
    return {"x": x, "y": y}


def _celeb_a(records: list[dict]) -> Chunk:
    from PIL import Image

    return {
        "x": np.stack([shrink(Image.fromarray(record["image"])) for record in records]),
        "y": np.array([record["attributes"]["Smiling"] for record in records], np.int32),
        "user": encode([str(record["identity"]["Identity_No"]) for record in records]),
    }
