"""Your own images: a folder for each client, in it a folder for each class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fljax.data.own.arrays import OwnData, own_data
from fljax.data.own.checks import VALIDATION
from fljax.data.readers.limits import opened_image

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
"""Pillow's names of these formats."""


def read_images(folder: Path) -> OwnData:
    """Images of one size in folders ``client/class``; hidden files and folders are skipped.

    If the clients' folders are in folders ``train`` and ``test`` (and perhaps ``val``), these are the splits. Grey
    images of 16 bits keep their upper 8 bits.

    Raises:
        ValueError: no images, images of different sizes (both are named), an image that cannot be read, or a folder
            beside ``train`` that is not a split.
    """
    roots = _roots(folder)
    files = [
        (part, client.name, label.name, file)
        for part, root in roots.items()
        for client in _folders(root)
        for label in _folders(client)
        for file in sorted(label.iterdir())
        if file.suffix.lower() in IMAGES and not file.name.startswith(".")
    ]
    if not files:
        raise ValueError(f"{folder} has no images; put them in CLIENT/CLASS/NAME.png, or train/CLIENT/CLASS/NAME.png")
    *names, paths = zip(*files, strict=True)
    part, client, label = map(np.array, names)
    return own_data(images_in(paths), label, client, part=part if "" not in roots else None)


def _roots(folder: Path) -> dict[str, Path]:
    """Split -> the folder of its clients; the split is "" if the clients' folders are not in splits."""
    if not (folder / "train").is_dir():
        return {"": folder}
    subfolders = [path.name for path in _folders(folder)]
    split_names = ("train", "val", *VALIDATION, "test")
    if unknown_names := [name for name in subfolders if name not in split_names]:
        raise ValueError(
            f"{folder} has the folder {unknown_names[0]} beside train; name it train, val or test, or move it away"
        )
    return {name: folder / name for name in split_names if name in subfolders}


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def images_in(files: Sequence[Path]) -> np.ndarray:
    """The pixels of image files, (files, height, width, channels) uint8.

    Raises:
        ValueError: images of different sizes (both are named), or an image that cannot be read.
    """
    images = [_image(file) for file in files]
    for image, file in zip(images, files, strict=True):
        if image.shape != images[0].shape:
            shapes = f"{image.shape} and {files[0]} {images[0].shape}"
            are_of_one_size = image.shape[:2] == images[0].shape[:2]
            what = "number of channels, all grey or all in colour" if are_of_one_size else "size"
            raise ValueError(f"{file} has shape {shapes} (height, width, channels); bring them to one {what}")
    return np.stack(images)


def _image(file: Path) -> np.ndarray:
    """(height, width, channels) uint8.

    Raises:
        ValueError: it cannot be read, or has numbers of more than 16 bits, whose range is unknown.
    """
    with opened_image(file, FORMATS) as image_file:
        file_format, mode = image_file.format, image_file.mode
        is_wide = mode in ("I", "F") or mode.startswith("I;")
        image = np.asarray(image_file if is_wide or mode in ("L", "RGB") else image_file.convert("RGB"))
    if mode == "F" or (mode == "I" and file_format != "PNG"):  # Pillow opens a PNG of 16 bits as I or as I;16
        what = "floating-point numbers" if mode == "F" else "whole numbers of 32 bits"
        raise ValueError(f"{file} has {what}; give images of 8 or 16 bits, or the numbers as an .npz")
    if is_wide:
        image = (image >> 8).astype(np.uint8)
    return image[..., None] if image.ndim == 2 else image
