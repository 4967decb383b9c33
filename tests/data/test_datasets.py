import hashlib
import importlib.util
import pickle
from pathlib import Path
from typing import get_args, get_overloads, get_type_hints

import numpy as np
import pytest
import sklearn.datasets
from sklearn.model_selection import train_test_split

from fljax.catalogue.datasets import OF_USERS
from fljax.data import datasets
from fljax.data.datasets import NAMES, available, load, prepare
from fljax.data.federation import n_classes
from fljax.data.partition import iid
from fljax.data.readers import digits, idx


def test_the_catalogue_names_the_data_sets_that_have_users():
    """As the signature of `load` does for type checkers; importing the catalogue does not start JAX."""
    of_users, central = (get_args(hint["name"]) for hint in map(get_type_hints, get_overloads(load)[1::-1]))
    assert set(OF_USERS) == set(of_users)
    assert {*OF_USERS, *central} == set(NAMES)


def test_digits_are_scikit_learns(monkeypatch):
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    rows = train_test_split(np.arange(len(labels)), test_size=360, random_state=0, stratify=labels)
    for file in ("sklearn/datasets/data/digits.csv.gz", "moved.csv.gz"):  # its file, and its function without the file
        monkeypatch.setattr(digits, "_FILE", file)
        for split, split_rows in zip(load("digits"), rows, strict=True):
            expected = np.round(images[split_rows] * 255 / 16).reshape(-1, 8, 8, 1)
            np.testing.assert_array_equal(split.x, expected.astype(np.uint8), strict=True)
            np.testing.assert_array_equal(split.y, labels[split_rows].astype(np.int32), strict=True)


def test_unknown_name_gets_the_nearest():
    with pytest.raises(ValueError, match="the nearest is 'fashion_mnist'"):
        load("fashion-mnist")


def test_missing_set_says_how_to_get_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar100 is not in .*fljax data prepare cifar100"):
        load("cifar100", tmp_path)


def test_a_pickle_is_named_and_refused(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": 1}))
    with pytest.raises(ValueError, match=r"data_batch_1 is a Python pickle.*fljax data prepare cifar10"):
        load("cifar10", tmp_path)


def test_available_lists_every_name_and_finds_debians_folder(idx_folder, monkeypatch):
    folder, arrays = idx_folder(gz=True)
    monkeypatch.setattr(datasets, "_DEBIAN", folder)
    rows = dict(available())
    assert tuple(rows) == NAMES
    assert rows["digits"] == "inside scikit-learn"
    assert rows["fashion_mnist"] == str(folder)
    assert rows["mnist"].startswith("not found")  # bare IDX files in that folder are not MNIST
    assert rows["cifar10"].startswith("not found: fljax data prepare cifar10")
    np.testing.assert_array_equal(load("fashion_mnist")[0].y, arrays["train"][1])


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_prepare_asks_for_tensorflow():
    with pytest.raises(ModuleNotFoundError, match=r"needs TensorFlow.*fljax\[prepare\]"):
        prepare("cifar100")


def test_prepare_refuses_what_has_no_builder():
    with pytest.raises(ValueError, match="femnist cannot be prepared here"):
        prepare("femnist")


@pytest.mark.parametrize("gz", [False, True])
def test_idx_files(idx_folder, gz):
    folder, arrays = idx_folder(gz=gz)
    for split, (x, y) in zip(load("mnist", folder), arrays.values(), strict=True):
        np.testing.assert_array_equal(split.x[..., 0], x)
        np.testing.assert_array_equal(split.y, y)
        assert split.y.dtype == np.int32


def test_emnist_letters_as_idx(idx_folder):
    folder, arrays = idx_folder("emnist-letters-", gz=True, first_label=1, test="test")
    train, test = load("emnist/letters", folder)
    np.testing.assert_array_equal(test.y, arrays["test"][1] - 1.0)
    np.testing.assert_array_equal(train.x[..., 0], arrays["train"][0].swapaxes(1, 2))


def test_idx_in_the_folder_that_torchvision_makes(idx_folder, tmp_path):
    folder, arrays = idx_folder()
    (tmp_path / "FashionMNIST").mkdir()
    folder.rename(tmp_path / "FashionMNIST" / "raw")
    np.testing.assert_array_equal(load("fashion_mnist", tmp_path)[1].y, arrays["t10k"][1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-3], "truncated: "),
        (lambda data: data[:6], "truncated inside its header"),
        (lambda data: data + b"x", "too long"),
        (lambda data: b"", "but empty"),
        (lambda data: pickle.dumps([1]), "a Python pickle"),
        (lambda data: b"<html>", "a web page"),
        (lambda data: b"PK\3\4" + data, "a zip file"),
        (lambda data: data[:2] + b"\x0d" + data[3:], "begins with 00000d03"),
    ],
)
def test_broken_idx_files(idx_folder, damage, message):
    folder, _ = idx_folder()
    file = folder / "train-images-idx3-ubyte"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=message) as error:
        load("mnist", folder)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"hello"])
def test_broken_gzip(idx_folder, damage):
    folder, _ = idx_folder(gz=True)
    file = folder / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz is (truncated|not gzip)"):
        load("mnist", folder)


def test_missing_companion_and_unequal_counts(idx_folder):
    folder, _ = idx_folder()
    labels = folder / "train-labels-idx1-ubyte"
    content = labels.read_bytes()
    labels.write_bytes(content[:4] + (11).to_bytes(4, "big") + content[8:-1])
    with pytest.raises(ValueError, match=r"has 12 images and .* 11 labels"):
        load("mnist", folder)
    labels.unlink()
    with pytest.raises(FileNotFoundError, match="no train-labels-idx1-ubyte"):
        load("mnist", folder)


def test_debians_files_are_known_by_their_checksum():
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("needs Debian's dataset-fashion-mnist")
    assert load("fashion_mnist", folder)[0].x.shape == (60000, 28, 28, 1)
    with pytest.raises(ValueError, match="has the files of fashion_mnist"):
        idx.read(folder, "mnist", 10)


def test_mnist_fashion_is_a_task_of_twenty_classes(idx_folder, tmp_path):
    folder, arrays = idx_folder()
    (tmp_path / "both" / "fashion_mnist").mkdir(parents=True)
    for file in folder.iterdir():
        (tmp_path / "both" / "fashion_mnist" / file.name).write_bytes(file.read_bytes())
    folder.rename(tmp_path / "both" / "mnist")
    y = arrays["train"][1].astype(int)
    train, _ = load("mnist_fashion", tmp_path / "both")
    np.testing.assert_array_equal(train.y, np.concatenate([y, y + 10]))


def test_one_set_is_not_taken_for_another(idx_folder, monkeypatch):
    folder, _ = idx_folder()
    digest = hashlib.md5((folder / "train-labels-idx1-ubyte").read_bytes()).hexdigest()
    monkeypatch.setattr(idx, "_LABELS_MD5", {digest: "mnist"})
    assert load("mnist", folder)
    with pytest.raises(ValueError, match="has the files of mnist, not of fashion_mnist"):
        load("fashion_mnist", folder)


def test_labels_out_of_range(idx_folder):
    folder, _ = idx_folder(first_label=1)
    with pytest.raises(ValueError, match=r"labels from \d+ to \d+; give 0 to 9, or get the files again"):
        load("mnist", folder)


@pytest.mark.slow
def test_real_sets_through_the_cache(real_data):
    train, test = load("mnist", real_data)
    assert (train.x.shape, test.x.shape) == ((60000, 28, 28, 1), (10000, 28, 28, 1))
    np.testing.assert_array_equal(np.bincount(test.y), [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009])
    np.testing.assert_array_equal(load("mnist", real_data)[0].x[-1], train.x[-1])
    assert n_classes(iid(train, test, 50, public=False)) == 10
