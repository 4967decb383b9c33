"""IDX files, the form that MNIST, Fashion-MNIST and EMNIST are given out in: big-endian header, then bytes."""

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from fljax.data.federation import on_host
from fljax.data.readers.foreign import kind
from fljax.types import Examples

_LABELS_MD5 = {  # of the uncompressed file of training labels
    "9018921c3c673c538a1fc5bad174d6f9": "fashion_mnist",
    "a25bea736e30d166cdddb491f175f624": "mnist",
}


def find(folder: Path, prefix: str = "") -> Path | None:
    """``folder`` if it has the training images of the set whose file names begin with ``prefix``."""
    return folder if _file(folder, f"{prefix}train-images-idx3-ubyte") else None


def read(folder: Path, name: str, n_classes: int, prefix: str = "") -> tuple[Examples, Examples]:
    """Train and test images (n, height, width, 1) uint8 and labels from 0, plain or gzipped files.

    Args:
        folder: has ``{prefix}train-images-idx3-ubyte[.gz]`` and its three companions (test: ``t10k-`` or ``test-``).
        name: which set it should be: MNIST is not taken for Fashion-MNIST, nor the other way round.
        n_classes: labels are below this.
        prefix: "" or "emnist-letters-", whose files hold transposed images and labels from 1; both are put right.

    Raises:
        FileNotFoundError: one of the four files is missing.
        ValueError: a file is truncated, too long, of another kind or of another set, or has other labels.
    """
    labels = _file(folder, f"{prefix}train-labels-idx1-ubyte")
    known = _LABELS_MD5.get(hashlib.md5(_bytes(labels)).hexdigest(), name) if labels else name
    if known != name:
        raise ValueError(f"{folder} has the files of {known}, not of {name}; name the set that it is")
    train = _pair(folder, f"{prefix}train", n_classes)
    test = "t10k" if _file(folder, f"{prefix}t10k-images-idx3-ubyte") else "test"
    return train, _pair(folder, f"{prefix}{test}", n_classes)


def read_array(file: Path, n_axes: int) -> np.ndarray:
    """The uint8 array of one IDX file; its number of axes must be ``n_axes``."""
    data = _bytes(file)
    header = 4 + 4 * n_axes
    if data[:3] != b"\0\0\x08" or len(data) < 4 or data[3] != n_axes:
        raise ValueError(f"{file} is not an IDX file of bytes with {n_axes} axes but {kind(data)}; get it again")
    if len(data) < header:
        raise ValueError(f"{file} is truncated inside its header ({len(data)} bytes); get it again")
    shape = struct.unpack(f">{n_axes}I", data[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(data) != expected:
        state = "truncated" if len(data) < expected else "too long"
        raise ValueError(f"{file} is {state}: {len(data)} bytes, and {expected} for shape {shape}; get it again")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _pair(folder: Path, part: str, n_classes: int) -> Examples:
    files = [_file(folder, f"{part}-{what}") for what in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    for file, what in zip(files, ("images-idx3-ubyte", "labels-idx1-ubyte"), strict=True):
        if file is None:
            raise FileNotFoundError(f"{folder} has no {part}-{what}, plain or .gz; put it beside the others")
    images, labels = (read_array(file, n_axes) for file, n_axes in zip(files, (3, 1), strict=True) if file)
    if len(images) != len(labels):
        raise ValueError(f"{files[0]} has {len(images)} images and {files[1]} {len(labels)} labels; get both again")
    labels = labels.astype(np.int32)
    if part.startswith("emnist-letters-"):
        images, labels = images.swapaxes(1, 2), labels - 1
    if len(labels) and not (labels.min() >= 0 and labels.max() < n_classes):
        raise ValueError(f"{files[1]} has labels from {labels.min()} to {labels.max()}, not 0 to {n_classes - 1}")
    return on_host(images[..., None], labels)


def _file(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def _bytes(file: Path) -> bytes:
    data = file.read_bytes()
    if file.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        wrong = "truncated or damaged" if data[:2] == b"\x1f\x8b" else f"not gzip but {kind(data)}"
        raise ValueError(f"{file} is {wrong}; get it again") from error
