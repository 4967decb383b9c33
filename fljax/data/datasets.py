"""Data sets by name: which are on this machine, where, and how to get the others."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, overload

import numpy as np

from fljax.choices import unknown
from fljax.data.federation import on_host
from fljax.data.readers import celeba, digits, drawn, femnist, idx, tfds
from fljax.data.readers.foreign import first_pickle
from fljax.data.readers.leaf import find_shards
from fljax.data.users import UserExamples
from fljax.ranges import said
from fljax.types import Examples

Splits = tuple[Examples, Examples] | tuple[UserExamples, UserExamples]


class Source(NamedTuple):
    """One format of a data set."""

    find: Callable[[Path], Path | None]  # (folder to search) -> the path to read, None if there is none
    read: Callable[[Path], Splits]


class Dataset(NamedTuple):
    """A data set by name."""

    sources: tuple[Source, ...]  # the first one found is read
    get: str  # how to get it


def _prepared(name: str, n_classes: int) -> Source:
    return Source(partial(tfds.find, name=name), partial(tfds.read, name=name, n_classes=n_classes))


def _idx(name: str, n_classes: int, *subfolders: str, prefix: str = "") -> Source:
    def find(folder: Path) -> Path | None:
        places = (idx.find(folder / subfolder, prefix) for subfolder in (*subfolders, name))
        return next((place for place in places if place), idx.find(folder, prefix) if _may_hold(folder, name) else None)

    return Source(find, partial(idx.read, name=name, n_classes=n_classes, prefix=prefix))


def _may_hold(folder: Path, name: str) -> bool:
    """Whether IDX files in ``folder`` may be ``name``: they carry no name, but Debian's folder has Fashion-MNIST."""
    return folder != _DEBIAN or name == "fashion_mnist"


def _also_in_subfolder(name: str, find: Callable[[Path], Path | None]) -> Callable[[Path], Path | None]:
    """``find`` in a folder or, if it finds nothing there, in its subfolder ``name``."""
    return lambda folder: find(folder) or find(folder / name)


_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_PREPARE = "fljax data prepare {} (needs the network and the extra 'prepare')"
_FEMNIST = "LEAF's data/femnist folder or TensorFlow Federated's emnist_all.sqlite, in a folder that you name"
DATASETS: dict[str, Dataset] = {
    "mnist": Dataset((_prepared("mnist", 10), _idx("mnist", 10, "MNIST/raw")), _PREPARE.format("mnist")),
    "fashion_mnist": Dataset(
        (_prepared("fashion_mnist", 10), _idx("fashion_mnist", 10, "FashionMNIST/raw")),
        f"apt-get install dataset-fashion-mnist, or {_PREPARE.format('fashion_mnist')}",
    ),
    "cifar10": Dataset((_prepared("cifar10", 10),), _PREPARE.format("cifar10")),
    "cifar100": Dataset((_prepared("cifar100", 100),), _PREPARE.format("cifar100")),
    "svhn_cropped": Dataset((_prepared("svhn_cropped", 10),), _PREPARE.format("svhn_cropped")),
    "emnist/letters": Dataset(
        (
            _prepared("emnist/letters", 26),
            _idx("emnist_letters", 26, "EMNIST/raw", prefix="emnist-letters-"),
        ),
        _PREPARE.format("emnist/letters"),
    ),
    "femnist": Dataset(
        (
            Source(_also_in_subfolder("femnist", find_shards), femnist.read_json),
            Source(_also_in_subfolder("femnist", femnist.find_sqlite), femnist.read_sqlite),
        ),
        _FEMNIST,
    ),
    "celeb_a": Dataset(
        (
            Source(_also_in_subfolder("celeba", celeba.find), celeba.read),
            Source(partial(tfds.find, name="celeb_a"), tfds.read_celeb_a),
        ),
        f"the CelebA folder, in a folder that you name, or {_PREPARE.format('celeb_a')}",
    ),
}
"""Data sets that are read from files; `NAMES` has all."""
NAMES = ("digits", *drawn.DRAWN, *DATASETS, "mnist_fashion")
"""All names that `load` knows. The first need no file; ``mnist_fashion`` is made of two others."""
_Central = Literal[
    "digits",
    "mnist",
    "fashion_mnist",
    "cifar10",
    "cifar100",
    "svhn_cropped",
    "emnist/letters",
    "mnist_fashion",
]
_OfUsers = Literal["femnist", "celeb_a", "synthetic_1_1", "synthetic_0.5_0.5", "synthetic_0_0", "synthetic_iid"]


@overload
def load(name: _Central, folder: str | Path | None = None) -> tuple[Examples, Examples]: ...
@overload
def load(name: _OfUsers, folder: str | Path | None = None) -> tuple[UserExamples, UserExamples]: ...
@overload
def load(name: str, folder: str | Path | None = None) -> Splits: ...
def load(name: str, folder: str | Path | None = None) -> Splits:
    """The train and test examples of a data set, NumPy arrays ``x`` uint8 (n, height, width, channels), ``y`` int32.

    Files are searched in ``folder``; without it, in the folder of the environment variable FLJAX_DATA, then where
    TensorFlow Datasets keeps its data and where Debian puts Fashion-MNIST. ``femnist`` and ``celeb_a`` come with their
    users (`fljax.data.users.UserExamples`). ``mnist_fashion``, a proxy for a larger task such as EMNIST letters, is
    MNIST (classes 0 to 9) and Fashion-MNIST (10 to 19). ``synthetic_1_1`` and the other synthetic sets are not images
    but x (n, 60) float32, also with their users (`fljax.data.synthetic.synthetic`).

    Raises:
        FileNotFoundError: nothing was found; the message says how to get the data set.
        ValueError: an unknown name, or a file that is truncated or of another kind.
    """
    _check_name(name)
    if name == "digits":
        return digits.read()
    if name in drawn.DRAWN:
        return drawn.read(name)
    if name == "mnist_fashion":
        return _mnist_and_fashion(load("mnist", folder), load("fashion_mnist", folder))
    found = _find(name, folder)
    if found is None:
        _refuse_pickle(name, folder)
        where = ", ".join(str(root) for root in _roots(folder))
        raise FileNotFoundError(f"{name} is not in {where}; get it by: {DATASETS[name].get}")
    source, path = found
    train, test = source.read(path)
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = f"{train.x.shape[1:]} and test images {test.x.shape[1:]}"
        raise ValueError(f"{path} has training images {sizes} (height, width, channels); get {name} again")
    return train, test  # pyrefly: ignore[bad-return] - both of one kind


def available() -> list[tuple[str, str]]:
    """(name, the place of its files, or how to get it) of each data set; reads no data."""
    rows = [("digits", "inside scikit-learn"), *((name, "drawn, needs no file") for name in drawn.DRAWN)]
    for name, dataset in DATASETS.items():
        found = _find(name, None)
        rows.append((name, str(found[1]) if found else f"not found: {dataset.get}"))
    has_both = all(_find(name, None) for name in ("mnist", "fashion_mnist"))
    where = "mnist and fashion_mnist" if has_both else "not found: needs mnist and fashion_mnist"
    return [*rows, ("mnist_fashion", where)]


def prepare(name: str, folder: str | Path | None = None) -> Path:
    """Downloads and prepares a set of TensorFlow Datasets in ``folder``, or where `load` searches first.

    Raises:
        ModuleNotFoundError: TensorFlow is not installed; the message says how to install it.
        ValueError: an unknown name, or a set that cannot be prepared.
    """
    _check_name(name)
    if name not in DATASETS or _PREPARE.format(name) not in DATASETS[name].get:
        how = DATASETS[name].get if name in DATASETS else dict(available())[name]
        raise ValueError(f"{name} cannot be prepared here: {how}")
    return tfds.prepare(name, _roots(folder)[0])


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise ValueError(f"{said('name', name)} is not the name of a data set, which is a text")
    if name not in NAMES:
        raise ValueError(unknown("data set", name, NAMES))


def _roots(folder: str | Path | None) -> list[Path]:
    if folder is not None:
        return [Path(folder)]
    from_environment = [Path(root) for root in (os.environ.get("FLJAX_DATA"), os.environ.get("TFDS_DATA_DIR")) if root]
    return [*from_environment, Path.home() / "tensorflow_datasets", _DEBIAN]


def _find(name: str, folder: str | Path | None) -> tuple[Source, Path] | None:
    for root in _roots(folder):
        for source in DATASETS[name].sources:
            if place := source.find(root):
                return source, place
    return None


def _refuse_pickle(name: str, folder: str | Path | None) -> None:
    pickle = first_pickle(Path(folder)) if folder is not None and Path(folder).is_dir() else None
    if pickle:
        raise ValueError(
            f"{pickle} is a Python pickle, which is not read because unpickling a file runs code from it;"
            f" get {name} by: {DATASETS[name].get}"
        )


def _mnist_and_fashion(mnist: Splits, fashion_mnist: Splits) -> Splits:
    if mnist[0].x.shape[1:] != fashion_mnist[0].x.shape[1:]:
        sizes = f"{mnist[0].x.shape[1:]} and those of fashion_mnist {fashion_mnist[0].x.shape[1:]}"
        raise ValueError(f"images of mnist are {sizes} (height, width, channels); mnist_fashion needs equal ones")
    train, test = (
        on_host(np.concatenate([a.x, b.x]), np.concatenate([np.asarray(a.y), np.asarray(b.y) + 10]))
        for a, b in zip(mnist, fashion_mnist, strict=True)
    )
    return train, test
