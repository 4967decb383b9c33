"""Prepared sets with the features of the real ones, made here without TensorFlow."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fljax.data.datasets import load
from fljax.data.readers.tfds import _labelled


@pytest.mark.filterwarnings("ignore")  # TensorFlow Datasets' own, while writing
@pytest.mark.parametrize(
    ("name", "shape"), [("cifar100", (32, 32, 3)), ("svhn_cropped", (32, 32, 3)), ("mnist", (28, 28, 1))]
)
def test_image_classification(prepare_set, name, shape):
    folder = prepare_set(name, shape)
    train, test = load(name, folder.parents[1])
    assert train.x.shape == (7, *shape)
    assert sorted(test.y.tolist()) == [0, 1, 2]
    np.testing.assert_array_equal(train.x[:, 5, 5, 0], train.y)


def test_images_are_bytes_whatever_their_files_have():
    png = io.BytesIO()
    Image.new("1", (4, 3), 1).save(png, "png")  # a bit a pixel
    chunk = _labelled([{"image": png.getvalue(), "label": 2}], "mnist", 10, Path("mnist"))
    assert (chunk["x"].shape, chunk["x"].dtype) == ((1, 3, 4, 1), np.uint8)
    assert (chunk["x"] == 1).all()


@pytest.mark.filterwarnings("ignore")
def test_emnist_letters_is_turned_upright_and_counts_from_zero(prepare_set):
    folder = prepare_set("emnist/letters", (28, 28, 1), first_label=1)
    train, _ = load("emnist/letters", folder.parents[2])
    assert sorted(train.y.tolist()) == list(range(7))
    assert np.all(train.x[:, 1, 0] == 255)
    assert np.all(train.x[:, 0, 1] < 255)


@pytest.mark.filterwarnings("ignore")
def test_celeb_a_has_identities_as_users(prepare_set):
    folder = prepare_set("celeb_a", (218, 178, 3), splits=("train", "validation", "test"), celeb=True)
    train, test = load("celeb_a", folder.parents[1])
    assert (train.x.shape, test.x.shape) == ((9, 84, 84, 3), (3, 84, 84, 3))
    number = train.x[:, 60, 60, 0]  # training images 0-6 and validation images 0-1
    np.testing.assert_array_equal(train.y, number % 2)
    np.testing.assert_array_equal([int(train.names[user]) for user in train.user], number % 3)


@pytest.mark.filterwarnings("ignore")
def test_broken_prepared_sets(prepare_set):
    folder = prepare_set("cifar10", first_label=5)
    with pytest.raises(ValueError, match="labels from 5 to 11; cifar10 has 0 to 9"):
        load("cifar10", folder.parents[1])
    records = next(folder.glob("*train.array_record*"))
    content = records.read_bytes()
    records.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="split train is damaged"):
        load("cifar10", folder.parents[1])
    info = json.loads((folder / "dataset_info.json").read_text())
    (folder / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with pytest.raises(ValueError, match="prepared as tfrecord, which needs TensorFlow"):
        load("cifar10", folder.parents[1])
    (folder / "dataset_info.json").write_text(json.dumps(info | {"splits": []}))
    with pytest.raises(ValueError, match="has no split 'train'"):
        load("cifar10", folder.parents[1])
    (folder / "dataset_info.json").write_text("{")
    with pytest.raises(ValueError, match=r"is not a whole dataset_info\.json"):
        load("cifar10", folder.parents[1])
