"""IDX files, the format of MNIST, Fashion-MNIST and EMNIST: big-endian header, then bytes."""

import hashlib
import math
import struct
from pathlib import Path

import numpy as np

from fljax.data.federation import on_host
from fljax.data.readers.foreign import kind
from fljax.data.readers.limits import MOST_ARRAY, Unpacked
from fljax.types import Examples

_LABELS_MD5 = {  # of the uncompressed file of training labels
    "9018921c3c673c538a1fc5bad174d6f9": "fashion_mnist",
    "a25bea736e30d166cdddb491f175f624": "mnist",
}


def find(folder: Path, prefix: str = "") -> Path | None:
    """``folder`` if it has a file of training images whose name begins with ``prefix``."""
    return folder if _file(folder, f"{prefix}train-images-idx3-ubyte") else None


def read(folder: Path, name: str, n_classes: int, prefix: str = "") -> tuple[Examples, Examples]:
    """Train and test images (n, height, width, 1) uint8 and labels from 0, plain or gzipped files.

    Args:
        folder: has ``{prefix}train-images-idx3-ubyte[.gz]`` and its three companions (test: ``t10k-`` or ``test-``).
        name: the expected data set; MNIST under the name of Fashion-MNIST is rejected, and vice versa.
        n_classes: labels are below this.
        prefix: "" or "emnist-letters-", whose files hold transposed images and labels from 1; both are corrected.

    Raises:
        FileNotFoundError: one of the four files is missing.
        ValueError: a file is truncated, too long, too large, empty, of another kind or of another data set, or has
            labels out of range.
    """
    labels = _file(folder, f"{prefix}train-labels-idx1-ubyte")
    actual_name = _LABELS_MD5.get(_md5(labels), name) if labels else name
    if actual_name != name:
        raise ValueError(f"{folder} has the files of {actual_name}, not of {name}; use the name {actual_name}")
    test_prefix = "t10k" if _file(folder, f"{prefix}t10k-images-idx3-ubyte") else "test"
    train_set, test_set = (_pair(folder, f"{prefix}{part}", n_classes) for part in ("train", test_prefix))
    return train_set, test_set


def read_array(file: Path, n_axes: int) -> np.ndarray:
    """The uint8 array of one IDX file; its number of axes must be ``n_axes``."""
    with Unpacked(file) as stream:
        shape = _shape(file, stream.read(4 + 4 * n_axes), n_axes)
        data = stream.read(expected := math.prod(shape))
        if len(data) < expected:
            raise ValueError(f"{file} is truncated: {len(data)} bytes, and {expected} for shape {shape}; get it again")
        if stream.read(1):
            raise ValueError(f"{file} is too long: more than the {expected} bytes for shape {shape}; get it again")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _shape(file: Path, header: bytes, n_axes: int) -> tuple[int, ...]:
    if header[:3] != b"\0\0\x08" or len(header) < 4 or header[3] != n_axes:
        raise ValueError(f"{file} is not an IDX file of bytes with {n_axes} axes but {kind(header)}; get it again")
    if len(header) < 4 + 4 * n_axes:
        raise ValueError(f"{file} is truncated inside its header ({len(header)} bytes); get it again")
    shape = struct.unpack(f">{n_axes}I", header[4:])
    if (size := math.prod(shape)) > MOST_ARRAY:
        raise ValueError(f"{file} states the shape {shape}, {size:,} bytes; at most {MOST_ARRAY:,} are read")
    if size == 0:
        raise ValueError(f"{file} is empty: its shape is {shape}; get it again")
    return shape


def _pair(folder: Path, part: str, n_classes: int) -> Examples:
    files = [_file(folder, f"{part}-{suffix}") for suffix in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    for file, suffix in zip(files, ("images-idx3-ubyte", "labels-idx1-ubyte"), strict=True):
        if file is None:
            raise FileNotFoundError(f"{folder} has no {part}-{suffix}, plain or .gz; put it beside the others")
    images, labels = (read_array(file, n_axes) for file, n_axes in zip(files, (3, 1), strict=True) if file)
    if len(images) != len(labels):
        raise ValueError(f"{files[0]} has {len(images)} images and {files[1]} {len(labels)} labels; get both again")
    labels = labels.astype(np.int32)
    if part.startswith("emnist-letters-"):
        images, labels = images.swapaxes(1, 2), labels - 1
    if len(labels) and not (labels.min() >= 0 and labels.max() < n_classes):
        raise ValueError(
            f"{files[1]} has labels from {labels.min()} to {labels.max()}; give 0 to {n_classes - 1}, or "
            "get the files again"
        )
    return on_host(images[..., None], labels)


def _file(folder: Path, name: str) -> Path | None:
    return next((file for file in (folder / name, folder / f"{name}.gz") if file.is_file()), None)


def _md5(file: Path) -> str:
    """The MD5 of the decompressed content."""
    digest, n_bytes_left = hashlib.md5(usedforsecurity=False), MOST_ARRAY
    with Unpacked(file) as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
            if (n_bytes_left := n_bytes_left - len(block)) < 0:
                raise ValueError(f"{file} has more than {MOST_ARRAY:,} bytes decompressed; at most so many are read")
    return digest.hexdigest()
